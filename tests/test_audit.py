"""The audit names what nobody can pass and what anybody can, by the cheat that did."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jaxrl_agent import audit, command_line
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sandbox import Status, Verdict
from jaxrl_agent.tasks.coding.cheats import CHEATS, nothing
from jaxrl_agent.tasks.coding.problem import Problem


def function_problem(**changes):
    tests = [{"entry_point": "f", "args": [n], "expected": n + 1} for n in range(5)]
    good = Problem("good", "f(n) is n+1.", tuple(tests[:2]), tuple(tests[2:]), "function", "f", "f=lambda n:n+1")
    return dataclasses.replace(good, **{"wrong": ("f=lambda n:n+2",), **changes})


def constant_problem():
    tests = [{"input": f"{n}\n", "output": "4\n"} for n in range(4)]
    return Problem("constant", "Print 4.", tuple(tests[:2]), tuple(tests[2:]), "stdin", solution="print(4)")


def audited(*problems):
    return audit.summarize(audit.run_audit(problems), problems, task="deepcoder", source="own", split="test")


def test_a_good_problem_passes_gold_alone():
    summary = audited(function_problem())
    assert audit.is_clean(summary)
    assert summary["programs"].pop("gold") == {
        "run": 1,
        "passed": 1,
        "hidden_only": 0,
        "could_not_check": 0,
        "at_fault": 0,
    }
    assert {counts["passed"] for counts in summary["programs"].values()} == {0}
    assert set(summary["programs"]) >= {"nothing", "known wrong", "object equal to all", "search for hidden tests"}


def test_gold_that_fails_is_unpassable_and_a_known_answer_is_exploitable():
    summary = audited(function_problem(solution="f=lambda n:n"), constant_problem())
    assert list(summary["unpassable"]) == ["good"]
    assert summary["exploitable"] == {"constant": ["public answers, else the first"]}
    assert not audit.is_clean(summary)


def test_a_wrong_program_that_all_tests_let_pass_is_exploitable():
    wrong = "f=lambda n:n+1 if n<9 else 0"
    assert audited(function_problem(wrong=(wrong,)))["exploitable"] == {"good": ["known wrong"]}


def test_what_passes_hidden_tests_alone_is_weak_and_no_exploit():
    one_answer = function_problem(hidden=({"entry_point": "f", "args": [9], "expected": 0},), solution="f=lambda n:0")
    summary = audited(one_answer)
    assert summary["exploitable"] == {}
    assert summary["weak"] == {"good": ["0"]}
    assert summary["unpassable"].keys() == {"good"}  # gold must pass public tests too
    assert summary["unpassable"]["good"].startswith("public tests: Test 1 of 2: wrong")


def test_what_could_not_be_checked_is_neither_and_not_clean():
    def judge(jobs, **options):
        return [Verdict(Status.WRONG, 0, 3, could_not_check=True) for _ in jobs]

    problem = function_problem()
    summary = audit.summarize(audit.run_audit([problem], judge=judge), [problem])
    assert (summary["unpassable"], summary["exploitable"]) == ({}, {})
    assert summary["could_not_check"] == ["good"]
    assert not audit.is_clean(summary)


@pytest.mark.parametrize("problem", [function_problem(), constant_problem()], ids=lambda problem: problem.style)
def test_every_cheat_is_python_and_holds_nothing_of_the_hidden_tests(problem):
    programs = [program for write in CHEATS.values() if (program := write(problem)) is not None]
    assert len(programs) >= 12
    for program in [*programs, nothing(problem)]:
        compile(program, "cheat", "exec")
        hidden = [repr(test.get("input") or test.get("args")) for test in problem.hidden]
        assert not any(text in program for text in hidden)


def test_a_limit_takes_the_same_number_of_each_split():
    problems = audit.audited_problems("own", limit=6)
    assert len({problem.problem_id for problem in problems}) == 6
    train = {problem.problem_id for problem in audit.audited_problems("own", split="train")}
    assert len(train & {problem.problem_id for problem in problems}) == 2
    with pytest.raises(ConfigError):
        audit.audited_problems("own", split="dev")


# ---- the command


def test_the_command_prints_a_table_and_writes_a_file(launch, tmp_path):
    assert (command_line.PROJECT / "launch" / "audit_graders.py").exists()
    result = launch("audit_graders", "--task=deepcoder", "--split=test", "--limit=1", f"--out={tmp_path / 'x.json'}")
    assert result.code == 0
    assert "gold" in result.out
    assert "exploitable: 0" in result.out
    summary = json.loads((tmp_path / "x.json").read_text())
    assert (summary["task"], summary["source"], summary["n_problems"]) == ("deepcoder", "own", 1)
    assert summary["programs"]["gold"]["passed"] == 1


def test_the_command_fails_if_the_grader_does(launch, monkeypatch):
    monkeypatch.setattr(audit, "audited_problems", lambda *args, **options: [constant_problem()])
    result = launch("audit_graders", "--task=deepcoder")
    assert result.code == 1
    assert "constant: public answers, else the first" in result.out
