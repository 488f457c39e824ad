"""What a submission is worth: its public and hidden tests run in a sandbox, and verdicts kept for the next time."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox import Limits, Status, Verdict, judge_program
from jaxrl_agent.tasks.coding.problem import Problem, Test

CACHE_SIZE = 8192  # verdicts kept; the answers in one take a few kB at most

Judge = Callable[..., Verdict]  # (program, tests, limits=) -> verdict, as `sandbox.judge_program`


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one public test ended, for feedback."""

    test: Test
    status: Status
    reason: str  # one line: which limit, which signal
    answer: str  # standard output, or the value in wire form; the judge cuts it
    error: str  # end of standard error


@dataclasses.dataclass(frozen=True)
class Grade:
    """What a submission is worth.

    Attributes:
        statuses: of all tests, the public ones first; those that were not run count as over time.
        n_public: public tests.
        outcomes: of the public tests. Nothing in them comes from a hidden one: public tests run first, so that a
            program can not have written down in one test what it reads in another.
        could_not_check: whether a test has no verdict; then nothing else here means anything.
    """

    statuses: tuple[Status, ...] = ()
    n_public: int = 0
    outcomes: tuple[Outcome, ...] = ()
    could_not_check: bool = False

    @property
    def passed(self) -> int:
        """Tests passed."""
        return self.statuses.count(Status.OK)

    @property
    def public_passed(self) -> int:
        """Public tests passed."""
        return self.statuses[: self.n_public].count(Status.OK)

    @property
    def hidden_passed(self) -> int:
        """Hidden tests passed."""
        return self.passed - self.public_passed

    @property
    def n_hidden(self) -> int:
        """Hidden tests."""
        return len(self.statuses) - self.n_public

    @property
    def share(self) -> float:
        """Share of all tests passed."""
        return self.passed / max(1, len(self.statuses))

    @property
    def all_public(self) -> bool:
        """Whether each public test passed."""
        return self.public_passed == self.n_public

    @property
    def all_tests(self) -> bool:
        """Whether there are tests, and each passed."""
        return 0 < len(self.statuses) == self.passed

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Public tests that failed, in order."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is not Status.OK)

    @property
    def fingerprint(self) -> str:
        """Short name of the vector of statuses: equal ones passed and failed alike."""
        return hashlib.sha256(" ".join(self.statuses).encode()).hexdigest()[:12]

    def counts(self) -> dict[str, Any]:
        """The numbers, for people."""
        return {
            "public_passed": self.public_passed,
            "public_total": self.n_public,
            "hidden_passed": self.hidden_passed,
            "hidden_total": self.n_hidden,
            "statuses": [status.value for status in self.statuses],
        }


class Grader:
    """Grades submissions, many at the same time, each program once.

    Verdicts are kept by problem and exact text of the program, the longest unused one leaving first. Threads that ask
    for the same program at the same time share one run. What could not be checked is never kept.

    Args:
        limits: of each test.
        judge: runs a program on tests.
        size: verdicts kept.
    """

    def __init__(self, limits: Limits, *, judge: Judge = judge_program, size: int = CACHE_SIZE):
        self.limits, self._judge, self._size = limits, judge, size
        self._kept: collections.OrderedDict[tuple[str, str], Grade] = collections.OrderedDict()
        self._running: dict[tuple[str, str], concurrent.futures.Future[Grade | None]] = {}
        self._others: dict[Limits, Grader] = {}
        self._lock = threading.Lock()

    def within(self, cpu_s: float) -> Grader:
        """Give the grader that grants a test at most so many CPU seconds; it keeps verdicts of its own."""
        limits = dataclasses.replace(self.limits, cpu_s=min(cpu_s, self.limits.cpu_s))
        with self._lock:
            return self._others.setdefault(limits, Grader(limits, judge=self._judge, size=self._size))

    def grade(self, problem: Problem, program: str) -> Grade:
        """Run a program on all tests of a problem, or remember what came of it."""
        key = (problem.digest, hashlib.sha256(program.encode("utf-8", "surrogatepass")).hexdigest())
        while True:
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
                other = self._running.get(key)
                if other is None:
                    mine = self._running[key] = concurrent.futures.Future()
            if other is None:
                return self._run(key, problem, program, mine)
            if (shared := other.result()) is not None:
                return shared  # else the other run gave nothing to share: try again

    def _run(
        self, key: tuple[str, str], problem: Problem, program: str, running: concurrent.futures.Future[Grade | None]
    ) -> Grade:
        known = None
        try:
            grade = self._ask(problem, program)
            known = None if grade.could_not_check else grade
            return grade
        finally:
            with self._lock:
                del self._running[key]
                if known is not None:
                    self._kept[key] = known
                    while len(self._kept) > self._size:
                        self._kept.popitem(last=False)
            running.set_result(known)

    def _ask(self, problem: Problem, program: str) -> Grade:
        tests = [*problem.public, *problem.hidden]
        try:
            verdict = self._judge(program, tests, limits=self.limits)
        except SandboxError:
            return Grade(could_not_check=True)
        return read_verdict(verdict, problem.public, len(tests))


def read_verdict(verdict: Verdict, public: Sequence[Test], total: int) -> Grade:
    """Turn the verdict on public and hidden tests, in this order, into a grade.

    A test without a verdict makes the whole one void, even if another test failed: shares of tests would not be true.
    """
    cases = verdict.results
    if verdict.could_not_check or not all(getattr(case, "checked", True) for case in cases):
        return Grade(could_not_check=True)
    statuses = [case.status for case in cases]
    statuses += [Status.TIME_LIMIT] * (total - len(statuses))
    outcomes = tuple(
        Outcome(test, case.status, case.reason, getattr(case, "answer", ""), getattr(case, "error", ""))
        for test, case in zip(public, cases, strict=False)
    )
    return Grade(tuple(statuses), len(public), outcomes)
