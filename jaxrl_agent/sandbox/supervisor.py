"""The supervisor: a small process of its own that starts, feeds, measures and kills sandboxes.

It is started with exec, so that the caller's threads and accelerators do not matter; it runs one thread, imports the
standard library alone, and dies with its caller. One line of JSON as `sys.argv[1]` configures it.
"""

from __future__ import annotations

import base64
import collections
import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable

from jaxrl_agent.errors import JaxrlError, SandboxError
from jaxrl_agent.sandbox import bubblewrap, wire
from jaxrl_agent.sandbox.bubblewrap import Profile
from jaxrl_agent.sandbox.launch import Launcher, Sandbox, sealed_file
from jaxrl_agent.sandbox.metrics import Metrics
from jaxrl_agent.sandbox.pool import Pool
from jaxrl_agent.sandbox.results import MIB, Limits
from jaxrl_agent.sandbox.sessions import Call, Session

TICK_SECONDS, IDLE_SECONDS, LATE_SECONDS = 0.02, 0.5, 1.5
COPIED_BYTES = 16 * MIB
_SUBREAPER = 36
_CANARY = ("print(int(input()) * 2)", "21\n", "42\n")


class Supervisor:
    """The event loop.

    Args:
        client: socket to the caller.
        parent: process id of the caller.
        options: see `client.Settings.to_json`.
    """

    def __init__(self, client: socket.socket, parent: int, options: dict):
        self._client, self._options = client, options
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Callable[[], object]] = {}
        self._outgoing = bytearray()
        self._decoder = wire.Decoder()
        self._running: set[Session] = set()
        self._turns = 0
        self._queue: collections.deque = collections.deque()
        self._workers: dict[int, Session] = {}
        self._ended = False
        self._client_events = selectors.EVENT_READ
        self._next_canary = time.monotonic() + options["canary_s"]
        self._metrics = Metrics()
        names = ("tier", "bwrap", "run_folder", "cgroups")
        launcher = Launcher(**{name: options[name] for name in names})
        self._launcher = launcher
        self._pool = Pool(
            launcher,
            idle=options["idle"],
            slots=options["slots"],
            starting=max(2, os.cpu_count() or 1),
            watch=self._watch,
            unwatch=self._unwatch,
            on_event=self._sandbox_event,
        )
        client.setblocking(False)
        self._watch(client.fileno(), self._client_readable)
        self._watch(os.pidfd_open(parent), self._end)
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        self._watch(reader, lambda: (os.read(reader, 4096), self._pool.reap()))

    # ---- the loop

    def serve(self) -> None:
        """Serve until the caller hangs up or dies."""
        self._pool.fill()
        last = time.monotonic()
        while not self._ended:
            next_look = min((session.look_at - time.monotonic() for session in self._running), default=IDLE_SECONDS)
            for key, _ in self._selector.select(max(0.0, min(next_look, IDLE_SECONDS))):
                # An earlier event may have closed this descriptor, and opened another of the same number.
                if self._watched.get(key.fd) is key.data:
                    key.data()
            now = time.monotonic()
            if now - last > LATE_SECONDS:
                # After a long stop, what has ended meanwhile is heard of before anything is called late.
                last = now
                continue
            for session in list(self._running):
                if now >= session.look_at:
                    session.tick(now)
            if now - last >= TICK_SECONDS:
                last = now
                self._tick(now)
            self._flush()
        self._pool.close()

    def _tick(self, now: float) -> None:
        self._pool.tick(now)
        if now > self._next_canary:
            self._next_canary = now + self._options["canary_s"]
            self._run_canary()

    def _end(self) -> None:
        self._ended = True

    def _watch(self, fd: int, act) -> None:
        self._selector.register(fd, selectors.EVENT_READ, act)
        self._watched[fd] = act

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._selector.unregister(fd)

    # ---- the caller

    def _client_readable(self) -> None:
        try:
            data = self._client.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        for message in self._decoder.feed(data):
            try:
                getattr(self, f"_do_{message['op']}")(message)
            except JaxrlError as error:
                self._fail(message, error)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._fail(message, SandboxError("the supervisor must be able to serve a request", value=repr(error)))

    def _answer(self, message: dict, **fields) -> None:
        if message["id"] == "canary":
            self._metrics.note_canary(fields.get("result"), _CANARY[2])
            return
        self._outgoing += wire.encode({"id": message["id"], **fields})

    def _fail(self, message: dict, error: JaxrlError) -> None:
        value = None if error.value is None else str(error.value)
        self._answer(message, error={"rule": error.rule, "value": value, "remedy": error.remedy})

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._client.send(self._outgoing[: 1 << 20])]
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        if events != self._client_events:
            self._client_events = events
            fd = self._client.fileno()
            self._selector.modify(fd, events, self._watched[fd])

    # ---- requests

    def _do_run(self, message: dict) -> None:
        """Run one program: it waits for its turn first, then for a sandbox, and gives both back."""
        request = {"stdin": message["stdin"], "args": message["args"]}
        arrived = time.monotonic()

        def granted(release) -> None:
            def failed(error: SandboxError) -> None:
                release()
                self._metrics.errors += 1
                self._fail(message, error)

            def opened(session: Session) -> None:
                def done(outcome: dict) -> None:
                    release()
                    self._metrics.note(outcome["result"], time.monotonic() - arrived)
                    self._answer(message, **outcome)
                    self._close(session)

                self._begin(session, Call(request, session.limits, done, failed))

            self._open(message, opened, failed)

        self._queue_for_turn(granted)

    def _do_open(self, message: dict) -> None:
        """Open a worker; a handler is made at once, under the worker's limits."""

        def failed(error: SandboxError) -> None:
            self._metrics.errors += 1
            self._fail(message, error)

        def opened(session: Session) -> None:
            def made(outcome: dict) -> None:
                result = outcome["result"]
                if result["status"] == "ok":
                    self._workers[message["worker"]] = session
                    self._answer(message, ok=True, tier=session.tier)
                    return
                self._close(session)
                text = f"{result['reason']}\n{result['stderr']}".strip()
                failed(SandboxError(f"a {session.kind} worker must come up", value=text))

            if session.kind == "code":
                self._workers[message["worker"]] = session
                self._answer(message, ok=True, tier=session.tier)
            else:
                self._begin(session, Call({}, session.limits, made, failed))

        self._open(message, opened, failed)

    def _do_call(self, message: dict) -> None:
        session = self._usable(message["worker"])
        arrived = time.monotonic()
        limits = Limits(**message["limits"]) if message["limits"] else session.limits

        def granted(release) -> None:
            def done(outcome: dict) -> None:
                release()
                self._metrics.note(outcome["result"], time.monotonic() - arrived)
                self._answer(message, **outcome)

            def failed(error: SandboxError) -> None:
                release()
                self._metrics.errors += 1
                self._fail(message, error)

            try:
                self._begin(self._usable(message["worker"]), Call(message["request"], limits, done, failed))
            except SandboxError as error:
                failed(error)

        self._queue_for_turn(granted)

    def _usable(self, worker: int) -> Session:
        session = self._workers.get(worker)
        if session is None or session.sandbox.killed or session.sandbox.dead:
            raise SandboxError("worker is gone", remedy="Open another one.")
        if session.call is not None:
            raise SandboxError("worker is busy", remedy="Wait for its answer, or open another one.")
        return session

    def _do_close(self, message: dict) -> None:
        session = self._workers.pop(message["worker"], None)
        if session is not None:
            self._close(session)
        self._answer(message, ok=True)

    def _do_metrics(self, message: dict) -> None:
        report = self._metrics.report(self._pool, running=len(self._running), queued=len(self._queue))
        self._answer(message, metrics=report)

    def _do_info(self, message: dict) -> None:
        launcher = self._launcher
        info = {"tier": launcher.tier, "meter": launcher.meters.kind, "bwrap": launcher.bwrap, "pid": os.getpid()}
        info |= {"interpreter": launcher.interpreter, "slot_users": launcher.as_root}
        self._answer(message, info=info | {"counts_processes": launcher.counts_processes})

    def _run_canary(self) -> None:
        """Run a program with a known answer through everything that a caller's takes."""
        message = {"id": "canary", "program": _CANARY[0], "stdin": _CANARY[1], "args": [], "files": {}}
        self._do_run({**message, "kind": "code", "setup": {"program": _CANARY[0]}, "limits": {}})

    # ---- sessions

    def _queue_for_turn(self, granted) -> None:
        """Call `granted(release)` when fewer calls than `workers` are under way."""
        self._queue.append(granted)
        self._next_turn()

    def _next_turn(self) -> None:
        while self._queue and self._turns < self._options["workers"]:
            self._turns += 1
            given_back = []

            def release(given_back=given_back) -> None:
                if not given_back:
                    given_back.append(True)
                    self._turns -= 1
                    self._next_turn()

            self._queue.popleft()(release)

    def _open(self, message: dict, opened, failed) -> None:
        """Make a session on a fresh sandbox."""
        limits = Limits(**message["limits"])
        try:
            files, bound, binds = self._files(message["files"], limits)
        except OSError as error:
            failed(SandboxError("files for a sandbox must be readable", value=str(error)))
            return
        session = Session(
            kind=message["kind"],
            setup=message["setup"],
            files=files,
            bound=bound,
            limits=limits,
            watch=self._watch,
            unwatch=self._unwatch,
        )
        session.tier, session.counts_processes = self._launcher.tier, self._launcher.counts_processes

        def taken(box: Sandbox | SandboxError) -> None:
            if isinstance(box, SandboxError):
                session.close_streams()
                failed(box)
            else:
                session.prepare(box, lambda: opened(session), failed)

        self._pool.take(Profile(disk_mb=limits.disk_mb, binds=tuple(binds)), taken)

    def _files(self, files: dict, limits: Limits) -> tuple[list, dict[str, str], list[tuple[str, str]]]:
        """Sort files into those copied in (name, descriptor) and those bound in (name -> path; source, target)."""
        copied, bound, binds = [], {}, []
        for name, file in files.items():
            if "bytes" in file:
                copied.append((name, sealed_file(base64.b64decode(file["bytes"]))))
                continue
            path = os.path.realpath(file["path"])
            small = os.path.isfile(path) and os.path.getsize(path) <= min(COPIED_BYTES, limits.disk_mb * MIB // 2)
            if small or (self._launcher.as_root and not bubblewrap.readable_by_others(path)):
                copied.append((name, os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
            else:
                bound[name] = f"/files/{name}"
                binds.append((path, bound[name]))
        return copied, bound, binds

    def _begin(self, session: Session, call: Call) -> None:
        self._running.add(session)
        try:
            session.begin(call)
        except OSError as error:
            self._running.discard(session)
            session.sandbox.kill()
            session.give_up(SandboxError("a call must get its descriptors", value=str(error)))

    def _close(self, session: Session) -> None:
        self._running.discard(session)
        session.sandbox.kill()
        session.give_up(SandboxError("worker was closed"))

    def _sandbox_event(self, box: Sandbox, message: bytes | None) -> None:
        session = box.owner
        if session is None:
            return
        if message is None:
            session.gone()
        else:
            event = json.loads(message)
            if event["event"] == "set":
                session.on_set()
            else:
                session.ended(event)
        if session.call is None:
            self._running.discard(session)


def main() -> None:
    """Run a supervisor on the socket and for the parent that the command line names."""
    options = json.loads(sys.argv[1])
    # Each sandbox takes a handful of descriptors here; 1024, the usual soft limit, is too few for 256 of them.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    client = socket.socket(fileno=options["fd"])
    client.set_inheritable(False)
    try:
        supervisor = Supervisor(client, options["parent"], options)
    except (JaxrlError, OSError) as error:
        rule, remedy = (error.rule, error.remedy) if isinstance(error, JaxrlError) else (str(error), "")
        client.setblocking(True)
        client.sendall(wire.encode({"id": "start", "error": {"rule": rule, "value": None, "remedy": remedy}}))
        return
    try:
        supervisor.serve()
    finally:
        shutil.rmtree(options["run_folder"], ignore_errors=True)
