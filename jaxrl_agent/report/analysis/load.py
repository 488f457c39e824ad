"""Read an analysis of checkpoints and hold it against the runs of the report that shows it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxrl_agent.errors import RunError
from jaxrl_agent.report import svg
from jaxrl_agent.report.analysis import schema
from jaxrl_agent.report.figure import Key, Table
from jaxrl_agent.report.load import Run
from jaxrl_agent.report.settings import ABSENT, flatten
from jaxrl_agent.run_dir import Json, RunDir, read_json
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED, UNDECIDED

SAID = {SUPPORTED: "supports", CONTRADICTED: "contradicts", UNDECIDED: "cannot tell"}
_PROTOCOL = (*schema.COMPARED, "split", "n_tasks", "budget", "sampling", "seed", "versions")


@dataclasses.dataclass(frozen=True)
class Pair:
    """What the analysis found of one policy against the base, and the runs that the two are."""

    base: Run
    policy: Run
    found: Json  # step_quality, recovery, tool_error_correction, likelihood, dynamics

    def run(self, side: str) -> Run:
        """The run that "base" or "policy" is."""
        return self.base if side == "base" else self.policy


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A row of the table that holds a claim of the paper against the figures."""

    topic: str
    paper: str
    here: str
    verdict: str  # supported, contradicted or undecided
    rule: str
    policy: Run | None  # None where it is about all of them
    note: str

    @property
    def said(self) -> str:
        """The verdict in the words of the table."""
        return SAID[self.verdict]

    @property
    def remarks(self) -> list[str]:
        """The parts of the note."""
        return [part for part in self.note.split("; ") if part]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An analysis whose policies are runs of the report."""

    directory: RunDir
    base: Run
    pairs: tuple[Pair, ...]  # in the order of the runs
    verdicts: tuple[Verdict, ...]
    protocol: Json  # what all pairs share

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that were analysed, the base first."""
        return (self.base, *(pair.policy for pair in self.pairs))

    @property
    def claims(self) -> list[tuple[str, list[tuple[str, list[Verdict]]]]]:
        """Topics, in each the paper's words, to each the verdicts: all policies stand together."""
        groups: dict[str, dict[str, list[Verdict]]] = {}
        for verdict in self.verdicts:
            groups.setdefault(verdict.topic, {}).setdefault(verdict.paper, []).append(verdict)
        return [(topic, list(papers.items())) for topic, papers in groups.items()]

    @property
    def shared_remarks(self) -> list[str]:
        """Remarks on more than half of the verdicts: told once, below the table."""
        counts = Counter(remark for verdict in self.verdicts for remark in verdict.remarks)
        return [remark for remark, n in counts.items() if 2 * n > len(self.verdicts)]

    def small_print(self, verdict: Verdict) -> str:
        """The rule of a verdict, and remarks that say something of their own."""
        own = [r for r in verdict.remarks if r not in self.shared_remarks and r not in verdict.here]
        return " ".join(sentence(text) for text in (f"supported by: {verdict.rule}" * bool(verdict.rule), *own) if text)

    def keys(self) -> tuple[Key, ...]:
        """The key of a figure that draws the analysed runs."""
        return run_keys(self.runs)

    def having(self, part: str) -> list[Pair]:
        """The pairs for which a part of the analysis was measured."""
        return [pair for pair in self.pairs if pair.found.get(part)]

    def tally(self) -> str:
        """How many verdicts on the paper's claims say what; the checks of signs are none."""
        claims = [v for v in self.verdicts if not v.topic.startswith("sanity")]
        counts = {said: sum(v.verdict == verdict for v in claims) for verdict, said in SAID.items()}
        return ", ".join(f"{said} {n}" for said, n in counts.items() if n).capitalize()

    def verdict_table(self) -> Table:
        """The verdicts with their rules and notes."""
        rows = [
            (v.topic, v.policy.name if v.policy else None, v.paper, v.here, v.said, v.rule, v.note)
            for v in self.verdicts
        ]
        return Table(("claim", "run", "paper", "here", "verdict", "rule", "note"), tuple(rows))

    def settings(self) -> Table:
        """Protocol, checkpoints and versions of the analysis."""
        checkpoints = {pair.policy.name: pair.found.get("checkpoints") or {} for pair in self.pairs}
        flat = flatten({**self.protocol, "checkpoints": checkpoints})
        return Table(("setting", "value"), tuple((k, ABSENT if v in (None, "") else str(v)) for k, v in flat.items()))


def sentence(text: str) -> str:
    """A text with a capital at the start and a full stop at the end."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def true_minus(text: str) -> str:
    """A text whose hyphens before numbers are minus signs."""
    return re.sub(r"(?<![\w.])-(?=\d)", svg.MINUS, text)


def run_keys(runs: Sequence[Run]) -> tuple[Key, ...]:
    """Entries of a key for lines and whiskers in the colours of the runs."""
    return tuple(Key(run.name, f"slot-{run.slot}", run.slot) for run in runs)


def load_analysis(folder: str | Path, runs: Sequence[Run]) -> Analysis:
    """Read `analysis.json` of a folder for a report of `runs`; policies are matched to runs by their names.

    Args:
        folder: written by analyze.py.
        runs: the runs of the report, which agree with one another already.

    Raises:
        RunError: no such file, a key that is missing or malformed, a policy that is no run of the report, or a task,
            a largest budget, a visibility of the budget or data other than those of the runs.
    """
    directory = RunDir(Path(folder).expanduser().resolve())
    file = directory.path / "analysis.json"
    if not file.is_file():
        raise RunError(
            "the folder of --analysis must hold analysis.json",
            value=str(directory.path),
            remedy="Check the path, or run analyze.py with this folder as --out first.",
        )
    content = read_json(file)
    schema.check(content, str(file))
    by_name = {run.name: run for run in runs}
    told = [row["policy"] for row in content["verdicts"] if row["policy"]]
    _check_names(list(dict.fromkeys([content["base"], *content["pairs"], *told])), by_name)
    _check_comparable(content, runs[0])
    base = by_name[content["base"]]
    pairs = [Pair(base, by_name[name], found) for name, found in content["pairs"].items()]
    return Analysis(
        directory=directory,
        base=base,
        pairs=tuple(sorted(pairs, key=lambda pair: pair.policy.slot)),
        verdicts=tuple(_verdict(row, by_name) for row in content["verdicts"]),
        protocol={key: content[key] for key in _PROTOCOL if key in content},
    )


def _verdict(row: Json, by_name: dict[str, Run]) -> Verdict:
    texts = {key: "" if row[key] is None else str(row[key]) for key in schema.VERDICT if key != "policy"}
    return Verdict(policy=by_name.get(row["policy"]), **texts)


def _check_names(names: Sequence[str], by_name: dict[str, Run]) -> None:
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise RunError(
            f"every policy of the analysis must be among the runs of the report ({', '.join(by_name)}), by name",
            value=unknown,
            remedy="Give the runs in --runs the names that the analysis has, and leave none out.",
        )


def _check_comparable(content: Json, run: Run) -> None:
    for key in schema.COMPARED:
        if content[key] != run.evaluation.get(key):
            raise RunError(
                f"the analysis must have the same {key} as the evaluations of the runs",
                value={"analysis": content[key], run.name: run.evaluation.get(key)},
                remedy="Choose with --evaluation the evaluation on the tasks that were analysed, or analyse again.",
            )
