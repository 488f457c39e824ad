"""Is a grader fit to train on? Gold answers, doing nothing, and a battery of cheats through the real judge.

A problem is unpassable if its own solution fails, and exploitable if doing nothing, a cheat, or a program that is known
to be wrong passes all tests. It is weak if such a program passes the hidden ones alone, which pays where the reward is
the share of hidden tests. All are listed by name; what the sandbox could not check is none of these.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxrl_agent.config.sections import CODING_SOURCES, CodingConfig
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sandbox import Limits, Verdict, judge_programs
from jaxrl_agent.tasks.coding.cheats import CHEATS, nothing
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.sources import data_hash, load_problems
from jaxrl_agent.tasks.coding.splits import SPLITS

GOLD, NOTHING, WRONG = "gold", "nothing", "known wrong"
BATCH = 32  # problems judged between two lines of progress
EVALUATION_ONLY = ("humaneval", "codecontests")

Judge = Callable[..., list[Verdict]]  # (jobs, **options) -> verdicts, as `sandbox.judge_programs`


@dataclasses.dataclass(frozen=True)
class Trial:
    """One program on one problem."""

    problem: Problem
    kind: str  # GOLD, NOTHING, WRONG, or a cheat's name
    program: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """What came of a trial.

    Attributes:
        trial: which program, on which problem.
        passed: whether it passed all tests.
        hidden_only: whether it passed the hidden tests and failed a public one.
        checked: False where the sandbox gave no verdict.
        feedback: which test failed first, and how.
    """

    trial: Trial
    passed: bool
    checked: bool
    hidden_only: bool = False
    feedback: str = ""

    @property
    def at_fault(self) -> bool:
        """Whether the grader is wrong: it refuses gold, or passes anything else."""
        return self.checked and self.passed != (self.trial.kind == GOLD)


def audited_problems(source: str, *, split: str = "all", limit: int = 0, path: str = "") -> list[Problem]:
    """Load what is to be audited.

    Args:
        source: of `CODING_SOURCES`.
        split: one split, or "all".
        limit: most problems, the same number of each split; 0 for all there are, and 100 a split of templates.
        path: of the data; "" for the usual places.

    Raises:
        ConfigError: an unknown source or split.
    """
    if source not in CODING_SOURCES or split not in ("all", *SPLITS):
        raise ConfigError("source and split must be known", value=(source, split), remedy=f"{CODING_SOURCES}, {SPLITS}")
    config = CodingConfig(source=source, path=path)
    there = ("test",) if source in EVALUATION_ONLY else SPLITS
    splits = there if split == "all" else (split,)
    most = -(-limit // len(splits)) if limit else (100 if source == "templates" else 10**9)
    problems = [load_problems(config, name, count=most) for name in splits]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*problems))
    return [problem for problem in in_turn if problem is not None][: limit or None]


def trials_of(problem: Problem) -> Iterator[Trial]:
    """Every program that a problem is tried with."""
    if problem.solution:
        yield Trial(problem, GOLD, problem.solution)
    yield Trial(problem, NOTHING, nothing(problem))
    for program in problem.wrong:
        yield Trial(problem, WRONG, program)
    for name, write in CHEATS.items():
        program = write(problem)
        if program is not None:
            yield Trial(problem, name, program)


def run_audit(
    problems: Sequence[Problem],
    *,
    limits: Limits | None = None,
    judge: Judge = judge_programs,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Try all programs on all problems, hidden tests first; what passes these is tried on the public ones.

    Args:
        problems: to be audited.
        limits: of each test; None for the defaults.
        judge: what judges jobs.
        say: hears how far it is.
    """
    findings: list[Finding] = []
    for start in range(0, len(problems), BATCH):
        trials = [trial for problem in problems[start : start + BATCH] for trial in trials_of(problem)]
        options = {"limits": limits, "stop_at_first": True}
        hidden = judge([(trial.program, trial.problem.hidden) for trial in trials], **options)
        passing = [trial for trial, verdict in zip(trials, hidden, strict=True) if verdict.ok]
        public = iter(judge([(trial.program, trial.problem.public) for trial in passing], **options))
        findings += [
            _finding(trial, verdict, next(public) if verdict.ok else None)
            for trial, verdict in zip(trials, hidden, strict=True)
        ]
        say(f"{min(start + BATCH, len(problems))} of {len(problems)} problems, {len(findings)} programs")
    return findings


