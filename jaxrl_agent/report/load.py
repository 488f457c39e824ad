"""Read the runs of a report from their directories, and refuse runs that cannot be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_agent.errors import ArgumentError, RunError
from jaxrl_agent.run_dir import Json, RunDir

DEFAULT_EVALUATION = "test"
_COMPARED = ("task", "split", "n_tasks", "t_max", "budget_visibility", "data_hash")
_COMPARED_SAMPLING = ("temperature", "top_k", "top_p", "think")


@dataclasses.dataclass(frozen=True)
class Run:
    """What the report knows of one run: the files, read once."""

    name: str
    slot: int  # place on the command line; gives the colour
    directory: RunDir
    config: Json
    versions: Json
    evaluation_name: str
    evaluation: Json
    metrics: tuple[Json, ...]
    warm_start: tuple[Json, ...]

    @property
    def t_max(self) -> int:
        """Largest budget of the evaluation, in turns."""
        return int(self.evaluation["t_max"])

    @property
    def hidden(self) -> bool:
        """Whether the agent was told nothing of its budget, so that one evaluation serves every budget."""
        return self.evaluation["budget_visibility"] == "hidden"

    def first_success_PN(self, turns: int) -> np.ndarray | None:
        """First successful turn of each sample when `turns` are allowed; 0 = never; None if not evaluated there."""
        entries = {int(entry["T"]): entry["first_success_turns"] for entry in self.evaluation["runs"]}
        rows = entries.get(self.t_max if self.hidden else turns)
        if rows is None:
            return None
        first_PN = np.array([[turn or 0 for turn in row] for row in rows], np.int64)
        return np.where(first_PN <= turns, first_PN, 0)

    def evaluated_turns(self) -> list[int]:
        """Budgets that have a result: all up to t_max if the budget was hidden, else those enforced."""
        if self.hidden:
            return list(range(1, self.t_max + 1))
        return sorted(int(entry["T"]) for entry in self.evaluation["runs"])

    @property
    def ks(self) -> list[int]:
        """The K of the evaluation's grid, always with 1."""
        return sorted({1, *(int(cell["K"]) for cell in self.evaluation.get("grid") or [])})


def parse_runs(items: Sequence[str]) -> list[tuple[str, str]]:
    """Split `NAME=DIR` items.

    Raises:
        ArgumentError: no item, an item without a name, or a name given twice.
    """
    pairs = []
    for item in items:
        name, equals, path = (part.strip() for part in item.partition("="))
        if not (name and equals and path):
            raise ArgumentError(
                "--runs must list NAME=DIR items",
                value=item,
                remedy="For example --runs=base=runs/base,grpo=runs/grpo.",
            )
        if name in [known for known, _ in pairs]:
            raise ArgumentError("names in --runs must differ", value=name, remedy="Rename one of the two runs.")
        pairs.append((name, path))
    if not pairs:
        raise ArgumentError("--runs must name at least one run", remedy="For example --runs=base=runs/base.")
    return pairs


def load_run(name: str, path: str, *, slot: int, evaluation: str = "") -> Run:
    """Read one run directory and check what the report builds on."""
    directory = RunDir.open(path)
    chosen, result = choose_evaluation(directory, evaluation)
    where = str(directory.path / "evaluations" / f"{chosen}.json")
    _check_evaluation(result, where)
    has_versions = (directory.path / "versions.json").is_file()
    metrics, warm_start = tuple(directory.metrics()), tuple(directory.warm_start())
    for file, rows in (("metrics.jsonl", metrics), ("warm_start.jsonl", warm_start)):
        if any("update" not in row for row in rows):
            raise RunError('every line must have an "update"', value=str(directory.path / file))
    return Run(
        name=name,
        slot=slot,
        directory=directory,
        config=directory.config(),
        versions=directory.versions() if has_versions else {},
        evaluation_name=chosen,
        evaluation=result,
        metrics=metrics,
        warm_start=warm_start,
    )


def choose_evaluation(directory: RunDir, wanted: str = "") -> tuple[str, Json]:
    """The evaluation named `wanted`; without a wish the one named "test", else the only one.

    Raises:
        RunError: there is none, or the choice is not clear; names the choices.
    """
    found = directory.evaluations()
    if wanted and wanted in found:
        return wanted, found[wanted]
    if not wanted and DEFAULT_EVALUATION in found:
        return DEFAULT_EVALUATION, found[DEFAULT_EVALUATION]
    if not wanted and len(found) == 1:
        return next(iter(found.items()))
    place = directory.path / "evaluations"
    if not found:
        raise RunError(
            "a run in a report needs an evaluation in its folder evaluations/",
            value=str(place),
            remedy=f"Run evaluate.py with --out={place / DEFAULT_EVALUATION}.json first.",
        )
    rule = f"{place} must hold the evaluation asked for" if wanted else f"{place} must hold {DEFAULT_EVALUATION}.json"
    remedy = f"Choose with --evaluation=NAME; there are: {', '.join(found)}."
    raise RunError(rule, value=wanted or sorted(found), remedy=remedy)


def _check_evaluation(result: Json, where: str) -> None:
    """Refuse an evaluation that lacks a key or whose samples are not a full table."""
    required = ("task", "n_tasks", "n_samples", "t_max", "budget_visibility", "runs")
    missing = [key for key in required if key not in result]
    if missing:
        raise RunError(f"an evaluation must hold {', '.join(required)}", value=where, remedy=f"Missing: {missing}.")
    for entry in result["runs"]:
        rows = entry.get("first_success_turns") or []
        if "T" not in entry:
            raise RunError('every entry of "runs" must have a "T"', value=where, remedy="Run evaluate.py again.")
        if len(rows) != result["n_tasks"] or any(len(row) != result["n_samples"] for row in rows):
            raise RunError(
                f"first_success_turns at T={entry['T']} must have n_tasks={result['n_tasks']} rows of "
                f"n_samples={result['n_samples']}",
                value=where,
                remedy="Run evaluate.py again.",
            )
    turns = [entry["T"] for entry in result["runs"]]
    if not turns or (result["budget_visibility"] == "hidden" and result["t_max"] not in turns):
        raise RunError('"runs" must hold the samples of t_max', value=where, remedy="Run evaluate.py again.")


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs whose evaluations differ in tasks, budgets, what the agent was told, reasoning, or sampling.

    Raises:
        RunError: names the first setting that differs, and its value in both runs.
    """
    first = runs[0]
    for run in runs[1:]:
        pairs: list[tuple[str, Any, Any]] = [
            (key, first.evaluation.get(key), run.evaluation.get(key)) for key in _COMPARED
        ]
        pairs += [
            (f"sampling.{key}", *((r.evaluation.get("sampling") or {}).get(key) for r in (first, run)))
            for key in _COMPARED_SAMPLING
        ]
        for key, ours, theirs in pairs:
            if ours != theirs:
                raise RunError(
                    f"runs in one report must have the same {key} in their evaluations",
                    value={first.name: ours, run.name: theirs},
                    remedy="Evaluate both with the same settings, or report them apart.",
                )


def setting(config: Json, dotted: str, default: Any = None) -> Any:
    """Value at `a.b.c` in nested dicts, or `default`."""
    value: Any = config
    for key in dotted.split("."):
        if not isinstance(value, dict) or key not in value:
            return default
        value = value[key]
    return value
