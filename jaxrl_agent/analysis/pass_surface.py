"""Pass@(K,T) of every arm of a comparison over seeds, and differences paired by seed and task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_agent.analysis.arms import Arm
from jaxrl_agent.analysis.seeds import SeedMean, means_over_seeds
from jaxrl_agent.errors import RunError
from jaxrl_agent.evaluation.pass_at_kt import default_ks, turn_grid
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import pass_at_k_table

HEADLINE_PERCENTS = (25, 50, 75, 100)
HEADLINE_K = 8
_SAME = ("task", "split", "data_hash", "t_max", "budget_visibility", "n_tasks", "n_samples")

Cell = tuple[int, int]  # K, T
Cells = dict[Cell, SeedMean]


@dataclasses.dataclass(frozen=True)
class Headroom:
    """What the best agent that sees everything could still gain at one budget."""

    optimal: float  # success of that agent
    mean: float  # optimal minus the arm's success, mean over seeds and tasks
    low: float  # lowest end of the seeds' own 95% intervals over tasks


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All numbers of a comparison; dictionaries go by names of arms."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    facts: Json  # what is the same in every evaluation
    budgets: tuple[int, ...]  # turns
    ks: tuple[int, ...]
    values: dict[str, Cells]
    differences: dict[tuple[str, str], Cells]  # (a, b) holds a minus b
    headroom: dict[str, dict[int, Headroom]]  # by turns; empty where exact values are not known

    @property
    def headline_ks(self) -> tuple[int, ...]:
        """1, and 8 or the largest K below it."""
        return tuple(sorted({1, max(k for k in self.ks if k <= HEADLINE_K)}))

    @property
    def headline_budgets(self) -> tuple[int, ...]:
        """Quarters of the largest budget that were evaluated; all budgets if none was."""
        quarters = {self.turns_at(percent) for percent in HEADLINE_PERCENTS}
        return tuple(turns for turns in self.budgets if turns in quarters) or self.budgets

    def turns_at(self, percent: int) -> int:
        """A share of the largest budget in turns, rounded up."""
        return turn_grid(self.facts["t_max"], (percent,))[0]

    def share(self, turns: int) -> str:
        """A budget as a share of the largest one."""
        return f"{100 * turns / self.facts['t_max']:.3g}%"


def analyse(arms: Sequence[Arm], seeds: Sequence[int], evaluations: Mapping[str, Sequence[Json]]) -> Comparison:
    """Compute a comparison from evaluations.

    Args:
        arms: bases and methods.
        seeds: in the order of the evaluations.
        evaluations: by name of the arm, one for each seed, as `evaluator.evaluate` makes them.

    Raises:
        RunError: evaluations differ in their tasks, budgets or number of samples.
    """
    facts, budgets = _same_in_all(seeds, evaluations)
    ks = default_ks(facts["n_samples"])
    cells = [(k, turns) for k in ks for turns in budgets]
    values_SPC = {
        name: np.stack([_pass_values_PC(evaluation, cells) for evaluation in found])
        for name, found in evaluations.items()
    }
    return Comparison(
        arms=tuple(arms),
        seeds=tuple(seeds),
        facts=facts,
        budgets=budgets,
        ks=ks,
        values={name: _by_cell(cells, values) for name, values in values_SPC.items()},
        differences={(a, b): _by_cell(cells, values_SPC[a] - values_SPC[b]) for a, b in _pairs(arms)},
        headroom={name: _headroom(found) for name, found in evaluations.items()},
    )


def record(comparison: Comparison, cell: Cell, value: SeedMean) -> Json:
    """One number of a comparison with its place and its spreads, flat."""
    k, turns = cell
    return {
        "K": k,
        "T": turns,
        "T_fraction": turns / comparison.facts["t_max"],
        "mean": value.mean,
        "task_low": value.tasks.low,
        "task_high": value.tasks.high,
        "seed_sd": value.sd,
        "seed_low": value.seeds.low,
        "seed_high": value.seeds.high,
        "per_seed": value.per_seed,
    }


def _same_in_all(seeds: Sequence[int], evaluations: Mapping[str, Sequence[Json]]) -> tuple[Json, tuple[int, ...]]:
    """What all evaluations share, and their budgets."""
    facts: Json = {}
    for name, found in evaluations.items():
        for seed, evaluation in zip(seeds, found, strict=True):
            these = {key: evaluation[key] for key in _SAME}
            these["budgets"] = sorted({cell["T"] for cell in evaluation["grid"]})
            facts = facts or these
            for key, value in these.items():
                if value != facts[key]:
                    raise RunError(
                        f"evaluations of one comparison must have the same {key} ({facts[key]}); {name} with seed "
                        f"{seed} has another",
                        value=value,
                        remedy="Compare in a new folder.",
                    )
    return facts, tuple(facts.pop("budgets"))


def _pass_values_PC(evaluation: Json, cells: Sequence[Cell]) -> np.ndarray:
    """Pass@(K,T) of each task (rows) and cell (columns), float64. Source: "Pass@(K,T)"."""
    runs = {run["T"]: np.array(run["first_success_turns"]) for run in evaluation["runs"]}
    hidden = evaluation["budget_visibility"] == "hidden"  # then the run at t_max serves every T
    columns = []
    for k, turns in cells:
        first_PN = runs[evaluation["t_max"] if hidden else turns]
        successes_P = ((first_PN > 0) & (first_PN <= turns)).sum(axis=1)
        columns.append(pass_at_k_table(first_PN.shape[1], k)[successes_P])
    return np.stack(columns, axis=1)


def _by_cell(cells: Sequence[Cell], values_SPC: np.ndarray) -> Cells:
    return dict(zip(cells, means_over_seeds(values_SPC), strict=True))


def _pairs(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Each method minus its base, then each later method minus each earlier; mixed budgets minus fixed in any order."""
    methods = [arm for arm in arms if arm.base is not None]
    pairs = [(arm.name, arm.base) for arm in methods]
    for number, later in enumerate(methods):
        for earlier in methods[:number]:
            a, b = (earlier, later) if earlier.mixes_budgets and not later.mixes_budgets else (later, earlier)
            pairs.append((a.name, b.name))
    return pairs


def _headroom(evaluations: Sequence[Json]) -> dict[int, Headroom]:
    tables = [evaluation["headroom"] for evaluation in evaluations]
    if not all(tables):
        return {}
    by_budget = zip(*(table["by_T"] for table in tables), strict=True)
    return {
        rows[0]["T"]: Headroom(
            optimal=rows[0]["optimal"],
            mean=float(np.mean([row["headroom"] for row in rows])),
            low=min(row["ci_low"] for row in rows),
        )
        for rows in by_budget
    }
