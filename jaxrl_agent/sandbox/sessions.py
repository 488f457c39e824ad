"""One candidate or one episode on one sandbox: its calls, their streams and limits, and what is made of their ends."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.launch import Sandbox, sealed_file
from jaxrl_agent.sandbox.results import MIB, PRECEDENCE, Limits, Result, Status

MOST_FILES = 20_000
LOOK_SECONDS, SHORTEST_LOOK_SECONDS = 0.02, 0.002
_REPLY_HEADER = 4
_BLOCK = 1 << 16
# A cgroup holds process 1 as well; an address space gives out first, which a program can report itself.
_CGROUP_SLACK = 24 * MIB
_KINDS = pathlib.Path(__file__).parent / "inside"

# How an interpreter says that its address space is used up.
_NO_MEMORY = re.compile(r"MemoryError\b|OSError: \[Errno 12\]")

Violation = tuple[Status, str]


class Stream:
    """One pipe that a program writes to; at most `limit` bytes are kept, all are counted."""

    def __init__(self, fd: int, limit: int):
        self.fd, self.limit, self.data, self.total = fd, limit, bytearray(), 0
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take what is there, up to the first byte over the limit; False when nothing more can come."""
        while self.total <= self.limit:
            try:
                block = os.read(self.fd, _BLOCK)
            except BlockingIOError:
                return True
            if not block:
                return False
            self.total += len(block)
            self.data += block[: self.limit - len(self.data)]
        return True

    @property
    def over(self) -> bool:
        """Whether more came than may be kept."""
        return self.total > self.limit

    def text(self) -> str:
        """Decode what was kept."""
        return self.data.decode("utf-8", "replace")

    def clear(self) -> None:
        """Begin anew, for the next call."""
        self.data, self.total = bytearray(), 0


@dataclasses.dataclass
class Call:
    """One run of a program, or one request to a handler."""

    request: dict[str, Any]
    limits: Limits
    done: Callable[[dict], None]
    failed: Callable[[SandboxError], None]
    started: float = 0.0
    cpu_before: float = 0.0
    cpu_seen: float = 0.0
    memory_seen: int = 0
    looked: float = 0.0
    violations: list[Violation] = dataclasses.field(default_factory=list)


