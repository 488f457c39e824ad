"""Hostile programs: what may come of them, and what must be left after each."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import shutil
import socket
import subprocess
import time

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.sandbox import Limits, Status, access, bubblewrap
from jaxrl_agent.testing.attacks import ANSWER, ATTACKS, CORRECT, STDIN, arguments_of

PROJECT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="sandboxes need Linux")


def settled(seconds=5.0):
    """Metrics, once all is cleaned up and warm again; the two processes of a sandbox are bubblewrap and process 1."""
    end = time.monotonic() + seconds
    while True:
        numbers = sandbox.metrics()
        quiet = numbers["running"] == numbers["queued"] == numbers["starting"] == 0
        if quiet and numbers["processes"] == 2 * numbers["sandboxes"] == 2 * numbers["idle"]:
            return numbers
        assert time.monotonic() < end, f"left behind: {numbers}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def before():
    sandbox.configure()
    sandbox.run_program(CORRECT, stdin=STDIN)
    return settled()


@pytest.fixture
def nothing_is_left(before):
    disk = shutil.disk_usage("/tmp").free
    supervisor = access.connect().pid
    yield
    after = settled()
    assert access.connect().pid == supervisor
    assert after["descriptors"] == before["descriptors"]
    assert after["rss_bytes"] < before["rss_bytes"] + 16 * MIB
    assert after["temporary_bytes"] < 4 * MIB
    assert shutil.disk_usage("/tmp").free > disk - 1024 * MIB  # others use the disk too
    correct = sandbox.run_program(CORRECT, stdin=STDIN)
    assert (correct.status, correct.stdout, correct.tier) == (Status.OK, ANSWER, "ns")


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_ends_as_it_must_and_leaves_nothing(attack):
    assert attack.complaint(sandbox.run_program(**arguments_of(attack))) == ""


def test_an_object_that_equals_everything_is_not_an_answer():
    program = (
        "class Yes(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\ndef f(n): return Yes(7)"
    )
    verdict = sandbox.judge_program(program, [{"entry_point": "f", "args": [21], "expected": 42}])
    assert not verdict.ok
    assert verdict.status in (Status.WRONG, Status.RUNTIME_ERROR)


def test_listeners_outside_see_nobody():
    name = f"jaxrl_test_{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + name)
        unix.listen()
        program = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})), (socket.AF_UNIX, "\\0{name}")):
    try:
        socket.socket(family).connect(address)
        print("reached")
    except OSError:
        pass
"""
        result = sandbox.run_program(program)
        assert (result.status, result.stdout) == (Status.OK, "")
        for listener in (tcp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_neighbours_live_through_an_attack_on_all_processes():
    sandbox.configure(workers=2)
    killer = (
        "import os\nfor pid in (1, os.getppid(), -1):\n    try: os.kill(pid, 9)\n    except OSError: pass\nprint(42)"
    )
    results = sandbox.run_programs(["import time\ntime.sleep(0.5)\nprint('alive')", *[killer] * 4])
    assert [result.stdout for result in results] == ["alive\n", *["42\n"] * 4]


def run_together(workers):
    sandbox.configure(workers=workers, idle=4)
    # Times are not looked at: as many at once as this take longer on few cores.
    limits = Limits(cpu_s=1.0, wall_s=10.0)
    chosen = [attack for attack in ATTACKS if attack.limits.wall_limit_s > 1.0]
    jobs = [arguments_of(attack) | {"limits": limits} for attack in chosen]
    correct = {"program": CORRECT, "stdin": STDIN, "limits": limits}
    results = sandbox.run_programs([job for pair in jobs for job in (pair, correct)])
    allowed = (Status.TIME_LIMIT, Status.MEMORY_LIMIT)
    for attack, result in zip(chosen, results[::2], strict=True):
        assert result.status in (*attack.statuses, *allowed), attack.name
    assert {(result.status, result.stdout) for result in results[1::2]} == {(Status.OK, ANSWER)}
    settled(10.0)


def test_eight_attacks_at_once_harm_no_correct_program():
    run_together(8)


@pytest.mark.slow
def test_thirty_two_attacks_at_once_harm_no_correct_program():
    run_together(32)


def as_ordinary_user():
    """Run all attacks as a user without any right, if root can find an interpreter that such a user can read."""
    if os.geteuid() != 0:
        pytest.skip("the other tests have run as an ordinary user already")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    modern = (
        python and subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode == 0
    )
    if not modern or not bubblewrap.readable_by_others(PROJECT / "jaxrl_agent" / "__init__.py"):
        pytest.skip("an ordinary user can not read a Python 3.11 and this project")
    bwrap = bubblewrap.find()
    if not bubblewrap.readable_by_others(bwrap):
        pytest.skip("an ordinary user can not read bubblewrap")
    path = f"/usr/bin:/bin:{bwrap.parent}"
    environment = {"PATH": path, "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [python, "-m", "jaxrl_agent.testing.attacks"],
        user=65533, group=65533, extra_groups=[], cwd="/", env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_an_ordinary_user_is_protected_as_root_is():
    run = as_ordinary_user()
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"tier": "ns", "failed": [], "correct": ANSWER}


GIVEN = os.environ.get("JAXRL_SANDBOX_ATTACKS", "")


@pytest.mark.skipif(not GIVEN, reason="JAXRL_SANDBOX_ATTACKS names no file with attacks")
@pytest.mark.usefixtures("nothing_is_left")
def test_a_given_list_of_attacks_ends_as_it_says():
    """`default_limits`, and `attacks` with id, kind, program, stdin, hidden_answer, expected_status and limits."""
    given = json.loads(pathlib.Path(GIVEN).read_text())
    failed = {}
    for attack in given["attacks"]:
        if attack["kind"] != "code":
            continue
        limits = Limits(**{**given["default_limits"], **attack.get("limits", {})})
        answer = attack["hidden_answer"]
        test = {"input": attack.get("stdin", ""), "output": answer}
        if "entry_point" in attack:
            test = {"entry_point": attack["entry_point"], "args": attack["args"], "expected": answer}
        for _ in range(attack.get("repeat", 1)):
            started = time.monotonic()
            verdict = sandbox.judge_program(attack["program"], [test], limits=limits)
            late = time.monotonic() - started > limits.wall_limit_s + 1.0
            if verdict.status not in attack["expected_status"] or verdict.could_not_check or late:
                failed[attack["id"]] = verdict
    assert failed == {}


def test_every_status_but_wrong_is_reached_by_some_attack():
    reached = {status for attack in ATTACKS for status in attack.statuses}
    assert set(Status) - reached == {Status.WRONG}
