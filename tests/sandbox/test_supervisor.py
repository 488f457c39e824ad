"""The machinery: deaths of supervisor, caller and sandbox; many jobs; workers; metrics."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Limits, Status, access, leftovers, memory, open_worker

PROJECT = pathlib.Path(__file__).resolve().parents[2]
SLOW_ECHO = "import time\ntime.sleep(0.6)\nprint(input())"


@pytest.fixture(autouse=True, scope="module")
def fresh_supervisor():
    sandbox.configure()
    yield
    sandbox.configure()


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def processes_of(supervisor):
    """Process ids of whatever bears a supervisor's mark."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"jaxrl-sandbox-%d-" % supervisor):
                found.append(entry.name)
    return found


# ---- deaths


def test_a_run_survives_the_supervisors_death_by_a_second_attempt():
    first = access.connect().pid
    below = memory.descendants(first)[1:]
    assert below
    killer = threading.Timer(0.2, os.kill, (first, signal.SIGKILL))
    killer.start()
    result = sandbox.run_program(SLOW_ECHO, stdin="42")
    killer.join()
    assert (result.status, result.stdout) == (Status.OK, "42\n")
    assert access.connect().pid != first
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    wait_until(lambda: not processes_of(first))


def test_a_worker_says_that_it_is_gone_when_the_supervisor_has_died():
    worker = open_worker("code", setup={"program": "print(1)"})
    assert worker.call({}).result.stdout == "1\n"
    os.kill(access.connect().pid, signal.SIGKILL)
    wait_until(lambda: not worker._client.alive)
    with pytest.raises(SandboxError):
        worker.call({})
    worker.close()
    assert sandbox.run_program("print(2)").stdout == "2\n"


def test_a_run_survives_the_death_of_its_sandbox_by_a_second_attempt():
    killed = []

    def kill_the_busy_one():
        supervisor = access.connect().pid
        for _ in range(200):
            for monitor in memory.children(supervisor):
                for first in memory.children(monitor):
                    if memory.children(first):
                        os.kill(first, signal.SIGKILL)
                        killed.append(first)
                        return
            time.sleep(0.01)

    thread = threading.Thread(target=kill_the_busy_one)
    before = sandbox.metrics()["errors"]
    thread.start()
    result = sandbox.run_program(SLOW_ECHO, stdin="42")
    thread.join()
    assert killed
    assert (result.status, result.stdout) == (Status.OK, "42\n")
    assert sandbox.metrics()["errors"] == before + 1


# A shell's background jobs ignore SIGINT, and so do all that they start; the caller is to hear it.
CALLER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxrl_agent import sandbox
from jaxrl_agent.sandbox import access
sandbox.probe()
print(access.connect().pid, flush=True)
sandbox.run_program("import time\\ntime.sleep(60)", limits=sandbox.Limits(wall_s=60.0))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_caller_that_is_killed(number):
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    supervisor = int(caller.stdout.readline())
    time.sleep(0.2)
    below = memory.descendants(supervisor)
    assert len(below) > 2
    caller.send_signal(number)
    caller.communicate(timeout=10)
    wait_until(lambda: not any(leftovers.start_time(pid) for pid in below))


def test_callers_that_end_leave_neither_processes_nor_folders(tmp_path):
    script = "from jaxrl_agent import sandbox\nfrom jaxrl_agent.sandbox import access\n"
    script += "print(sandbox.run_program('print(42)').stdout.strip(), access.connect().pid, flush=True)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(PROJECT)}
    tmp_path.chmod(0o755)
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    answer, supervisor = run.stdout.split()
    assert answer == "42"
    assert leftovers.start_time(int(supervisor)) == ""
    assert processes_of(int(supervisor)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_forked_caller_gets_a_supervisor_of_its_own():
    parent = access.connect().pid
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = b"failed"
        try:
            text = f"{sandbox.run_program('print(42)').stdout.strip()} {access.connect().pid != parent}".encode()
            sandbox.shutdown()
        finally:
            os.write(writer, text)
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"42 True"
    os.close(reader)
    assert access.connect().pid == parent


def test_leftovers_of_the_dead_are_told_from_what_belongs_to_the_living(monkeypatch, tmp_path):
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path))
    own = leftovers.make_folder()
    reused = tmp_path / f"jaxrl_sandbox-{os.getpid()}-1-abc"
    gone = tmp_path / "jaxrl_sandbox-999999999-1-abc"
    for folder in (reused, gone):
        folder.mkdir()
    second = leftovers.make_folder()
    assert sorted(map(str, tmp_path.iterdir())) == sorted([own, second])


def test_a_name_that_only_looks_like_a_leftovers_is_nobodys():
    process = subprocess.Popen(["jaxrl-sandbox-x", "60"], executable="/bin/sleep")
    try:
        leftovers.kill_orphans()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_supervisor_that_was_stopped_makes_no_program_late():
    supervisor, limits = access.connect().pid, Limits(wall_s=1.5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(sandbox.run_program, SLOW_ECHO, stdin="42", limits=limits)
        time.sleep(0.2)
        os.kill(supervisor, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(supervisor, signal.SIGCONT)
        result = future.result(20)
    assert (result.status, result.stdout) == (Status.OK, "42\n")
    assert 0.6 <= result.wall_s < 1.5


def test_few_descriptors_are_an_error_of_one_worker_and_more_are_taken_where_they_may_be():
    script = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, int(sys.argv[1])))
