"""Pass@(K,T) of every run with intervals, and paired differences between runs, from the samples themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_agent.errors import RunError
from jaxrl_agent.report.load import Run
from jaxrl_agent.report.svg import MINUS
from jaxrl_agent.statistics import Estimate, bootstrap_difference, bootstrap_mean, pass_at_k_table

HEADLINE_PERCENTS = (25, 50, 75, 100)
HEADLINE_K = 8

Cell = tuple[int, int]  # K, T


@dataclasses.dataclass(frozen=True)
class Budget:
    """A column of the headline table."""

    percent: int  # of t_max that the turns are: 40 for 2 of 5, which stand where 25 are asked for
    turns: int

    @property
    def text(self) -> str:
        """The budget in words."""
        return f"{self.turns} turns ({self.percent}%)"


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much better one run is than another, cell by cell."""

    better: Run
    than: Run
    cells: dict[Cell, Estimate]

    @property
    def label(self) -> str:
        """Names of the two runs."""
        return f"{self.better.name} {MINUS} {self.than.name}"


@dataclasses.dataclass(frozen=True)
class Surface:
    """Pass@(K,T) of all runs of one report."""

    runs: tuple[Run, ...]
    budgets: tuple[Budget, ...]  # headline columns that every run has
    ks: tuple[int, ...]
    cells: dict[str, dict[Cell, Estimate]]  # by run name
    differences: tuple[Difference, ...]

    @property
    def headline_ks(self) -> tuple[int, ...]:
        """1, and 8 or the largest K if 8 was not evaluated."""
        more = HEADLINE_K if HEADLINE_K in self.ks else max(self.ks)
        return (1,) if more == 1 else (1, more)

    def difference(self, better: Run, than: Run) -> Difference:
        """The stored difference of two runs."""
        return next(d for d in self.differences if d.better.name == better.name and d.than.name == than.name)


def turns_at(percent: int, t_max: int) -> int:
    """`percent` of t_max, rounded up in integers."""
    return (percent * t_max + 99) // 100


def pass_values_PC(run: Run, cells: Sequence[Cell]) -> np.ndarray:
    """Pass@(K,T) of each task (rows) and each (K, T) cell (columns), float64. Source: "Pass@(K,T)"."""
    columns = []
    for k, turns in cells:
        first_PN = run.first_success_PN(turns)
        columns.append(pass_at_k_table(first_PN.shape[1], k)[(first_PN > 0).sum(axis=1)])
    return np.stack(columns, axis=1)


def compute_surface(runs: Sequence[Run]) -> Surface:
    """All numbers of the evaluation part of the report.

    Intervals: percentile 95% of the cluster bootstrap over tasks; differences are paired by task.

    Raises:
        RunError: the runs share no headline budget, or a stored grid disagrees with the stored samples.
    """
    t_max = runs[0].t_max
    common = set.intersection(*(set(run.evaluated_turns()) for run in runs))
    headline = dict.fromkeys(turns_at(percent, t_max) for percent in HEADLINE_PERCENTS)
    budgets = tuple(Budget(round(100 * turns / t_max), turns) for turns in headline if turns in common)
    if not budgets:
        raise RunError(
            "runs in one report must share a budget at 25, 50, 75 or 100% of t_max",
            value={run.name: run.evaluated_turns() for run in runs},
            remedy="Run evaluate.py with --budget_fractions=0.25,0.5,0.75,1.0.",
        )
    largest_k = min(run.evaluation["n_samples"] for run in runs)
    ks = tuple(k for k in sorted(set.intersection(*(set(run.ks) for run in runs))) if k <= largest_k)
    cells = {run.name: _estimates(run, [(k, t) for k in ks for t in run.evaluated_turns()]) for run in runs}
    for run in runs:
        _check_grid(run, cells[run.name])
    pairs = [(run, runs[0]) for run in runs[1:]]
    if len(runs) > 2:
        pairs.append((runs[-1], runs[1]))
    shared = [(k, t) for k in ks for t in sorted(common)]
    differences = tuple(Difference(a, b, _paired(a, b, shared)) for a, b in pairs)
    return Surface(tuple(runs), budgets, ks, cells, differences)


def _estimates(run: Run, cells: list[Cell]) -> dict[Cell, Estimate]:
    return _by_cell(cells, bootstrap_mean(pass_values_PC(run, cells)))


def _paired(better: Run, than: Run, cells: list[Cell]) -> dict[Cell, Estimate]:
    return _by_cell(cells, bootstrap_difference(pass_values_PC(better, cells), pass_values_PC(than, cells)))


def _by_cell(cells: list[Cell], many: Estimate) -> dict[Cell, Estimate]:
    return {
        cell: Estimate(float(many.estimate[i]), float(many.low[i]), float(many.high[i]), many.n)
        for i, cell in enumerate(cells)
    }


def _check_grid(run: Run, cells: dict[Cell, Estimate]) -> None:
    """The grid that evaluate.py stored must follow from the samples that it stored."""
    for entry in run.evaluation.get("grid") or []:
        cell = (int(entry["K"]), int(entry["T"]))
        if cell in cells and abs(cells[cell].estimate - entry["value"]) > 1e-6:
            raise RunError(
                f'"grid" of {run.name} must agree with its "runs" at K={cell[0]}, T={cell[1]} '
                f"({cells[cell].estimate:.6f} from the samples)",
                value=entry["value"],
                remedy="The file was changed or mixed; run evaluate.py again.",
            )
