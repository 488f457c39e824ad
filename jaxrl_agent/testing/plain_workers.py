"""The sandbox's workers as plain processes, for tests of what runs in them on machines without any sandbox.

They keep time limits and nothing else, so only programs of the tests' own may run here.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxrl_agent.sandbox.inside
from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.results import Limits, Reply, Result, Status

PYTHON = ("/usr/bin/python3", "-I")
INSIDE = Path(jaxrl_agent.sandbox.inside.__file__).parent
SERVE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["worker"] = module
spec.loader.exec_module(module)
first = json.loads(sys.stdin.readline())
handler = module.Handler(first["setup"], first["files"])
for line in sys.stdin:
    print(json.dumps(handler.handle(json.loads(line)), allow_nan=False), flush=True)
"""


class PlainSession:
    """What the judge calls a session: a program that is run for each test."""

    def __init__(self, program: str, limits: Limits):
        self.program, self.limits = program, limits

    def run(self, stdin: str) -> Result:
        """Run the program once."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "main.py")
            path.write_text(self.program, encoding="utf-8")
            start = time.monotonic()
            try:
                ended = subprocess.run(
                    [*PYTHON, path],
                    input=stdin.encode(),
                    capture_output=True,
                    timeout=self.limits.wall_limit_s,
                    cwd=folder,
                )
            except subprocess.TimeoutExpired:
                return Result(Status.TIME_LIMIT, reason="time limit", tier="none")
            return Result(
                Status.OK if ended.returncode == 0 else Status.RUNTIME_ERROR,
                ended.stdout.decode("utf-8", "replace"),
                ended.stderr.decode("utf-8", "replace"),
                exit_code=ended.returncode,
                wall_s=time.monotonic() - start,
                reason="" if ended.returncode == 0 else f"exit code {ended.returncode}",
                tier="none",
            )


@contextlib.contextmanager
def plain_sessions(program: str, limits: Limits) -> Iterator[PlainSession]:
    """Stand in for `judge.sandbox_sessions`."""
    yield PlainSession(program, limits)


class PlainWorker:
    """A handler of `inside` in a process of its own, asked by lines of JSON."""

    def __init__(self, kind: str, setup: dict[str, Any], files: dict[str, Any], folder: Path):
        paths = {}
        for name, source in files.items():
            paths[name] = str(folder / name if isinstance(source, bytes) else source)
            if isinstance(source, bytes):
                Path(paths[name]).write_bytes(source)
        command = [*PYTHON, "-c", SERVE, str(INSIDE / f"{kind}.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send({"setup": setup, "files": paths})

    def _send(self, value: dict[str, Any]) -> None:
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise SandboxError("worker is gone") from error

    def call(self, request: dict[str, Any], limits: Limits | None = None) -> Reply:
        """Send one request and wait for its answer."""
        self._send(request)
        line = self.process.stdout.readline()
        if not line:
            raise SandboxError("worker is gone")
        return Reply(Result(Status.OK, tier="none"), json.loads(line))


@contextlib.contextmanager
def plain_worker(
    kind: str, *, setup: dict[str, Any], files: dict[str, Any], limits: Limits | None = None
) -> Iterator[PlainWorker]:
    """Stand in for `client.open_worker`."""
    with tempfile.TemporaryDirectory() as folder:
        worker = PlainWorker(kind, setup, files, Path(folder))
        try:
            yield worker
        finally:
            worker.process.kill()
            worker.process.communicate()