class Session:
    """The supervisor's side of one worker.

    Args:
        kind: "code", or the name of a module of `inside/` with a `Handler`.
        setup: the program, or what the handler is made of.
        files: (name, descriptor) of files that are copied in.
        bound: name -> path inside of files that are bound in.
        limits: of its set-up, and of calls that bring none.
        watch, unwatch: register a descriptor with the supervisor's loop, or take it out.
    """

    def __init__(self, *, kind: str, setup: dict, files, bound: dict[str, str], limits: Limits, watch, unwatch):
        self.kind, self.setup, self.files, self.bound, self.limits = kind, setup, files, bound, limits
        self._watch, self._unwatch = watch, unwatch
        self.sandbox: Sandbox | None = None
        self.call: Call | None = None
        self.tier, self.counts_processes = "ns", True
        self.look_at = 0.0
        self._on_set: Callable[[], None] | None = None
        self._on_failed: Callable[[SandboxError], None] | None = None
        self._streams: dict[str, Stream] = {}
        self._requests: socket.socket | None = None

    # ---- orders

    def prepare(self, sandbox: Sandbox, on_set: Callable[[], None], on_failed: Callable[[SandboxError], None]) -> None:
        """Send what is to be run; `on_set` or `on_failed` follows."""
        self.sandbox, self._on_set, self._on_failed = sandbox, on_set, on_failed
        sandbox.owner = self
        module = "" if self.kind == "code" else (_KINDS / f"{self.kind}.py").read_text()
        names = [name for name, _ in self.files]
        text = {"kind": self.kind, "module": module, "setup": self.setup, "names": names, "bound": self.bound}
        sandbox.order("setup", text, [fd for _, fd in self.files])
        self.files = []

    def begin(self, call: Call) -> None:
        """Start a call; its `done` follows."""
        self.call = call
        meter = self.sandbox.meter
        memory = call.limits.memory_mb * MIB
        slack = min(_CGROUP_SLACK, memory // 12) if meter.enforced else 0
        meter.limit(memory + slack, call.limits.processes)
        self.look_at = time.monotonic() + LOOK_SECONDS
        call.cpu_before = meter.cpu_s()
        call.started = call.looked = time.monotonic()
        if self.kind == "code":
            self._start(sealed_file(call.request.get("stdin", "").encode("utf-8", "surrogatepass")), [])
        elif self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            reader, writer = os.pipe()
            self._add("replies", reader, 2 * call.limits.output_bytes + 4096)
            self._start(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), [theirs.detach(), writer])
        else:
            self._ask(call)

    def _start(self, stdin: int, more: list[int]) -> None:
        call = self.call
        ends = {name: os.pipe() for name in ("stdout", "stderr")}
        limits = {**call.limits.to_json(), "count_processes": self.counts_processes}
        limits["disk_mb"] = min(call.limits.disk_mb, self.limits.disk_mb)
        order = {"limits": limits, "base_bytes": self.sandbox.base_bytes, "args": call.request.get("args", [])}
        for name, (reader, _) in ends.items():
            self._add(name, reader, call.limits.output_bytes)
        self.sandbox.order("start", order, [stdin, *(writer for _, writer in ends.values()), *more])

    def _ask(self, call: Call) -> None:
        for name, stream in self._streams.items():
            stream.clear()
            stream.limit = call.limits.output_bytes * (2 if name == "replies" else 1) + 4096 * (name == "replies")
        text = sealed_file(json.dumps(call.request).encode())
        try:
            socket.send_fds(self._requests, [b"request"], [text])
        except OSError:
            self.sandbox.kill()
        finally:
            os.close(text)

    def _add(self, name: str, fd: int, limit: int) -> None:
        stream = self._streams[name] = Stream(fd, limit)
        self._watch(fd, lambda: self._readable(name, stream))

    # ---- events

    def _readable(self, name: str, stream: Stream) -> None:
        if not stream.read():
            self._unwatch(stream.fd)
        if stream.over:
            self._unwatch(stream.fd)
            self.stop(Status.OUTPUT_LIMIT, f"more than {stream.limit} bytes of output ({name})")
        elif name == "replies":
            self._take_reply(stream)

    def _take_reply(self, stream: Stream) -> None:
        size = int.from_bytes(stream.data[:_REPLY_HEADER], "big")
        if len(stream.data) < _REPLY_HEADER or len(stream.data) < _REPLY_HEADER + size or self.call is None:
            return
        reply = bytes(stream.data[_REPLY_HEADER : _REPLY_HEADER + size]).decode("utf-8", "replace")
        stream.clear()
        for other in ("stdout", "stderr"):
            self._streams[other].read()
        self.finish({"code": 0, "signal": None, "reply": reply})

    def tick(self, now: float) -> None:
        """Look at the running call's clock, CPU time, memory, processes and files."""
        call, meter = self.call, self.sandbox.meter
        if call is None or call.violations:
            self.look_at = now + LOOK_SECONDS
            return
        if now - call.started > call.limits.wall_limit_s:
            self.stop(Status.TIME_LIMIT, f"more than {call.limits.wall_limit_s:g} s on the clock")
        usage = meter.usage()
        self._plan_next_look(now, usage.memory_bytes)
        call.cpu_seen = max(call.cpu_seen, usage.cpu_s - call.cpu_before)
        if call.cpu_seen > call.limits.cpu_s:
            self.stop(Status.TIME_LIMIT, f"more than {call.limits.cpu_s:g} s of CPU time")
        if meter.out_of_memory() or (usage.memory_bytes > call.limits.memory_mb * MIB and not meter.enforced):
            self.stop(Status.MEMORY_LIMIT, f"more than {call.limits.memory_mb} MiB of memory")
        if usage.processes > call.limits.processes + 8:
            self.stop(Status.RUNTIME_ERROR, f"more than {call.limits.processes} processes")
        if self.sandbox.writable_usage()[1] > MOST_FILES:
            self.stop(Status.MEMORY_LIMIT, f"more than {MOST_FILES} files")

    def _plan_next_look(self, now: float, memory: int) -> None:
        """Look again before the memory can be used up, if it goes on growing as it has since the last look."""
        call, wait = self.call, LOOK_SECONDS
        grown, left = memory - call.memory_seen, call.limits.memory_mb * MIB - memory
        if not self.sandbox.meter.enforced and grown > 0:
            wait = min(wait, left / grown * (now - call.looked) / 3)
        # A look at a large group takes long, and must leave time for others.
        wait = max(wait, SHORTEST_LOOK_SECONDS, 2 * (time.monotonic() - now))
        call.memory_seen, call.looked, self.look_at = memory, now, time.monotonic() + wait

    def stop(self, status: Status, reason: str) -> None:
        """Note a violation and kill the sandbox; the call's end follows when no process is left."""
        if self.call is not None:
            self.call.violations.append((status, reason))
        self.sandbox.kill()

    def on_set(self) -> None:
        """Take process 1's word that everything is in place."""
        act, self._on_set, self._on_failed = self._on_set, None, None
        act()

    def gone(self) -> None:
        """Take note that no process of the sandbox is left."""
        self._drain()
        call = self.call
        if call is not None and (call.violations or self.sandbox.meter.out_of_memory()):
            self.finish({})
        self.give_up(SandboxError("a sandbox must not end by itself", value=self.sandbox.log_text() or "no message"))

    def give_up(self, error: SandboxError) -> None:
        """Answer whoever still waits with an error, and close everything."""
        call, self.call = self.call, None
        waiting, self._on_set, self._on_failed = self._on_failed, None, None
        self.close_streams()
        if call is not None:
            call.failed(error)
        elif waiting is not None:
            waiting(error)

    def _drain(self) -> None:
        for stream in self._streams.values():
            stream.read()
            if stream.over and self.call is not None:
                self.call.violations.append((Status.OUTPUT_LIMIT, f"more than {stream.limit} bytes of output"))

    def ended(self, event: dict) -> None:
        """Take process 1's report that the fork has ended and nothing is left of it."""
        self._drain()
        if self.kind != "code":
            # Its last reply may be there still; a handler that ends takes its worker with it.
            if "replies" in self._streams:
                self._take_reply(self._streams["replies"])
            if self.call is not None:
                self.call.violations.append((Status.RUNTIME_ERROR, "the handler ended"))
            self.sandbox.kill()
        if self.call is not None:
            self.finish(event)

    def finish(self, event: dict) -> None:
        """Answer the running call."""
        call, self.call = self.call, None
        outcome = self._outcome(call, event)
        if self.kind == "code":
            self.close_streams()
        call.done(outcome)

    def close_streams(self) -> None:
        """Close this side of all pipes and sockets."""
        for stream in self._streams.values():
            self._unwatch(stream.fd)
            os.close(stream.fd)
        self._streams = {}
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        for _, fd in self.files:
            os.close(fd)
        self.files = []

    def _outcome(self, call: Call, event: dict) -> dict:
        # Process 1 has timed the fork itself: a supervisor that was late makes no program late.
        wall = min(time.monotonic() - call.started, event.get("wall_s", float("inf")))
        meter = self.sandbox.meter
        peak = meter.peak_bytes() if meter.enforced else max(meter.peak_bytes(), event.get("peak_bytes", 0))
        cpu = max(event.get("cpu_s", 0.0), call.cpu_seen)
        if meter.enforced or "reply" in event:
            cpu = max(cpu, meter.cpu_s() - call.cpu_before)
        value, stderr = None, self._streams["stderr"].text()
        if "reply" in event:
            frame = json.loads(event["reply"])
            value = frame.get("value")
            if "memory" in frame:
                call.violations.append((Status.MEMORY_LIMIT, "MemoryError"))
            if "error" in frame:
                stderr += frame["error"]
                call.violations.append((Status.RUNTIME_ERROR, frame["error"].strip().rpartition("\n")[2]))
        status, reason = judge_end(call, event, stderr, wall, cpu, meter.out_of_memory())
        result = Result(
            status=status,
            stdout=self._streams["stdout"].text(),
            stderr=stderr,
            truncated=any(stream.over for stream in self._streams.values()),
            exit_code=event.get("code"),
            signal=event.get("signal"),
            wall_s=wall,
            cpu_s=cpu,
            peak_mem_bytes=peak,
            reason=reason,
            tier=self.tier,
        )
        return {"result": dataclasses.asdict(result), "value": value if status is Status.OK else None}


