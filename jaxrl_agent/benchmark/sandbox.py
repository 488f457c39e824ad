"""Candidates a second, each a program that is right on all of its tests, each test a run of its own in a sandbox.

    pool    `sandbox.judge_programs`: pre-warmed single-use sandboxes, one fork a test, a new sandbox for each candidate
    fresh   the yardstick: bubblewrap with the same namespaces, view and filter, and a new interpreter, for every test

Both run as many candidates at the same time, one less than there are cores, and compare each output with the expected
one. The yardstick sets no limits but one on the clock, measures nothing and kills nothing, which is less work. The size
is the number of tests of a candidate. The work is done by other processes, so rates are by the clock.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import tempfile
from pathlib import Path

from jaxrl_agent import sandbox
from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox import access, bubblewrap, seccomp
from jaxrl_agent.sandbox.bubblewrap import Profile
from jaxrl_agent.sandbox.launch import sealed_file

UNIT = "candidates"
# Shortest paths over a grid: input, containers and imports as answers to programming problems have them.
CANDIDATE = """
import sys, heapq, math, collections, itertools, functools, re, bisect

def main():
    n, *cells = map(int, sys.stdin.read().split())
    best = {0: cells[0]}
    queue = [(cells[0], 0)]
    while queue:
        cost, at = heapq.heappop(queue)
        if at == n * n - 1:
            print(cost)
            return
        if cost > best[at]:
            continue
        row, column = divmod(at, n)
        for r, c in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= r < n and 0 <= c < n and cost + cells[r * n + c] < best.get(r * n + c, math.inf):
                best[r * n + c] = cost + cells[r * n + c]
                heapq.heappush(queue, (best[r * n + c], r * n + c))

main()
"""
_SIDE = 12
_SECONDS = 20.0
_USER = 64999  # of no sandbox of a pool; only where this process is root


def contestants(
    n_tests: tuple[int, ...] = (20,), *, pool_candidates: int = 12, fresh_candidates: int = 2, peers: bool = False
) -> dict[str, Contestant]:
    """Build everything that is timed.

    Args:
        n_tests: tests of a candidate.
        pool_candidates, fresh_candidates: candidates of one run; more than the sandboxes that the pool keeps ready.
        peers: nothing more here.
    """
    built = {}
    for n in n_tests:
        tests = [_test(seed) for seed in range(n)]
        built[f"pool/{n}"] = Contestant(_pool(tests, pool_candidates), pool_candidates)
        built[f"fresh/{n}"] = Contestant(_fresh(tests, fresh_candidates), fresh_candidates)
    return built


def _test(seed: int) -> dict[str, str]:
    """A grid on which the cheapest way is the rim: its cost is known without a search."""
    inner, rim = 50 + seed, 1 + seed % 7
    ways = [[rim if 0 in (r, c) or _SIDE - 1 in (r, c) else inner for c in range(_SIDE)] for r in range(_SIDE)]
    cells = " ".join(str(cell) for row in ways for cell in row)
    return {"input": f"{_SIDE}\n{cells}\n", "output": f"{rim * (2 * _SIDE - 1)}\n"}


def _pool(tests: list[dict[str, str]], n: int):
    def run() -> None:
        for verdict in sandbox.judge_programs([(CANDIDATE, tests)] * n):
            if not verdict.ok:
                raise SandboxError("a right candidate must pass", value=verdict)

    return run


def _fresh(tests: list[dict[str, str]], n: int):
    info = access.connect().request("info").result()["info"]
    folder = tempfile.TemporaryDirectory(prefix="jaxrl_benchmark-")
    program = Path(folder.name) / "main.py"
    program.write_text(CANDIDATE)
    os.chmod(folder.name, 0o755)
    user = {"user": _USER, "group": _USER, "extra_groups": []} if os.geteuid() == 0 else {}
    uid, gid = (_USER, _USER) if user else (os.getuid(), os.getgid())
    profile = Profile(binds=((str(program), "/main.py"),))
    command = [info["interpreter"], "-I", "-S", "/main.py"]

    def candidate(_: int) -> None:
        for test in tests:
            filter_fd, null = sealed_file(seccomp.assemble()), os.open("/dev/null", os.O_WRONLY)
            fds = {"seccomp_fd": filter_fd, "info_fd": null}
            words = bubblewrap.command_line(info["bwrap"], profile, command, uid=uid, gid=gid, **fds)
            try:
                run = subprocess.run(
                    words,
                    input=test["input"],
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    pass_fds=(filter_fd, null),
                    **user,
                )
            finally:
                os.close(filter_fd)
                os.close(null)
            if (run.returncode, run.stdout) != (0, test["output"]):
                raise SandboxError("a right candidate must pass", value=run.stderr or run.stdout)

    def run() -> None:
        _ = folder  # which lives as long as this does
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
            list(pool.map(candidate, range(n)))

    return run
