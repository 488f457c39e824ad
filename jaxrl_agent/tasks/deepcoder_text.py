"""The words of DeepCoder-MT, made from the settings that the episodes obey, so that they cannot disagree.

Two ways to speak: "chat", full sentences behind a system message; and "words", the bare statement and one short line
for each failed test, for models that are tiny.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxrl_agent.config import TaskConfig
from jaxrl_agent.sandbox import Status
from jaxrl_agent.sandbox.compare import is_wire
from jaxrl_agent.sandbox.inside.call import to_wire
from jaxrl_agent.tasks.coding.grading import Grade, Outcome
from jaxrl_agent.tasks.coding.problem import Problem, Test

_CUT = " ..."
# Where an object lies differs from run to run, and the same feedback must be the same tokens: who prints a generator
# reads that it is one.
_ADDRESS, _NO_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+"), "at 0x..."
_DIGITS = 1000  # hexadecimal ones of a number that is written in decimal


def system_text(config: TaskConfig) -> str | None:
    """The rules, for the system message; None where there is none."""
    if config.text == "words":
        return None
    coding = config.coding
    reasoning = "" if config.think == "off" else " Programs inside your reasoning do not count."
    return (
        "You write programs in Python 3. Put the whole program into one fenced block:\n\n```python\n...\n```\n\n"
        f"The last block of a reply is your submission.{reasoning} It runs on example tests, each with at most "
        f"{coding.cpu_seconds:g} seconds of CPU time and {coding.memory_mb} MiB of memory. If an example fails, you "
        "see how, and may submit a corrected program. Your submission is final once all examples pass or your turns "
        "are used up; further tests, which you do not see, then decide. A reply without a block uses up a turn, and a "
        f"reply that is not over after {config.max_tokens} tokens ends the attempt."
    )


def problem_text(config: TaskConfig, problem: Problem, budget: int) -> str:
    """The first user message: the problem, what to write, and the budget as far as it is told."""
    if config.text == "words":
        return "\n".join([problem.statement.strip("\n"), *_budget_words(config, budget)])
    form = (
        f"Define `{problem.entry_point}`; the tests call it."
        if problem.style == "function"
        else "Read from standard input and write to standard output."
    )
    return "\n".join([problem.statement.strip("\n"), "", form, *_budget_sentence(config, budget)])


def feedback_text(config: TaskConfig, grade: Grade, turns_left: int) -> str:
    """The answer to a submission that fails public tests: the first of them, and the turns left if they are told."""
    coding = config.coding
    shown = grade.failures[: coding.shown_failures]
    if config.text == "words":
        lines = [_outcome_words(outcome, coding.shown_characters) for outcome in shown]
        return "\n".join([*lines, *_left_words(config, turns_left)])
    head = f"{len(grade.failures)} of {grade.n_public} example tests failed."
    parts = [_outcome_sentences(outcome, coding.shown_characters) for outcome in shown]
    left = _left_sentence(config, turns_left)
    return "\n\n".join([head, *parts, " ".join(["Correct your program.", *left])])


def unusable_text(config: TaskConfig, turns_left: int) -> str:
    """The answer to a reply without a program."""
    if config.text == "words":
        return "\n".join(["no program", *_left_words(config, turns_left)])
    return " ".join(
        ["There is no fenced block with a program in your reply. Submit one.", *_left_sentence(config, turns_left)]
    )


def _budget_words(config: TaskConfig, budget: int) -> list[str]:
    return [f"turns {budget}"] if config.budget_visibility == "total" else _left_words(config, budget)


def _left_words(config: TaskConfig, turns_left: int) -> list[str]:
    return [f"left {turns_left}"] if config.budget_visibility == "remaining" else []


def _budget_sentence(config: TaskConfig, budget: int) -> list[str]:
    told = [f"You have {budget} turn{'s' if budget > 1 else ''}."]
    return told if config.budget_visibility == "total" else _left_sentence(config, budget)


def _left_sentence(config: TaskConfig, turns_left: int) -> list[str]:
    return [f"Turns left: {turns_left}."] if config.budget_visibility == "remaining" else []


# ---- one failed test


def _outcome_words(outcome: Outcome, size: int) -> str:
    expected = _expected(outcome.test)
    want = [] if expected is None else ["want", _cut(expected.strip(), size)]
    return " ".join(["in", _cut(_input(outcome.test).strip(), size), *want, *_result_words(outcome, size)])


def _result_words(outcome: Outcome, size: int) -> list[str]:
    if outcome.status is Status.WRONG:
        return ["got", _cut(_answer(outcome).strip() or "nothing", size)]
    if outcome.status is Status.RUNTIME_ERROR and (lines := _error(outcome).splitlines()):
        return ["error", _cut(lines[-1], size)]
    return ["error", outcome.status.value.replace("_", " ")]


def _outcome_sentences(outcome: Outcome, size: int) -> str:
    expected = _expected(outcome.test)
    parts = [("Call" if "call" in outcome.test else "Input", _input(outcome.test))]
    parts += [] if expected is None else [("Expected", expected)]
    traceback = _error(outcome) if outcome.status is Status.RUNTIME_ERROR else ""
    if outcome.status is Status.WRONG:
        answer = _answer(outcome)
        parts.append(("Got", answer if answer.strip() else "nothing"))
    else:
        reason = f" ({outcome.reason})" if outcome.reason and not traceback else ""
        parts.append(("Got", outcome.status.value.replace("_", " ") + reason))
    lines = [f"{name}:\n{_cut(text.strip(chr(10)), size)}" for name, text in parts]
    return "\n".join([*lines, *([f"Error:\n{_cut(traceback, size, end=True)}"] if traceback else [])])


def _input(test: Test) -> str:
    """What a test gives to the program, as a person would write it."""
    if "input" in test:
        return test["input"]
    if "call" in test:
        return test["call"]
    named = [f"{name}={show_value(to_wire(value))}" for name, value in test.get("kwargs", {}).items()]
    return ", ".join([*(show_value(to_wire(value)) for value in test["args"]), *named])


def _expected(test: Test) -> str | None:
    """What a test wants; None where a checker decides."""
    if "output" in test:
        return test["output"]
    return show_value(to_wire(test["expected"])) if "expected" in test else None


def _answer(outcome: Outcome) -> str:
    """What the program gave; a value that the judge cut stays as it came."""
    if "input" in outcome.test:
        return _ADDRESS.sub(_NO_ADDRESS, outcome.answer)
    try:
        value = json.loads(outcome.answer)
    except (ValueError, RecursionError):
        return outcome.answer
    return show_value(value) if is_wire(value) else outcome.answer


def _error(outcome: Outcome) -> str:
    return _ADDRESS.sub(_NO_ADDRESS, outcome.error.strip())


def show_value(wire: Any) -> str:
    """Write a value in wire form as Python would; members of a set in the order of their text.

    The order in which Python lists a set differs from run to run, and the same feedback must be the same tokens.
    """
    if isinstance(wire, list):
        return f"[{', '.join(map(show_value, wire))}]"
    if not isinstance(wire, Mapping):
        return repr(wire)
    ((tag, body),) = wire.items()
    if tag == "tuple":
        return f"({', '.join(map(show_value, body))}{',' if len(body) == 1 else ''})"
    if tag == "set":
        return f"{{{', '.join(sorted(map(show_value, body)))}}}" if body else "set()"
    if tag == "dict":
        return f"{{{', '.join(f'{show_value(key)}: {show_value(value)}' for key, value in body)}}}"
    if tag == "complex":
        return f"complex({', '.join(map(show_value, body))})"
    if tag == "int":
        return str(int(body, 16)) if len(body) < _DIGITS else body
    return f"bytes.fromhex({body!r})" if tag == "bytes" else str(body)


def _cut(text: str, size: int, *, end: bool = False) -> str:
    """Cut a text to `size` characters, keeping its start, or its end."""
    if len(text) <= size:
        return text
    return _CUT.strip() + " " + text[-size:] if end else text[:size] + _CUT
