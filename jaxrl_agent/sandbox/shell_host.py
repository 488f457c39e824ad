"""The keeper of one shell episode: a process of its own that launches the sandbox, enforces limits and ends it.

It runs one thread, imports the standard library alone, and dies with its caller; when it dies, bubblewrap and with it
the whole episode die too. One line of JSON as `sys.argv[1]` configures it; requests and answers are frames on a socket.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator

from jaxrl_agent.errors import JaxrlError, SandboxError
from jaxrl_agent.sandbox import wire
from jaxrl_agent.sandbox.bubblewrap import Profile
from jaxrl_agent.sandbox.launch import sealed_file
from jaxrl_agent.sandbox.results import MIB, Limits, Result, Status
from jaxrl_agent.sandbox.sessions import Call, Stream, judge_end
from jaxrl_agent.sandbox.shell_root import Plan, ShellLauncher

START_SECONDS, KILL_SECONDS = 20.0, 3.0
TICK_SECONDS = 0.02
MOST_SHELLS = 400
_SUBREAPER = 36
# Process 1 and bubblewrap's own process are members of the group.
_GROUP_SLACK = 32 * MIB


class Host:
    """Serves one caller with one episode.

    Args:
        caller: socket to the caller.
        options: `parent`, `run_folder`, `bwrap`, `cgroups`, `plan`, `limits`, `lifetime_s`.
    """

    def __init__(self, caller: socket.socket, options: dict):
        self._caller, self._options = caller, options
        self._parent = os.pidfd_open(options["parent"])
        self._ends = time.monotonic() + options["lifetime_s"]
        self._limits = Limits(**options["limits"])
        plan = Plan(**{**options["plan"], "binds": tuple(map(tuple, options["plan"]["binds"]))})
        self._launch(plan)

    # ---- the sandbox

    def _launch(self, plan: Plan) -> None:
        """Start the sandbox; without /proc where the host does not let it be mounted, as in some containers."""
        options = self._options
        names = ("run_folder", "bwrap", "cgroups")
        for proc in (True, False) if plan.proc else (False,):
            chosen = dataclasses.replace(plan, proc=proc)
            self._launcher = ShellLauncher(plan=chosen, **{name: options[name] for name in names})
            box = self._box = self._launcher.launch(os.getpid() % MOST_SHELLS, Profile(disk_mb=plan.disk_mb))
            self._bound_group(self._limits)
            ready, _, _ = select.select([box.control, self._caller, self._parent], [], [], START_SECONDS)
            if ready == [box.control] and box.control.recv(4096):
                box.became_ready(namespaced=True)
                self._spare_process_1()
                return
            text = box.log_text()
            box.kill()
            os.waitpid(box.monitor, 0)
            box.release()
            if not (proc and "proc" in text):
                break
        remedy = "Overlays in user namespaces need Linux 5.11; a prepared root needs bash and /usr/bin/python3."
        raise SandboxError("a shell episode must start", value=text or "no answer", remedy=remedy)

    def _spare_process_1(self) -> None:
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/{self._box.pid}/oom_score_adj").write_text("-500")

    def _bound_group(self, limits: Limits) -> None:
        memory = (limits.memory_mb + self._launcher.plan.disk_mb) * MIB + _GROUP_SLACK
        self._box.meter.limit(memory, limits.processes)

    def _rlimits(self, limits: Limits, *, timed: bool) -> dict[str, int]:
        wanted = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self._launcher.plan.disk_mb * MIB,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_RTPRIO": 0,
        }
        if not self._box.meter.enforced:
            # Some runtimes reserve much more than they use, so this only bounds what can be had between two looks.
            wanted["RLIMIT_AS"] = 4 * limits.memory_mb * MIB
        if self._launcher.counts_processes:
            wanted["RLIMIT_NPROC"] = limits.processes + 1
        if timed:
            wanted["RLIMIT_CPU"] = int(limits.cpu_s + 0.999) + 1
        return wanted

    def _ask(self, name: str, order: dict, fds: list[int], *, seconds: float = 10.0) -> dict:
        """Give an order that takes no time of the episode's own."""
        self._box.order(name, order, fds)
        ready, _, _ = select.select([self._box.control], [], [], seconds)
        return self._heard() if ready else self._lost("process 1 must answer")

    def _heard(self) -> dict:
        try:
            message = self._box.control.recv(1 << 18)
        except OSError:
            message = b""
        if not message:
            self._lost("a shell episode must last until it is closed")
        answer = json.loads(message)
        if "error" in answer:
            raise SandboxError("an order to a shell episode must be one it can follow", value=answer["error"])
        return answer

    def _lost(self, rule: str):
        self._box.kill()
        raise EpisodeEnded(rule, self._box.meter.out_of_memory())

    def close(self) -> None:
        """Kill the episode; returns when nothing of it is left."""
        self._box.kill()
        os.waitpid(self._box.monitor, 0)
        if self._box.pidfd >= 0:
            select.select([self._box.pidfd], [], [], KILL_SECONDS)
        # Removing the group fails for a moment after its last process has ended.
        deadline = time.monotonic() + 1.0
        paths = [os.path.dirname(path) for path in self._box.meter.joins]
        self._box.release()
        while any(map(os.path.isdir, paths)) and time.monotonic() < deadline:
            time.sleep(0.005)
            self._box.meter.remove()

    # ---- requests

    def serve(self) -> None:
        """Answer requests until the caller hangs up, dies, or the episode's time is over."""
        self._answer(ready=True, proc=self._launcher.plan.proc, meter=self._launcher.meters.kind, pid=self._box.pid)
        for message in self._messages():
            try:
                self._answer(**getattr(self, f"_do_{message['op']}")(message))
            except EpisodeEnded as end:
                self._fail(end.error(), memory=end.out_of_memory, ended=True)
            except JaxrlError as error:
                self._fail(error)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._fail(SandboxError("the keeper of a shell must be able to serve a request", value=repr(error)))

    def _messages(self) -> Iterator[dict]:
        decoder = wire.Decoder()
        while (left := self._ends - time.monotonic()) > 0:
            ready, _, _ = select.select([self._caller, self._parent], [], [], left)
            if self._caller not in ready:
                return
            data = self._caller.recv(1 << 20)
            if not data:
                return
            yield from decoder.feed(data)

    def _answer(self, **fields) -> None:
        self._caller.sendall(wire.encode(fields))

    def _fail(self, error: JaxrlError, **more) -> None:
        value = error.value if isinstance(error.value, str) else None
        self._answer(error={"rule": error.rule, "value": value, "remedy": error.remedy}, **more)

    def _do_begin(self, message: dict) -> dict:
        contents = b"".join(base64.b64decode(file["bytes"]) for file in message["files"])
        entries = [[file["path"], file["size"], file["mode"]] for file in message["files"]]
        order = {"cwd": self._launcher.plan.workdir, "env": message["env"], "files": entries}
        return self._ask("begin", order, [sealed_file(contents)], seconds=60.0)

    def _do_service(self, message: dict) -> dict:
        order = {"name": message["name"], "log": message["log"], "limits": self._rlimits(self._limits, timed=False)}
        return self._ask("service", order, [os.open("/dev/null", os.O_RDONLY), command_file(message["command"])])

    def _do_stop(self, message: dict) -> dict:
        return self._ask("stop", {"name": message["name"]}, [])

    def _do_services(self, message: dict) -> dict:
        return self._ask("services", {}, [])

    def _do_quiet(self, message: dict) -> dict:
        return self._ask("quiet", {}, [])

    def _do_collect(self, message: dict) -> dict:
        self._bound_group(dataclasses.replace(self._limits, memory_mb=1 << 20))
        out = os.memfd_create("collected", os.MFD_CLOEXEC)
        try:
            order = {name: message[name] for name in ("paths", "file_bytes", "total_bytes", "files")}
            answer = self._ask("collect", order, [os.dup(out)], seconds=60.0)
            at, size = answer["index_at"], answer["index_bytes"]
            index = json.loads(os.pread(out, size, at))
            data = base64.b64encode(os.pread(out, at, 0)).decode()
        finally:
            os.close(out)
            self._bound_group(self._limits)
        return {"index": index, "data": data}

    def _do_close(self, message: dict) -> dict:
        self.close()
        return {}

    # ---- one command

    def _do_run(self, message: dict) -> dict:
        limits = Limits(**message["limits"])
        call = Call({}, limits, lambda _: None, lambda _: None)
        with contextlib.ExitStack() as stack:
            streams, ends = {}, []
            for name in ("stdout", "stderr", *(["report"] if message.get("report") else [])):
                reader, writer = os.pipe()
                stack.callback(os.close, reader)
                streams[name] = Stream(reader, limits.output_bytes)
                ends.append(writer)
            self._bound_group(limits)
            call.cpu_before = self._box.meter.cpu_s()
            call.started = time.monotonic()
            order: dict = {"limits": self._rlimits(limits, timed=True)}
            if "argv" in message:
                order["argv"] = message["argv"]
            else:
                ends.append(command_file(message["command"]))
            self._box.order("run", order, [os.open("/dev/null", os.O_RDONLY), *ends])
            event = self._watch(call, streams)
            return self._outcome(call, event, streams)

    def _watch(self, call: Call, streams: dict[str, Stream]) -> dict:
        """Read what a command writes and hold it to its limits until process 1 says that nothing is left of it."""
        waiter = select.poll()
        control = self._box.control.fileno()
        by_fd = {stream.fd: (name, stream) for name, stream in streams.items()}
        for fd in (control, self._caller.fileno(), self._parent, *by_fd):
            waiter.register(fd, select.POLLIN if fd != self._caller.fileno() else select.POLLRDHUP)
        looked, told = 0.0, 0.0
        while True:
            for fd, _ in waiter.poll(TICK_SECONDS * 1000):
                if fd == control:
                    return self._heard()
                if fd not in by_fd:
                    raise CallerGone
                name, stream = by_fd[fd]
                if not stream.read() or stream.over:
                    waiter.unregister(fd)
                if stream.over:
                    call.violations.append((Status.OUTPUT_LIMIT, f"more than {stream.limit} bytes of output ({name})"))
            now = time.monotonic()
            if now - looked > TICK_SECONDS and not call.violations:
                looked = now
                self._look(call, now)
            if call.violations and not told:
                told = now
                self._box.order("kill", {}, [])
            if told and now - told > KILL_SECONDS:
                self._lost("process 1 must end a command when told to")

    def _look(self, call: Call, now: float) -> None:
        limits, usage = call.limits, self._box.meter.usage()
        call.cpu_seen = max(call.cpu_seen, usage.cpu_s - call.cpu_before)
        if now - call.started > limits.wall_limit_s or now > self._ends:
            call.violations.append((Status.TIME_LIMIT, f"more than {limits.wall_limit_s:g} s on the clock"))
        if call.cpu_seen > limits.cpu_s:
            call.violations.append((Status.TIME_LIMIT, f"more than {limits.cpu_s:g} s of CPU time"))
        if usage.memory_bytes > limits.memory_mb * MIB and not self._box.meter.enforced:
            call.violations.append((Status.MEMORY_LIMIT, f"more than {limits.memory_mb} MiB of memory"))
        if usage.processes > limits.processes + 8:
            call.violations.append((Status.RUNTIME_ERROR, f"more than {limits.processes} processes"))

    def _outcome(self, call: Call, event: dict, streams: dict[str, Stream]) -> dict:
        wall = time.monotonic() - call.started
        for name, stream in streams.items():
            stream.read()
            if stream.over:
                call.violations.append((Status.OUTPUT_LIMIT, f"more than {stream.limit} bytes of output ({name})"))
        meter = self._box.meter
        cpu = max(event["cpu_s"], call.cpu_seen)
        stderr = streams["stderr"].text()
        status, reason = judge_end(call, event, stderr, wall, cpu, meter.out_of_memory())
        if event["lost"]:
            reason = "; ".join(filter(None, [reason, f"services ended too: {', '.join(event['lost'])}"]))
        result = Result(
            status=status,
            stdout=streams["stdout"].text(),
            stderr=stderr,
            truncated=any(stream.over for stream in streams.values()),
            exit_code=event["code"],
            signal=event["signal"],
            wall_s=wall,
            cpu_s=cpu,
            peak_mem_bytes=meter.peak_bytes(),
            reason=reason,
            tier="ns",
        )
        report = streams["report"].text() if "report" in streams else None
        return {"result": dataclasses.asdict(result), "report": report}


