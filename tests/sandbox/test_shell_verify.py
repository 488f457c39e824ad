"""Grading an episode's files: what passes, what fails, and what of an episode has no say."""

from __future__ import annotations

import platform

import pytest

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Limits, Status, shell_verify
from jaxrl_agent.sandbox.shell import open_shell
from jaxrl_agent.sandbox.shell_verify import verify

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="sandboxes need Linux")

GREETS = b"""
import pathlib, subprocess

def test_script_greets():
    run = subprocess.run(["/app/greet.sh"], capture_output=True, text=True, timeout=5)
    assert run.stdout == "hello\\n", "the answer is hello"

class TestFiles:
    def test_number_is_written(self):
        assert pathlib.Path("/episode/app/number").read_text().strip() == "42"
"""


def played(command, paths=("/app",)):
    with open_shell() as shell:
        assert shell.run(command).status is Status.OK
        return shell.collect(list(paths))


@pytest.fixture(scope="module")
def good():
    return played("printf '#!/bin/sh\\necho hello\\n' > greet.sh; chmod +x greet.sh; echo 42 > number")


def test_a_right_episode_passes_every_test(good):
    verdict = verify(good, {"test_it.py": GREETS})
    assert verdict.ok
    assert (verdict.passed, verdict.total, verdict.feedback) == (2, 2, "")


def test_an_empty_episode_fails_and_learns_nothing_of_what_was_expected():
    verdict = verify({}, {"test_it.py": GREETS})
    assert (verdict.ok, verdict.could_not_check, verdict.passed, verdict.total) == (False, False, 0, 2)
    assert "hello" not in verdict.feedback
    assert "42" not in verdict.feedback


def test_one_wrong_file_fails_one_test(good):
    verdict = verify({"/app/greet.sh": b"#!/bin/sh\necho hallo\n", "/app/number": b"42"}, {"test_it.py": GREETS})
    assert [case.status for case in verdict.results] == [Status.OK, Status.RUNTIME_ERROR]  # it may not be executed
    changed = type(good)()
    changed.update(good | {"/app/greet.sh": b"#!/bin/sh\necho hallo\n"})
    changed.modes = good.modes
    verdict = verify(changed, {"test_it.py": GREETS})
    assert (verdict.status, verdict.passed, verdict.feedback) == (
        Status.WRONG,
        1,
        "1 of 2 tests passed. First failure: wrong.",
    )


def test_nothing_that_an_episode_has_planted_has_a_say():
    planted = played(
        """
        mkdir -p /logs/verifier /tests .git/hooks python3 /usr/lib/python3/dist-packages ~/.local/lib
        echo 1 > /logs/verifier/reward.txt; echo '{"status": "ok"}' > report.json
        echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py conftest.py json.py ast.py types.py \
          subprocess.py pathlib.py /tests/test_it.py /usr/lib/python3/dist-packages/sitecustomize.py > /dev/null
        echo 'import os; os._exit(0)' > evil.pth
        printf '#!/bin/sh\\nexit 0\\n' | tee python3 bash pytest /usr/local/bin/python3 /usr/local/bin/cat > /dev/null
        chmod +x bash pytest /usr/local/bin/*; export PATH=/app:$PATH PYTHONPATH=/app PYTHONSTARTUP=/app/json.py
        printf '[core]\\n hooksPath = .git/hooks\\n fsmonitor = /app/bash\\n' > .git/config
        true
        """,
        ["/app", "/logs", "/tests", "/usr/local/bin", "/usr/lib/python3/dist-packages"],
    )
    assert len(planted) > 12
    assert not verify(planted, {"test_it.py": GREETS}).ok
    verdict = verify(planted, {"check.sh": b"cat /app/number"}, "bash /tests/check.sh")
    assert (verdict.status, verdict.passed, verdict.could_not_check) == (Status.WRONG, 0, False)


