"""From a program and hidden tests to a verdict: the program runs in a sandbox, its answers are judged out here.

A test has one of these forms; `expected`, `output` and `checker` never enter the sandbox of the candidate:

- `{"input", "output"}`: standard input and standard output.
- `{"entry_point", "args", "expected"}`, also `kwargs`: a function `f`, a method `f` of `Solution`, or `A.f`.
- `{"call", "expected"}`: an expression in the candidate's names, for arguments that only those names can make
  (`"depth(Node(1))"`). Whoever overwrites a name that the expression uses changes no more than its own answer.

What each form protects: in all of them the candidate controls its answer and nothing else. A value crosses as JSON of
exact builtin types and is compared by `compare.py`, so objects that equal everything, forged verdict lines, exit codes
and missing answers gain nothing. The arguments of the one test that runs are visible to the candidate, as they must be.

Instead of `expected` or `output` a test may have `checker`, the text of a program with `check(args, value)` (with
`check(input, output)` for the first form), for problems with many right answers. It runs in another sandbox, where no
code of the candidate ever ran, on the answer as plain data, and must return exactly True. An answer that makes the
checker fail or run too long is wrong.

Further keys: `setup` (lines run after the program, in its names, before the call) and `rules` (of `compare.Rules`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox.compare import DEFAULT_RULES, Rules, is_wire, same_output, same_wire
from jaxrl_agent.sandbox.inside import call as inside_call
from jaxrl_agent.sandbox.results import CaseVerdict, Limits, Result, Status, Verdict
from jaxrl_agent.sandbox.worker import Worker, open_worker

FEEDBACK_BYTES = 2048
ANSWER_BYTES = 2048
BUDGET_OF_LIMITS = 10.0  # CPU time of all tests of one candidate, in units of the limit of one test

_FORMS = (
    {"input", "output"},
    {"input", "checker"},
    {"entry_point", "args", "expected"},
    {"entry_point", "args", "checker"},
    {"call", "expected"},
)
_ENDED_BY_KILL = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT)
_EXTRA = {"kwargs", "setup", "rules"}
_REMEDY = "Forms: input and output; entry_point, args and expected; call and expected; or checker instead of the last."


class Session(Protocol):
    """One sandbox for one candidate: runs of it share files, and nothing else."""

    def run(self, stdin: str) -> Result:
        """Run the program once more. Raises SandboxError if the sandbox fails."""


Sessions = Callable[[str, Limits], AbstractContextManager[Session]]  # program, limits -> its sandbox


@dataclasses.dataclass(frozen=True)
class JudgedCase(CaseVerdict):
    """One test, with what the candidate wrote, for feedback on tests that are public.

    Attributes:
        answer: its standard output, or its value in wire form, at most 2 kB of it.
        error: its standard error, at most 2 kB from the end.
        checked: false where the sandbox failed twice; then the status says nothing.
    """

    answer: str = ""
    error: str = ""
    checked: bool = True


_NOT_RUN = JudgedCase(Status.TIME_LIMIT, "not run: the time for all tests together is used up")


def judge_program(
    program: str,
    tests: Sequence[Mapping[str, Any]],
    *,
    limits: Limits | None = None,
    stop_at_first: bool = False,
    budget_s: float | None = None,
    sessions: Sessions | None = None,
) -> Verdict:
    """Run a program on every test and say which it passes.

    A sandbox that fails is replaced once for each test; what fails again could not be checked. One failed test decides
    the verdict even if another could not be checked.

    Args:
        program: Python source.
        tests: at least one; their forms are in the module's docstring.
        limits: of each test; None for the defaults.
        stop_at_first: whether tests after the first failed one are left out.
        budget_s: CPU seconds of all tests together, a test that ran into its time limit counted with its full limit;
            tests after that fail without being run. None for 10 times the limit of one test.
        sessions: what opens sandboxes; None for the real ones.

    Raises:
        ArgumentError: no test, or a test of another form.
    """
    limits = Limits() if limits is None else limits
    cases = read_tests(program, tests)
    left_s = BUDGET_OF_LIMITS * limits.cpu_s if budget_s is None else budget_s
    judged: list[JudgedCase] = []
    with _Sandboxes(sessions or sandbox_sessions, limits) as sandboxes:
        for case in cases:
            judged.append(_judge_case(case, sandboxes) if left_s > 0.0 else _NOT_RUN)
            left_s -= limits.cpu_s if judged[-1].status is Status.TIME_LIMIT else judged[-1].cpu_s
            if stop_at_first and judged[-1].status is not Status.OK:
                break
    return _verdict(judged, total=len(cases), tier=sandboxes.tier)


async def ajudge_program(program: str, tests: Sequence[Mapping[str, Any]], **options: Any) -> Verdict:
    """Do what `judge_program` does, in a thread, without blocking the event loop."""
    return await asyncio.to_thread(judge_program, program, tests, **options)


def judge_programs(
    jobs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], *, workers: int | None = None, **options: Any
) -> list[Verdict]:
    """Judge many (program, tests) at the same time; verdicts come in the order of the jobs.

    Args:
        jobs: pairs of a program and its tests.
        workers: how many are judged at the same time; None for one less than there are cores.
        options: as of `judge_program`.
    """
    workers = workers or max(1, (os.cpu_count() or 2) - 1)
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
        return list(pool.map(lambda job: judge_program(*job, **options), jobs))


# ---- tests


@dataclasses.dataclass(frozen=True)
class Case:
    """What to run for one test, and how to grade what it wrote.

    Attributes:
        program: the program to run in the candidate's sandbox.
        stdin: its standard input.
        read: turns standard output into the answer, a wire value; raises ValueError if it is none.
        right: whether an answer equals the expected one; None where a checker says so.
        checker: text of the checker's program.
        question: what the checker gets beside the answer, a wire value.
    """

    program: str
    stdin: str
    read: Callable[[str], object]
    right: Callable[[Any], bool] | None
    checker: str = ""
    question: object = None


def read_tests(program: str, tests: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Check tests and say what each of them runs; see the module's docstring.

    Raises:
        ArgumentError: no test, or one of another form.
    """
    if not isinstance(program, str):
        raise ArgumentError("a program must be text", value=type(program).__name__)
    if not tests:
        raise ArgumentError("a judge needs at least one test", remedy="Leave out problems without tests.")
    # What is no Unicode text reaches the sandbox as escapes, and fails there like other nonsense.
    program = program.encode("utf-8", "backslashreplace").decode("utf-8")
    return [_read_test(program, test) for test in tests]


