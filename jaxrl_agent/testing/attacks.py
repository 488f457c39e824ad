"""Hostile programs, each harmless outside a sandbox: every loop, fork, allocation and write in them is bounded.

`python -m jaxrl_agent.testing.attacks` runs them all in a sandbox and writes the failures as JSON; tests do so as
another user. The standard library is enough for it.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys

from jaxrl_agent import sandbox
from jaxrl_agent.sandbox import Limits, Result, Status

CORRECT, STDIN, ANSWER = "print(int(input()) * 2)", "21\n", "42\n"
USUAL, SHORT = Limits(cpu_s=2.0, wall_s=4.0), Limits(cpu_s=0.5, wall_s=1.0)
# Getting memory takes a loaded host long.
PATIENT = Limits(cpu_s=2.0, wall_s=15.0)


@dataclasses.dataclass(frozen=True)
class Attack:
    """One program, the outcomes that are allowed, and what its output must be where the outcome is `ok`."""

    name: str
    program: str
    statuses: tuple[Status, ...]
    stdout: str | None = None
    limits: Limits = USUAL
    longest_s: float | None = None

    def complaint(self, result: Result, *, memory_slack: float = 1.1) -> str:
        """Say what is wrong with a result; empty if nothing is. Memory may reach `memory_slack` times its limit."""
        if result.status not in self.statuses:
            return f"{self.name}: {result}"
        if result.status is Status.OK and self.stdout is not None and result.stdout != self.stdout:
            return f"{self.name}: wrote {result.stdout[:200]!r}"
        if result.wall_s > (self.longest_s or self.limits.wall_limit_s) + 0.5:
            return f"{self.name}: took {result.wall_s:.2f} s"
        if result.peak_mem_bytes > memory_slack * (self.limits.memory_mb << 20):
            return f"{self.name}: held {result.peak_mem_bytes} bytes"
        if max(len(result.stdout), len(result.stderr)) > self.limits.output_bytes:
            return f"{self.name}: too much output was kept"
        return ""


OK, ERROR, TIME, MEMORY = Status.OK, Status.RUNTIME_ERROR, Status.TIME_LIMIT, Status.MEMORY_LIMIT
OUTPUT, VIOLATION = Status.OUTPUT_LIMIT, Status.SECURITY_VIOLATION

ATTACKS = (
    Attack("leaves with code 0 before it answers", "import os\nos._exit(0)", (OK,), ""),
    Attack(
        "claims a verdict on every descriptor it can find",
        """
import json, os, sys
verdict = json.dumps({"event": "exit", "code": 0, "status": "ok", "value": 42}).encode()
for fd in range(1, 64):
    for data in (verdict, len(verdict).to_bytes(4, "big") + verdict):
        try:
            os.write(fd, data)
        except OSError:
            pass
sys.exit(3)
""",
        (ERROR,),
    ),
    Attack(
        "finds no descriptor but its three streams",
        """
import os
found = []
for fd in range(3, 1024):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(found)
""",
        (OK,),
        "[]\n",
    ),
    Attack(
        "searches files for what should be hidden",
        """
import os
readable = []
for top in ("/etc", "/home", "/root", "/work", "/mnt", "/opt", "/srv", "/var", "/run", "/proc", "/sys", "/tmp"):
    for folder, _, names in os.walk(top):
        readable += [os.path.join(folder, name) for name in names]
print([path for path in readable if path not in ("/tmp/box/main.py", "/tmp/stdin")])
""",
        (OK,),
        "[]\n",
    ),
    Attack(
        "reads processes and the kernel",
        """
leaks = []
for path in ("/proc/1/environ", "/proc/1/maps", "/proc/self/status", "/proc/kcore", "/sys/kernel/vmcoreinfo"):
    try:
        open(path, "rb").read(1)
        leaks.append(path)
    except OSError:
        pass
print(leaks)
""",
        (OK,),
        "[]\n",
    ),
    Attack(
        "ignores signals and swallows exceptions in a busy loop",
        """
import signal, time
for number in signal.valid_signals():
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
end = time.monotonic() + 30
while time.monotonic() < end:
    try:
        while time.monotonic() < end:
            pass
    except BaseException:
        pass
""",
        (TIME,),
        limits=SHORT,
    ),
    Attack(
        "burns CPU in many processes, none of them for long",
        """
import os, time
for _ in range(16):
    if os.fork() == 0:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            pass
        os._exit(0)
for _ in range(16):
    os.wait()
""",
        (TIME,),
        limits=Limits(cpu_s=1.0, wall_s=6.0),
    ),
    Attack("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", (TIME,), limits=SHORT),
    Attack("sleeps", "import time\ntime.sleep(30)", (TIME,), limits=SHORT),
    Attack(
        "takes too much memory",
        "x = []\nfor _ in range(40): x.append(bytearray(b'x') * (50 << 20))",
        (MEMORY,),
        limits=PATIENT,
    ),
    Attack(
        "takes too much memory in pieces, each in a process of its own",
        """
import os, time
for _ in range(10):
    if os.fork() == 0:
        block = bytearray(b"y") * (100 << 20)
        time.sleep(5)
        os._exit(0)
for _ in range(10):
    os.wait()