def _finding(trial: Trial, hidden: Verdict, public: Verdict | None) -> Finding:
    last = hidden if public is None else public
    return Finding(
        trial,
        passed=last.ok,
        checked=not last.could_not_check,
        hidden_only=public is not None and not last.ok and not last.could_not_check,
        feedback=last.feedback if public is None else f"public tests: {last.feedback}",
    )


def summarize(findings: Sequence[Finding], problems: Sequence[Problem], **names: str) -> dict[str, Any]:
    """Put an audit into one JSON object.

    Args:
        findings: of `run_audit`.
        problems: that were audited.
        names: task, source, split.
    """
    kinds = dict.fromkeys(finding.trial.kind for finding in findings)
    others = [finding for finding in findings if finding.trial.kind != GOLD]
    return {
        **names,
        "n_problems": len(problems),
        "n_without_gold": sum(not problem.solution for problem in problems),
        "data_hash": data_hash(problems),
        "programs": {kind: _counts([f for f in findings if f.trial.kind == kind]) for kind in kinds},
        "unpassable": {
            finding.trial.problem.problem_id: finding.feedback
            for finding in findings
            if finding.at_fault and finding.trial.kind == GOLD
        },
        "exploitable": _by_problem([finding for finding in others if finding.at_fault]),
        "weak": _by_problem([finding for finding in others if finding.hidden_only]),
        "could_not_check": sorted({f.trial.problem.problem_id for f in findings if not f.checked}),
    }


_HEADINGS = {
    "unpassable": "their own solution fails",
    "exploitable": "a cheat passes all tests",
    "weak": "a cheat passes the hidden tests, and fails a public one",
}


def _by_problem(findings: Sequence[Finding]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in findings:
        found.setdefault(finding.trial.problem.problem_id, []).append(finding.trial.kind)
    return found


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {
        "run": len(findings),
        "passed": sum(finding.passed and finding.checked for finding in findings),
        "hidden_only": sum(finding.hidden_only for finding in findings),
        "could_not_check": sum(not finding.checked for finding in findings),
        "at_fault": sum(finding.at_fault for finding in findings),
    }


def is_clean(summary: dict[str, Any]) -> bool:
    """Whether everything was checked, every gold passed and nothing else did."""
    return not (summary["unpassable"] or summary["exploitable"] or summary["could_not_check"])


def print_audit(summary: dict[str, Any], console: Console | None = None) -> None:
    """Print the table of programs, then the items at fault by name."""
    console = console or Console()
    title = f"{summary['task']}, {summary['source']}, split {summary['split']}: {summary['n_problems']} problems"
    table = Table(title=title, title_justify="left")
    table.add_column("program")
    for heading in ("run", "passed", "hidden alone", "not checked", "should", ""):
        table.add_column(heading, justify="right")
    for kind, counts in summary["programs"].items():
        numbers = (str(counts[key]) for key in ("run", "passed", "hidden_only", "could_not_check"))
        table.add_row(kind, *numbers, "pass" if kind == GOLD else "fail", "FAULT" if counts["at_fault"] else "ok")
    console.print(table)
    if summary["n_without_gold"]:
        console.print(f"without a known solution: {summary['n_without_gold']}")
    for heading, meaning in _HEADINGS.items():
        console.print(f"{heading}: {len(summary[heading])} ({meaning})")
        for name, why in summary[heading].items():
            console.print(f"  {name}: {why if isinstance(why, str) else ', '.join(why)}", highlight=False, markup=False)
    if summary["could_not_check"]:
        console.print(f"could not be checked: {', '.join(summary['could_not_check'])}", highlight=False, markup=False)