def _read_test(program: str, test: Mapping[str, Any]) -> Case:
    if not isinstance(test, Mapping) or set(test) - _EXTRA not in _FORMS:
        keys = sorted(test) if isinstance(test, Mapping) else type(test).__name__
        raise ArgumentError("a test must have one of the known forms", value=keys, remedy=_REMEDY)
    rules = _read_rules(test.get("rules", DEFAULT_RULES))
    texts = [test[key] for key in ("input", "output", "entry_point", "call", "checker", "setup") if key in test]
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError("input, output, entry_point, call, checker and setup must be text", value=test)
    if "input" in test:
        right = functools.partial(same_output, expected=test.get("output"), tolerance=rules.tolerance)
        return Case(
            program, test["input"], str, right if "output" in test else None, test.get("checker", ""), test["input"]
        )
    request = {"program": program, "setup": test.get("setup", "")}
    if "call" in test:
        request |= {"call": test["call"]}
    else:
        request |= {
            "entry_point": test["entry_point"],
            "args": _to_wire(list(test["args"])),
            "kwargs": _to_wire(dict(test.get("kwargs", {}))),
        }
    right = None
    if "expected" in test:
        right = functools.partial(same_wire, expected=_to_wire(test["expected"]), rules=rules)
    return Case(_wrapper(), json.dumps(request), _read_value, right, test.get("checker", ""), request.get("args"))


def _read_rules(rules: Rules | Mapping[str, Any]) -> Rules:
    if isinstance(rules, Rules):
        return rules
    try:
        return Rules(**rules)
    except TypeError as error:
        raise ArgumentError("rules must be those of compare.Rules", value=rules) from error


def _to_wire(value: object) -> object:
    try:
        return inside_call.to_wire(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError("arguments and expected values must be of builtin types", value=str(error)) from error


def _read_value(text: str) -> object:
    """Read the answer of a call; ValueError if it is not one JSON value in wire form."""
    try:
        value = json.loads(text)
        if is_wire(value):
            return value
    except RecursionError:
        pass
    raise ValueError("not a wire value")


@functools.cache
def _wrapper() -> str:
    return Path(inside_call.__file__).read_text(encoding="utf-8")


# ---- one test


class _Sandboxes:
    """The sandbox of the candidate and that of the checkers, opened when needed, replaced once when one fails."""

    def __init__(self, sessions: Sessions, limits: Limits):
        self._sessions, self._limits = sessions, limits
        self._open: dict[tuple[str, str], tuple[Session, contextlib.ExitStack]] = {}
        self.tier = ""

    def __enter__(self) -> _Sandboxes:
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self._open):
            self._close(*key)

    def _close(self, kind: str, program: str) -> None:
        _, stack = self._open.pop((kind, program), (None, contextlib.ExitStack()))
        with contextlib.suppress(SandboxError):  # it has served, or is being replaced because it failed
            stack.close()

    def run(self, kind: str, program: str, stdin: str) -> Result:
        """Run a program in the sandbox of a kind, "candidate" or "checker"."""
        try:
            return self._run(kind, program, stdin)
        except SandboxError:
            self._close(kind, program)
            try:
                return self._run(kind, program, stdin)
            except SandboxError:
                self._close(kind, program)
                raise

    def _run(self, kind: str, program: str, stdin: str) -> Result:
        key = (kind, program)
        if key not in self._open:
            stack = contextlib.ExitStack()
            self._open[key] = (stack.enter_context(self._sessions(program, self._limits)), stack)
        result = self._open[key][0].run(stdin)
        self.tier = result.tier
        if result.status in _ENDED_BY_KILL:
            self._close(kind, program)  # a limit ends the sandbox; the next test gets a new one
        return result


