"""The words of DeepCoder-MT: numbers that agree with the settings, fields cut, values as Python writes them."""

from __future__ import annotations

import json

import pytest

from jaxrl_agent.config import CodingConfig, TaskConfig
from jaxrl_agent.sandbox import Status
from jaxrl_agent.sandbox.inside.call import to_wire
from jaxrl_agent.tasks.coding.grading import Grade, Outcome
from jaxrl_agent.tasks.deepcoder_text import feedback_text, problem_text, show_value, system_text, unusable_text
from jaxrl_agent.testing.coding import line_problem, number_problem


def config(text: str, *, visibility: str = "hidden", coding=None, **task) -> TaskConfig:
    return TaskConfig(text=text, budget_visibility=visibility, coding=CodingConfig(**coding or {}), **task)


def feedback(text: str, *outcomes: Outcome, visibility: str = "hidden", left: int = 2, **coding) -> str:
    grade = Grade(tuple(outcome.status for outcome in outcomes), len(outcomes), outcomes)
    return feedback_text(config(text, visibility=visibility, coding=coding), grade, left)


def on_line(status=Status.WRONG, *, given="1 2\n", output="3\n", answer="4\n", error="", reason="") -> Outcome:
    return Outcome({"input": given, "output": output}, status, reason, answer, error)


def on_call(answer: object, *args, expected: object = 6, **more) -> Outcome:
    test = {"entry_point": "f", "args": list(args), "expected": expected} | more
    return Outcome(test, Status.WRONG, "wrong answer", json.dumps(to_wire(answer)), "")


# ---- prompts


def test_words_are_the_bare_statement():
    assert system_text(config("words")) is None
    assert problem_text(config("words"), number_problem(), 5) == "f(x) is twice x."


def test_the_rules_name_the_limits_that_hold():
    text = system_text(config("chat", max_tokens=123, coding={"cpu_seconds": 2.5, "memory_mb": 77}))
    assert "2.5 seconds" in text
    assert "77 MiB" in text
    assert "123 tokens" in text
    assert "reasoning" not in text
    assert "reasoning" in system_text(config("chat", think="keep"))


def test_the_prompt_says_what_to_write():
    assert "Define `f`" in problem_text(config("chat"), number_problem(), 5)
    assert "standard input" in problem_text(config("chat"), line_problem(), 5)


@pytest.mark.parametrize("text", ["words", "chat"])
def test_the_budget_is_told_as_the_settings_have_it(text):
    problem = number_problem(statement="s")
    said = {
        visibility: (
            problem_text(config(text, visibility=visibility), problem, 7),
            feedback(text, on_line(), visibility=visibility, left=5),
            unusable_text(config(text, visibility=visibility), 5),
        )
        for visibility in ("hidden", "total", "remaining")
    }
    tells = {name: ["7" in first, "5" in later, "5" in unusable] for name, (first, later, unusable) in said.items()}
    assert tells == {"hidden": [False] * 3, "total": [True, False, False], "remaining": [True] * 3}


# ---- feedback


def test_feedback_in_words_is_a_line_for_each_failed_test():
    shown = feedback(
        "words",
        on_line(),
        on_call([10], 3, [1, "a"], expected=(16,)),
        on_line(Status.RUNTIME_ERROR, error="Traceback\n  x\nNameError: name 'y' is not defined\n"),
        on_line(Status.TIME_LIMIT, reason="CPU time limit"),
        on_line(answer=""),
        shown_failures=5,
        visibility="remaining",
    )
    assert shown.split("\n") == [
        "in 1 2 want 3 got 4",
        "in 3, [1, 'a'] want (16,) got [10]",
        "in 1 2 want 3 error NameError: name 'y' is not defined",
        "in 1 2 want 3 error time limit",
        "in 1 2 want 3 got nothing",
        "left 2",
    ]


