"""DeepCoder-MT with programs that say themselves how they fare, for tests of whatever stands above the sandbox."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agent.config import CodingConfig, TaskConfig
from jaxrl_agent.models.tokenizer import Tokenizer, load_tokenizer
from jaxrl_agent.sandbox import Limits, Status, Verdict
from jaxrl_agent.sandbox.judge import JudgedCase
from jaxrl_agent.tasks.coding.grading import Judge
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.deepcoder import CodingEpisode, CodingInstances, CodingTask, make_deepcoder

ROOM = 300  # tokens of a reply, unless a test says otherwise

_CASES = {
    "pass": JudgedCase(Status.OK),
    "fail": JudgedCase(Status.WRONG, "wrong answer", answer="-1"),
    "mute": JudgedCase(Status.WRONG, "it ended without an answer"),
    "slow": JudgedCase(Status.TIME_LIMIT, "CPU time limit"),
    "raise": JudgedCase(Status.RUNTIME_ERROR, "ZeroDivisionError", error="Traceback:\nZeroDivisionError: division"),
    "lost": JudgedCase(Status.WRONG, "could not be checked: gone", checked=False),
}


class ScriptedJudge:
    """Stand in for `sandbox.judge_program`: word i of a program says how it fares on test i, the last one on the rest.

    `"pass fail"` passes the first test and fails all others; other words are read as "fail".

    Attributes:
        asked: programs in the order in which they were judged.
        limits: of the last call.
    """

    def __init__(self):
        self.asked: list[str] = []
        self.limits: Limits | None = None
        self._lock = threading.Lock()

    def __call__(self, program: str, tests: Sequence[Mapping[str, Any]], *, limits: Limits) -> Verdict:
        """Read the program's words."""
        with self._lock:
            self.asked.append(program)
            self.limits = limits
        words = program.split()
        cases = [_CASES.get(words[min(place, len(words) - 1)], _CASES["fail"]) for place in range(len(tests))]
        passed = sum(case.status is Status.OK for case in cases)
        status = next((case.status for case in cases if case.status is not Status.OK), Status.OK)
        lost = any(not case.checked for case in cases)
        return Verdict(status, passed, len(tests), tuple(cases), could_not_check=lost)


def number_problem(name: str = "testing/double", *, public: int = 2, hidden: int = 3, **more: Any) -> Problem:
    """Make a problem of a function `f` that doubles; hidden arguments are numbers of 77,000 and more."""
    arguments = [*range(3, 3 + public), *range(77_001, 77_001 + hidden)]
    tests = tuple({"entry_point": "f", "args": [x], "expected": 2 * x} for x in arguments)
    words = {"statement": "f(x) is twice x.", "solution": "f=lambda x:2*x"} | more
    return Problem(name, public=tests[:public], hidden=tests[public:], style="function", entry_point="f", **words)


def line_problem(name: str = "testing/sum", **more: Any) -> Problem:
    """Make a problem that reads two numbers and prints their sum."""
    public = ({"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"})
    hidden = tuple({"input": f"{x} 77000\n", "output": f"{x + 77000}\n"} for x in (4, 9))
    words = {"statement": "Print a+b.", "solution": "print(sum(map(int,input().split())))"} | more
    return Problem(name, public=public, hidden=hidden, style="stdin", **words)


def coding_split(
    tokenizer: Tokenizer | str = "code_bpe",
    *,
    problems: Sequence[Problem] | None = None,
    judge: Judge | None = None,
    coding: dict[str, Any] | None = None,
    **task: Any,
) -> tuple[CodingTask, CodingInstances]:
    """Build a split of these problems (one `number_problem` by default) and this judge (a `ScriptedJudge`).

    Args:
        tokenizer: a tokenizer, or the name of one.
        problems: the instances.
        judge: runs programs on tests.
        coding: settings of `CodingConfig`.
        task: settings of `TaskConfig`.
    """
    words = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    config = TaskConfig(name="deepcoder", **{"max_tokens": ROOM} | task, coding=CodingConfig(**coding or {}))
    problems = [number_problem()] if problems is None else problems
    judge = ScriptedJudge() if judge is None else judge
    return make_deepcoder(config, words, "train", vocab_size=words.vocab_size, problems=problems, judge=judge)


def begin(budget: int = 4, *, context: int | None = None, instance: int = 0, **settings: Any) -> CodingEpisode:
    """Begin an episode of a split of its own, see `coding_split`."""
    return coding_split(**settings)[0].reset(instance, budget=budget, context=context)


def submit(program: str) -> str:
    """Write a reply that submits a program."""
    return f"```\n{program}\n```"


def said(episode: CodingEpisode, ids: Sequence[int] | None = None) -> str:
    """Text of ids, by default of the whole row."""
    return episode.task.chat.tokenizer.decode(episode.row.ids if ids is None else ids)