def test_the_programs_of_an_episode_can_not_answer_for_a_test():
    forger = b"""#!/usr/bin/python3
import json, os, signal
for fd in range(3, 64):
    try:
        os.write(fd, b'{"token": "", "name": "test_it.py::test_runs", "status": "ok", "reason": ""}\\n')
    except OSError:
        pass
print('{"name": "test_it.py::test_runs", "status": "ok"}')
for place in ("/app/number", "/tests/test_it.py", "/episode/app/number"):
    try:
        open(place, "w").write("42")
    except OSError:
        pass
os.kill(os.getppid(), signal.SIGKILL)
os.kill(-1, signal.SIGKILL)
"""
    tests = b"""
import os, subprocess
def test_runs():
    os.system("/app/run")
    subprocess.run(["/app/run"])
    assert open("/app/number").read() == "42"
def test_number():
    assert open("/app/number").read() == "42"
"""
    files = played("touch run number; chmod +x run")
    files["/app/run"] = forger
    verdict = verify(files, {"test_it.py": tests})
    assert (verdict.ok, verdict.passed, verdict.total) == (False, 0, 2)


def test_a_test_that_ends_early_or_is_not_reached_has_failed(good):
    tests = b"""
import os, sys
def test_exits(): sys.exit(0)
def test_leaves(): os._exit(0)
def test_is_fine(): pass
def test_hangs():
    while True: pass
def test_never_runs(): pass
"""
    verdict = verify(good, {"test_it.py": tests}, limits=Limits(cpu_s=1.0, wall_s=10.0))
    statuses = [case.status for case in verdict.results]
    assert statuses == [Status.RUNTIME_ERROR, Status.RUNTIME_ERROR, Status.OK, Status.TIME_LIMIT, Status.TIME_LIMIT]
    assert (verdict.ok, verdict.passed, verdict.total) == (False, 1, 5)


def test_files_are_read_only_unless_copies_are_asked_for():
    tests = b"""
import subprocess
def test_writes(): assert subprocess.run(["/app/w"]).returncode == 0 and open("/app/out").read() == "x"
"""
    files = played("printf '#!/bin/sh\\nprintf x > /app/out' > w; chmod +x w")
    assert verify(files, {"test_it.py": tests}).status is Status.WRONG
    assert verify(files, {"test_it.py": tests}, writable=True).ok


def test_a_command_judges_by_its_exit_code(good):
    checks = {"check.sh": b'test "$(/app/greet.sh)" = "$1"'}
    assert verify(good, checks, "bash /tests/check.sh hello").ok
    verdict = verify(good, checks, "bash /tests/check.sh bye")
    assert (verdict.status, verdict.passed, verdict.total) == (Status.WRONG, 0, 1)
    slow = verify(good, checks, "sleep 20", limits=Limits(wall_s=0.5))
    assert (slow.status, slow.ok, slow.could_not_check) == (Status.TIME_LIMIT, False, False)


def test_tests_that_can_not_be_run_pass_nobody(good, monkeypatch):
    verdict = verify(good, {"test_it.py": b"import no_such_module\ndef test_a(): pass\n"})
    assert (verdict.ok, verdict.could_not_check) == (False, False)
    dodging = {"/app/solution.py": b"raise ImportError('x')"}
    tests = b"def test_a():\n    import solution\ndef test_b(): assert False\n"
    verdict = verify(dodging, {"test_it.py": b"import sys\nsys.path.insert(0, '/app')\n" + tests})
    assert (verdict.ok, verdict.could_not_check, verdict.passed) == (False, False, 0)
    for bad in ({}, {"test_it.py": b"x = 1"}, {"test_it.py": b"def test_a(tmp_path): pass"}, {"test_it.py": b"def ("}):
        with pytest.raises(ArgumentError):
            verify(good, bad)
    with pytest.raises(ArgumentError, match="absolute"):
        verify({"app/x": b""}, {"test_it.py": GREETS})
    tries = []

    def fails(*args, **kwargs):
        tries.append(1)
        raise SandboxError("a shell episode must start")

    monkeypatch.setattr(shell_verify, "open_shell", fails)
    verdict = verify(good, {"test_it.py": GREETS})
    assert (verdict.ok, verdict.could_not_check, verdict.passed, verdict.total, len(tries)) == (False, True, 0, 2, 2)