def _judge_case(case: Case, sandboxes: _Sandboxes) -> JudgedCase:
    try:
        result = sandboxes.run("candidate", case.program, case.stdin)
        used = {"wall_s": result.wall_s, "cpu_s": result.cpu_s}
        if result.status is not Status.OK:
            return JudgedCase(
                result.status, result.reason, **used, answer=_cut(result.stdout), error=_cut(result.stderr, end=True)
            )
        status, reason = _grade(case, result.stdout, sandboxes)
        return JudgedCase(status, reason, **used, answer=_cut(result.stdout), error=_cut(result.stderr, end=True))
    except SandboxError as error:
        return JudgedCase(Status.WRONG, f"could not be checked: {error}", checked=False)


def _grade(case: Case, stdout: str, sandboxes: _Sandboxes) -> tuple[Status, str]:
    try:
        answer = case.read(stdout)
    except ValueError:
        return Status.WRONG, "it ended without an answer" if not stdout.strip() else "its answer cannot be read"
    right = case.right(answer) if case.right is not None else _ask_checker(case, answer, sandboxes)
    return (Status.OK, "") if right else (Status.WRONG, "wrong answer")


def _ask_checker(case: Case, answer: object, sandboxes: _Sandboxes) -> bool:
    """Run the checker where no code of the candidate ever was."""
    request = {"program": case.checker, "entry_point": "check", "args": [case.question, answer]}
    result = sandboxes.run("checker", _wrapper(), json.dumps(request))
    return result.status is Status.OK and result.stdout == "true"


def run_call(request: Mapping[str, Any], *, limits: Limits, sessions: Sessions | None = None) -> Any:
    """Run a trusted program and one call of it in a sandbox, and return the value.

    Args:
        request: as `inside/call.py` reads it.
        limits: of the run.
        sessions: what opens sandboxes; None for the real ones.

    Raises:
        SandboxError: there was no value.
    """
    with (sessions or sandbox_sessions)(_wrapper(), limits) as session:
        result = session.run(json.dumps(request))
    try:
        return inside_call.from_wire(_read_value(result.stdout))
    except ValueError:
        error = f"{result.status}: {_cut(result.stderr, end=True)}"
        raise SandboxError("a trusted program must give a value", value=error) from None


class _RealSession:
    def __init__(self, worker: Worker):
        self._worker = worker

    def run(self, stdin: str) -> Result:
        return self._worker.call({"stdin": stdin, "args": []}).result


@contextlib.contextmanager
def sandbox_sessions(program: str, limits: Limits) -> Iterator[Session]:
    """Open a real sandbox for one candidate."""
    with open_worker("code", setup={"program": program}, limits=limits) as worker:
        yield _RealSession(worker)


# ---- verdicts


def _verdict(judged: Sequence[JudgedCase], *, total: int, tier: str) -> Verdict:
    failed = [number for number, case in enumerate(judged) if case.checked and case.status is not Status.OK]
    passed = sum(case.status is Status.OK for case in judged)
    unchecked = passed + len(failed) < len(judged)
    if failed:
        status = judged[failed[0]].status
        feedback = _feedback(f"Test {failed[0] + 1} of {total}", judged[failed[0]])
    else:
        status, feedback = (Status.WRONG, "") if passed < total else (Status.OK, "")
    return Verdict(
        status,
        passed,
        total,
        tuple(judged),
        feedback=feedback,
        could_not_check=unchecked and not failed,
        tier=tier,
    )


def _feedback(name: str, case: JudgedCase) -> str:
    """Words for the model about one failed test: its kind of failure, and the end of the candidate's own errors."""
    head = f"{name}: {case.status.value.replace('_', ' ')}"
    head += f" ({case.reason})." if case.reason and case.reason != "wrong answer" else "."
    tail = case.error.strip() if case.status is not Status.WRONG else ""
    room = FEEDBACK_BYTES - len(head.encode("utf-8", "replace")) - 1
    return _cut(f"{head}\n{_cut(tail, room, end=True)}" if tail and room > 0 else head, FEEDBACK_BYTES)


def _cut(text: str, size: int = ANSWER_BYTES, *, end: bool = False) -> str:
    """Cut a text to a number of UTF-8 bytes, keeping its start, or its end."""
    data = text.encode("utf-8", "replace")
    return (data[-size:] if end else data[:size]).decode("utf-8", "ignore")
