"""Real attempts at what a sandbox must prevent, made in throw-away sandboxes before anything else is run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import tempfile
from typing import Any

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.results import Limits, Result, Status

_PROCESSES = 16
_ATTEMPTS = """
import json, os, sys
path, secret, port, name, outside = sys.argv[1:]
tried = {}
try:
    tried["a file outside stays unread"] = secret not in open(path).read()
except OSError:
    tried["a file outside stays unread"] = True
import socket
reached = False
for family, address in ((socket.AF_INET, ("127.0.0.1", int(port))), (socket.AF_UNIX, chr(0) + name)):
    try:
        socket.socket(family).connect(address)
        reached = True
    except OSError:
        pass
tried["no listener outside is reached"] = not reached
try:
    os.kill(int(outside), 0)
    tried["no process outside can be signalled"] = False
except OSError:
    tried["no process outside can be signalled"] = True
try:
    open("/usr/bin/jaxrl_probe", "w")
    tried["/usr stays unchanged"] = False
except OSError:
    tried["/usr stays unchanged"] = True
print(json.dumps(tried))
"""
_FORKS = """
import os, sys, time
if input() == "fork":
    for _ in range(60):
        try:
            child = os.fork()
            if child == 0:
                os.setsid()
                time.sleep(30)
                os._exit(0)
        except OSError:
            break
        print(child)
else:
    for pid in sys.argv[1:]:
        try:
            os.kill(int(pid), 0)
            print("left")
        except OSError:
            pass
"""
_MEMORY = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        block = bytearray(b"x") * (48 << 20)
        time.sleep(5)
        os._exit(0)
for _ in range(4):
    os.wait()
"""


@dataclasses.dataclass(frozen=True)
class Probe:
    """What was found.

    Attributes:
        tier: "ns", "lsm" or "none".
        checks: attempt -> whether the sandbox held; empty for tier "none".
        info: bubblewrap, interpreter, what memory is limited by.
    """

    tier: str
    checks: dict[str, bool]
    info: dict[str, Any]


def run(client) -> Probe:
    """Try everything on a client's supervisor.

    Raises:
        SandboxError: a sandbox does not start, or an attempt got through.
    """
    info = client.request("info").result()["info"]
    if client.tier == "none":
        return Probe("none", {}, info)
    checks = {}
    memory = _program(client, _MEMORY, limits=Limits(memory_mb=96, wall_s=5.0))
    checks |= _reach(client)
    checks |= _forks(client, info["counts_processes"])
    checks["memory of many processes together is limited"] = _result(memory).status is Status.MEMORY_LIMIT
    for step, held in checks.items():
        if not held:
            raise SandboxError(
                f"in a sandbox of tier {client.tier}, {step}",
                value="it failed",
                remedy="Do not run model-written code on this host before the cause is found; "
                "a host or VM with user namespaces and bubblewrap 0.8 or newer gives tier ns.",
            )
    return Probe(client.tier, checks, info)


def _program(client, program: str, *, stdin: str = "", args: list[str] | None = None, limits: Limits):
    setup = {"kind": "code", "setup": {"program": program}, "files": {}, "limits": limits.to_json()}
    return client.request("run", stdin=stdin, args=args or [], **setup)


def _result(future) -> Result:
    return Result.from_json(future.result()["result"])


def _reach(client) -> dict[str, bool]:
    secret, name = secrets.token_hex(8), f"jaxrl_probe_{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile("w"))
        file.write(secret)
        file.flush()
        os.chmod(file.name, 0o644)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind("\0" + name)
        unix.listen()
        args = [file.name, secret, str(tcp.getsockname()[1]), name, str(os.getpid())]
        result = _result(_program(client, _ATTEMPTS, args=args, limits=Limits()))
        checks = {"a program runs": result.status is Status.OK}
        if result.status is Status.OK:
            checks |= json.loads(result.stdout)
        else:
            raise SandboxError("a first program must run", value=f"{result.reason}\n{result.stderr}".strip())
        for listener in (tcp, unix):
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                checks["no listener outside is reached"] = False
    return checks


def _forks(client, counted: bool) -> dict[str, bool]:
    worker, limits = client.worker_id(), Limits(processes=_PROCESSES, wall_s=5.0)
    setup = {"kind": "code", "setup": {"program": _FORKS}, "files": {}, "limits": limits.to_json()}
    client.request("open", worker=worker, **setup).result()
    try:
        first = _result(client.request("call", worker=worker, request={"stdin": "fork"}, limits=None))
        forked = first.stdout.split()
        look = {"stdin": "look", "args": forked}
        second = _result(client.request("call", worker=worker, request=look, limits=None))
    finally:
        client.request("close", worker=worker).result()
    return {
        "the number of processes is limited": 0 < len(forked) <= _PROCESSES or not counted,
        "no process outlives its run": bool(forked) and second.status is Status.OK and not second.stdout,
    }