def command_file(command: str) -> int:
    """Give a descriptor that bash reads a command from."""
    return sealed_file(command.encode() + b"\0")


class EpisodeEnded(Exception):
    """Process 1 is gone, and with it the episode."""

    def __init__(self, rule: str, out_of_memory: bool):
        self.rule, self.out_of_memory = rule, out_of_memory
        super().__init__(rule)

    def error(self) -> SandboxError:
        """Say it to the caller."""
        return SandboxError(self.rule, value="it ended" + (" for want of memory" if self.out_of_memory else ""))


class CallerGone(Exception):
    """Nobody waits for the answer."""


def main() -> None:
    """Keep an episode for the caller that the command line names."""
    options = json.loads(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    caller = socket.socket(fileno=options["fd"])
    caller.set_inheritable(False)
    try:
        host = Host(caller, options)
    except (JaxrlError, OSError) as error:
        known = error if isinstance(error, JaxrlError) else SandboxError("a shell episode must start", value=str(error))
        value = known.value if isinstance(known.value, str) else None
        error_fields = {"rule": known.rule, "value": value, "remedy": known.remedy}
        caller.sendall(wire.encode({"error": error_fields}))
        return
    try:
        with contextlib.suppress(CallerGone, OSError):
            host.serve()
        with contextlib.suppress(OSError, ChildProcessError):
            host.close()
    finally:
        shutil.rmtree(options["run_folder"], ignore_errors=True)