def test_feedback_in_chat_names_its_fields():
    shown = feedback("chat", on_line(), visibility="remaining")
    assert shown == (
        "1 of 1 example tests failed.\n\nInput:\n1 2\nExpected:\n3\nGot:\n4\n\nCorrect your program. Turns left: 2."
    )
    shown = feedback("chat", on_line(Status.RUNTIME_ERROR, error="Traceback\nE: x\n", reason="E: x"))
    assert "Got:\nruntime error\nError:\nTraceback\nE: x\n" in shown
    assert "Got:\ntime limit (CPU)" in feedback("chat", on_line(Status.TIME_LIMIT, reason="CPU"))


@pytest.mark.parametrize("text", ["words", "chat"])
def test_only_the_first_failures_are_shown(text):
    passed = on_line(Status.OK, given="passed")
    outcomes = [passed, *(on_line(given=f"number {n}") for n in range(4))]
    shown = feedback(text, *outcomes, shown_failures=2)
    assert [f"number {n}" in shown for n in range(4)] == [True, True, False, False]
    assert "passed\n" not in shown


@pytest.mark.parametrize("text", ["words", "chat"])
def test_every_field_is_cut(text):
    long = on_line(given="i" * 99, output="o" * 99, answer="a" * 99)
    failed = on_line(Status.RUNTIME_ERROR, given="", output="", error=f"{'s' * 50}\n{'e' * 99}")
    shown = feedback(text, long, failed, shown_characters=20)
    for letter in "ioa":
        assert letter * 20 + " ..." in shown
        assert letter * 21 not in shown
    assert "e" * 20 in shown
    assert "e" * 21 not in shown


@pytest.mark.parametrize("text", ["words", "chat"])
def test_a_test_with_a_checker_wants_nothing_in_particular(text):
    outcome = Outcome({"input": "1", "checker": "def check(a, b): secret"}, Status.WRONG, "wrong answer", "7", "")
    shown = feedback(text, outcome)
    assert "want" not in shown
    assert "Expected" not in shown
    assert "secret" not in shown
    assert "7" in shown


def test_calls_and_keywords_are_written_as_in_python():
    call = Outcome({"call": "depth(Node(1))", "expected": 1}, Status.WRONG, "wrong answer", "2", "")
    assert feedback("words", call) == "in depth(Node(1)) want 1 got 2"
    assert feedback("words", on_call(5, 1, kwargs={"k": "z"})) == "in 1, k='z' want 6 got 5"


def test_an_answer_that_the_judge_cut_is_shown_as_it_came():
    cut = Outcome({"entry_point": "f", "args": [1], "expected": 2}, Status.WRONG, "", '["aaa", "bb', "")
    assert 'got ["aaa", "bb' in feedback("words", cut)
    forged = Outcome({"entry_point": "f", "args": [1], "expected": 2}, Status.WRONG, "", '{"eval": "x"}', "")
    assert 'got {"eval": "x"}' in feedback("words", forged)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**70,
        1.5,
        "a'b\n",
        [1, [2]],
        (),
        (1,),
        (1, "x"),
        {"a": (1, 2), 3: []},
        set(),
        {1},
        b"\x00\xff",
        complex(1, -2),
        [float("inf")],
    ],
)
def test_values_are_written_as_python_can_read_them(value):
    names = {"inf": float("inf"), "bytes": bytes, "complex": complex, "set": set, "__builtins__": {}}
    assert eval(show_value(to_wire(value)), names) == value


def test_members_of_a_set_come_in_one_order():
    assert show_value({"set": ["b", "a", 10, 9]}) == show_value({"set": [9, "a", 10, "b"]}) == "{'a', 'b', 10, 9}"


def test_a_number_too_long_for_python_to_print_is_shown_in_hexadecimal():
    assert show_value(to_wire(16**9000)).startswith("0x1000")


@pytest.mark.parametrize("text", ["words", "chat"])
def test_where_an_object_lies_is_not_shown(text):
    def failures(place: str) -> str:
        printed = on_line(answer=f"<generator object <genexpr> at {place}>\n")
        raised = on_line(Status.RUNTIME_ERROR, error=f"Traceback:\nValueError: <function f at {place}>")
        return feedback(text, printed, raised)

    assert failures("0x7f7becf48ad0") == failures("0x7fb12d464220")
    assert "<generator object <genexpr> at 0x...>" in failures("0x7f7becf48ad0")