from jaxrl_agent import sandbox
from jaxrl_agent.errors import SandboxError
workers = []
try:
    for _ in range(24):
        workers.append(sandbox.open_worker("code", setup={"program": "print(42)"}))
except SandboxError as error:
    print("error", end=" ")
print(len(workers), end=" ")
for worker in workers[2:]:
    worker.close()
print({worker.call({"stdin": ""}).result.stdout for worker in workers[:2]})
"""
    for hard, expected in ((4096, "24 {'42\\n'}"), (96, "error")):
        run = subprocess.run(
            [sys.executable, "-c", script, str(hard)], cwd=PROJECT, capture_output=True, text=True, timeout=120
        )
        assert run.stdout.strip().startswith(expected), (run.stdout, run.stderr)
        assert run.stdout.strip().endswith("{'42\\n'}")


# ---- many


def flat(jobs):
    sandbox.configure(workers=2)
    sandbox.run_programs(["print(1)"] * 10)
    before = sandbox.metrics()
    own = len(os.listdir("/proc/self/fd"))
    results = sandbox.run_programs([{"program": "print(input())", "stdin": str(number)} for number in range(jobs)])
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(jobs)]
    wait_until(lambda: sandbox.metrics()["starting"] == 0)
    after = sandbox.metrics()
    assert after["results"] == before["results"] + jobs
    assert abs(after["descriptors"] - before["descriptors"]) <= 16  # a few for each sandbox on its way
    assert after["rss_bytes"] < before["rss_bytes"] + (16 << 20)
    assert after["processes"] <= 2 * after["sandboxes"]
    assert len(os.listdir("/proc/self/fd")) <= own
    assert after["errors"] == after["failed_starts"] == 0


def test_two_hundred_jobs_leave_descriptors_and_memory_flat():
    flat(200)


@pytest.mark.slow
def test_a_thousand_jobs_leave_descriptors_and_memory_flat():
    flat(1000)


# ---- workers


def test_runs_of_one_candidate_share_files_and_nothing_else():
    program = """
import builtins, os
print(os.path.exists("note"), hasattr(builtins, "note"), input())
builtins.note = True
open("note", "w").close()
"""
    with open_worker("code", setup={"program": program}) as worker:
        assert worker.call({"stdin": "a"}).result.stdout == "False False a\n"
        assert worker.call({"stdin": "b"}).result.stdout == "True False b\n"
    with open_worker("code", setup={"program": program}) as worker:
        assert worker.call({"stdin": "c"}).result.stdout == "False False c\n"


def test_daemons_of_one_run_are_gone_before_the_next():
    program = """
import os, sys, time
if len(sys.argv) == 1:
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os.setsid()
            time.sleep(30)
        print(child)
for pid in sys.argv[1:]:
    try:
        os.kill(int(pid), 0)
        print("alive")
    except ProcessLookupError:
        pass
"""
    with open_worker("code", setup={"program": program}) as worker:
        pids = worker.call({}).result.stdout.split()
        assert len(pids) == 5
        assert worker.call({"args": pids}).result.stdout == ""


def test_a_worker_is_gone_after_a_limit_and_each_call_has_its_own():
    with open_worker("code", setup={"program": SLOW_ECHO}) as worker:
        assert worker.call({"stdin": "1"}).result.status is Status.OK
        assert worker.call({"stdin": "1"}, limits=Limits(wall_s=0.2)).result.status is Status.TIME_LIMIT
        with pytest.raises(SandboxError, match="gone"):
            worker.call({"stdin": "1"})
    with pytest.raises(SandboxError, match="gone"):
        worker.call({})
    worker.close()


@pytest.mark.parametrize("kind", ["", "runner", "no_such_kind", "../sql", "Code"])
def test_workers_of_unknown_kinds_are_refused(kind):
    with pytest.raises(ArgumentError):
        open_worker(kind)


def test_a_handler_that_does_not_come_up_says_why():
    with pytest.raises(SandboxError, match="KeyError"):
        open_worker("sql", setup={}, files={})


# ---- metrics


def test_metrics_count_what_happened():
    sandbox.configure(canary_s=0.2)
    sandbox.run_program("print(1)")
    sandbox.run_program("exit(1)")
    wait_until(lambda: sandbox.metrics()["canaries"]["ok"] > 0)
    numbers = sandbox.metrics()
    assert numbers["canaries"]["failed"] == numbers["errors"] == 0
    assert numbers["error_share"] == 0.0
    assert numbers["status_share"]["runtime_error"] > 0.0
    assert sum(numbers["status_share"].values()) == pytest.approx(1.0)
    assert 0.0 < numbers["latency_s"]["p50"] <= numbers["latency_s"]["p95"] <= numbers["latency_s"]["max"] * 1.5
    assert 0.0 < numbers["warm_up_s"] < 5.0
    assert 0 < numbers["rss_bytes"] < 100 << 20
