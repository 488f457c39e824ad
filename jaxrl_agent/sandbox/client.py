"""The caller's side: one supervisor for the process, started when it is first needed and again when it has died."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
from typing import Any

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import bubblewrap, leftovers, seccomp, wire

TIERS = ("none", "lsm", "ns")
_CLOSE_SECONDS = 10.0
_MAIN = "import sys; sys.path.insert(0, sys.argv[2]); from jaxrl_agent.sandbox.supervisor import main; main()"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How programs are run in this process.

    Attributes:
        min_tier: the weakest isolation that is accepted: "ns" (namespaces) or "lsm" (Landlock, where there are none).
        unsafe: run without a sandbox; nothing else turns it off.
        workers: calls under way at the same time; cores - 1 by default.
        idle: sandboxes kept ready; twice the cores, at most 64, by default.
        slots: sandboxes that may exist at the same time, idle ones included.
        queue: programs that may be under way or waiting before `run_program` itself waits.
        cgroups: whether cgroups are used where they can be.
        canary_s: seconds between two runs of a program with a known answer.
    """

    min_tier: str = "ns"
    unsafe: bool = False
    workers: int = 0
    idle: int = 0
    slots: int = 256
    queue: int = 1024
    cgroups: bool = True
    canary_s: float = 60.0

    def __post_init__(self):
        if self.min_tier not in ("ns", "lsm"):
            raise ArgumentError('min_tier must be "ns" or "lsm"', value=self.min_tier)
        if not 2 <= self.slots <= 256 or self.queue < 1 or self.workers < 0 or self.idle < 0:
            raise ArgumentError("slots must be 2 to 256, queue at least 1, workers and idle not negative", value=self)

    def options(self, tier: str, folder: str) -> dict[str, Any]:
        """Give what the supervisor is told."""
        cores = len(os.sched_getaffinity(0))
        workers = self.workers or max(1, cores - 1)
        idle = min(self.idle or min(2 * cores, 64), self.slots - 1)
        fixed = {"tier": tier, "run_folder": folder, "parent": os.getpid(), "workers": workers, "idle": idle}
        bwrap = str(bubblewrap.find()) if tier == "ns" else ""
        return fixed | {"slots": self.slots, "cgroups": self.cgroups, "canary_s": self.canary_s, "bwrap": bwrap}


class Client:
    """A running supervisor and the connection to it; every method may be called from every thread.

    Raises:
        SandboxError: the supervisor could not be started.
    """

    def __init__(self, settings: Settings, tier: str):
        if tier != "none" and not seccomp.supported():
            raise SandboxError("system-call numbers of this machine must be known", value=os.uname().machine)
        self.settings, self.tier, self.owner = settings, tier, os.getpid()
        leftovers.kill_orphans()
        self._folder = leftovers.make_folder()
        self._ids, self._workers = itertools.count(), itertools.count()
        self._waiting: dict[int | str, concurrent.futures.Future] = {}
        self._lock, self._send_lock = threading.Lock(), threading.Lock()
        self._room = threading.BoundedSemaphore(settings.queue)
        self._dead: SandboxError | None = None
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            options = settings.options(tier, self._folder) | {"fd": theirs.fileno()}
            root = str(pathlib.Path(__file__).parents[2])
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MAIN, json.dumps(options), root],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=bubblewrap.environment() | {"HOME": "/"},
                cwd="/",
                start_new_session=True,
            )
        except (OSError, SandboxError):
            self._socket.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        self._listener = threading.Thread(target=self._listen, name="sandbox replies", daemon=True)
        self._listener.start()

    @property
    def alive(self) -> bool:
        """Whether the supervisor can still be asked, by this process."""
        return self._dead is None and self.owner == os.getpid()

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def request(self, op: str, **fields) -> concurrent.futures.Future:
        """Send a request; the future gets the supervisor's answer, or a SandboxError."""
        number = next(self._ids)
        future: concurrent.futures.Future = concurrent.futures.Future()
        # A task that gives up waiting must not cancel it: the answer comes all the same.
        future.set_running_or_notify_cancel()
        frame = wire.encode({"id": number, "op": op, **fields})
        with self._lock:
            if self._dead is not None:
                raise self._dead
            self._waiting[number] = future
        try:
            with self._send_lock:
                self._socket.sendall(frame)
        except OSError:
            self._die(SandboxError("the sandbox supervisor must stay alive", value="it ended"))
        except BaseException:
            # Half a frame may have gone out, and what follows would be read as its rest.
            self._die(SandboxError("a request must be sent whole", value="the caller was interrupted"))
            raise
        return future

    def enter(self, *, wait: bool = True) -> bool:
        """Take one place of the bounded queue; `leave` gives it back."""
        return self._room.acquire(blocking=wait)

    def leave(self) -> None:
        """Give back a place of the queue."""
        self._room.release()

    def worker_id(self) -> int:
        """Give a number that no worker of this client has."""
        return next(self._workers)

    def close(self) -> None:
        """End the supervisor and with it every sandbox; returns when it is gone."""
        self._die(SandboxError("the sandbox must be in use", value="it was closed"))
        if self.owner != os.getpid():
            return
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(_CLOSE_SECONDS)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """Let go of a supervisor that belongs to another process, after a fork."""
        self._dead = SandboxError("a supervisor serves one process", value="this one was forked from it")
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())

    def _listen(self) -> None:
        decoder = wire.Decoder()
        error = SandboxError("the sandbox supervisor must stay alive", value="it ended")
        while True:
            try:
                data = self._socket.recv(1 << 20)
                messages = decoder.feed(data)
            except (OSError, ValueError):
                data, messages = b"", []
            for message in messages:
                if message["id"] == "start":
                    error = _error_of(message)
                    continue
                with self._lock:
                    future = self._waiting.pop(message["id"], None)
                if future is not None:
                    _settle(future, message)
            if not data:
                self._die(error)
                if self._process.wait():
                    leftovers.kill_orphans(looks=3)
                return

    def _die(self, error: SandboxError) -> None:
        with self._lock:
            self._dead = self._dead or error
            waiting, self._waiting = self._waiting, {}
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for future in waiting.values():
            future.set_exception(self._dead)


def _error_of(message: dict) -> SandboxError:
    error = message["error"]
    if error["value"] is None:
        return SandboxError(error["rule"].rstrip("."), remedy=error["remedy"])
    return SandboxError(error["rule"], value=error["value"], remedy=error["remedy"])


def _settle(future: concurrent.futures.Future, message: dict) -> None:
    if "error" in message:
        future.set_exception(_error_of(message))
    else:
        future.set_result(message)