print("all of them")
""",
        (MEMORY, ERROR),
        limits=PATIENT,
    ),
    Attack(
        "takes memory that no process maps",
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(319, b"hidden", 0) if os.uname().machine == "x86_64" else -1)
""",
        (OK,),
        "-1\n",
    ),
    Attack(
        "fills every place that can be written",
        """
import os
total, block = 0, b"z" * (1 << 20)
for place in ("/tmp", "/box", "/dev/shm", "/var/tmp", "/", "/dev", "/usr"):
    for number in range(4):
        try:
            with open(f"{place}/fill{number}", "wb", 0) as file:
                for _ in range(80):
                    total += file.write(block)
        except OSError:
            pass
print(total <= 64 << 20)
""",
        (OK,),
        "True\n",
    ),
    Attack(
        "makes a file with a hole of a gigabyte",
        """
try:
    with open("hole", "wb") as file:
        file.truncate(1 << 30)
    print("made")
except OSError:
    print("refused")
""",
        (OK,),
        "refused\n",
    ),
    Attack(
        "makes files without end",
        "for number in range(200_000): open(f'/tmp/{number}', 'w').close()\nprint('all')",
        (MEMORY, ERROR, TIME),
    ),
    Attack(
        "forks as often as it may",
        """
import os, time
count = 0
for _ in range(300):
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    except OSError:
        break
    count += 1
print(count <= 64)
""",
        (OK,),
        "True\n",
        longest_s=2.0,
    ),
    Attack(
        "leaves a daemon that holds its output open",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(20)
    os._exit(0)
os.wait()
print(42)
""",
        (OK,),
        "42\n",
        longest_s=0.5,
    ),
    Attack("floods standard output", "import os\nfor _ in range(3000): os.write(1, b'o' * 65536)", (OUTPUT,)),
    Attack("floods standard error", "import os\nfor _ in range(3000): os.write(2, b'e' * 65536)", (OUTPUT,)),
    Attack(
        "opens sockets of every family",
        """
import socket
made = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
            made.append((family, kind))
        except OSError:
            pass
try:
    socket.socketpair()
    made.append("pair")
except OSError:
    pass
print(made)
""",
        (OK,),
        "[]\n",
    ),
    Attack(
        "signals process 1, its parent and everything else",
        """
import os, signal
for target in (1, os.getppid(), -1):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(target, number)
        except OSError:
            pass
print(42)
""",
        (OK,),
        "42\n",
    ),
    Attack(
        "looks for what an earlier run has left",
        """
import builtins, os
left = [name for name in dir(builtins) if name == "trace"]
builtins.trace = True
paths = {os.path.realpath(os.path.join(folder, "trace")) for folder in (".", "/tmp", "/dev/shm", "/var/tmp")}
left += [path for path in paths if os.path.exists(path)]
for path in paths:
    try:
        open(path, "w").close()
    except OSError:
        pass
print(left)
""",
        (OK,),
        "[]\n",
    ),
    *(
        Attack(
            f"calls {name} by number",
            f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            f"print(libc.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno() in (1, 38))",
            (VIOLATION, OK),
            "-1 True\n",
        )
        for name, number in (
            {"mount": 165, "unshare": 272, "ptrace": 101, "bpf": 321, "keyctl": 250, "io_uring_setup": 425}
            | {"userfaultfd": 323, "perf_event_open": 298, "process_vm_readv": 310, "shmget": 29, "personality": 135}
        ).items()
        if platform.machine() == "x86_64"
    ),
    Attack(
        "asks clone for a namespace",
        "import ctypes, os\nnumber = 56 if os.uname().machine == 'x86_64' else 220\n"
        "print(ctypes.CDLL(None).syscall(number, 0x10000011, 0, 0, 0, 0))",
        (VIOLATION,),
    ),
    Attack("overflows the native stack", "import faulthandler\nfaulthandler._stack_overflow()", (ERROR, MEMORY)),
    Attack("closes its output", "import os\nos.close(1)\nos.close(2)\nprint(42)", (ERROR, OK), ""),
    Attack("defeats the exception hook", "import sys\nsys.excepthook = None\nsys.stderr = None\n1 / 0", (ERROR,)),
    Attack("nests beyond the compiler", "(" * 5000 + ")" * 5000, (ERROR, MEMORY)),
    Attack("is no Python", "\0 \ud800 \U0010ffff", (ERROR,)),
)


def main() -> None:
    """Run every attack, then a correct program; print what failed."""
    sandbox.configure(workers=3)
    tier = sandbox.probe().tier
    complaints = []
    for attack, result in zip(ATTACKS, sandbox.run_programs(arguments_of(attack) for attack in ATTACKS), strict=True):
        # Without cgroups, on a host with more to do than cores, a group is seen late.
        complaints.append(attack.complaint(result, memory_slack=1.3))
    last = sandbox.run_program(CORRECT, stdin=STDIN)
    sandbox.shutdown()
    json.dump({"tier": tier, "failed": [text for text in complaints if text], "correct": last.stdout}, sys.stdout)


def arguments_of(attack: Attack) -> dict:
    """Give the arguments of `run_program` for an attack."""
    return {"program": attack.program, "stdin": STDIN, "limits": attack.limits}


if __name__ == "__main__":
    main()