def judge_end(call: Call, event: dict, stderr: str, wall_s: float, cpu_s: float, out_of_memory: bool) -> Violation:
    """Name how a call ended: the first of `PRECEDENCE` that applies, with one line for people."""
    found = list(call.violations)
    number, code = event.get("signal"), event.get("code")
    if number == signal.SIGSYS:
        found.append((Status.SECURITY_VIOLATION, "a forbidden system call"))
    last = stderr.strip().rpartition("\n")[2]
    if out_of_memory or (code and _NO_MEMORY.match(last)):
        found.append((Status.MEMORY_LIMIT, f"more than {call.limits.memory_mb} MiB of memory"))
    if number == signal.SIGXCPU or cpu_s > call.limits.cpu_s:
        found.append((Status.TIME_LIMIT, f"more than {call.limits.cpu_s:g} s of CPU time"))
    if wall_s > call.limits.wall_limit_s:
        found.append((Status.TIME_LIMIT, f"more than {call.limits.wall_limit_s:g} s on the clock"))
    if number is not None:
        found.append((Status.RUNTIME_ERROR, f"ended by signal {_signal_name(number)}"))
    elif code:
        found.append((Status.RUNTIME_ERROR, last[:200] or f"exit code {code}"))
    return min(found, key=lambda item: PRECEDENCE.index(item[0])) if found else (Status.OK, "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
