"""One measure of one pair or of several seeds: its value, its intervals, what they decide, and the text of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_agent.analysis.pass_claims import FEW_TASKS, FEWEST_TASKS, ONE_SEED
from jaxrl_agent.analysis.seeds import SeedMean, means_over_seeds, student_interval
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import UNDECIDED, Estimate, mean_and_sd

Judged = Callable[[Estimate, float], str]


@dataclasses.dataclass(frozen=True)
class Unit:
    """How a number is written."""

    factor: float
    digits: int
    sign: str = ""  # "+" for differences
    name: str = ""

    def text(self, value: float) -> str:
        """A number without its unit."""
        found = f"{self.factor * value:{self.sign}.{self.digits}f}"
        return found.lstrip("+-") if float(found) == 0 else found


SHARE, POINTS = Unit(100, 1, name="%"), Unit(100, 1, "+", " points")
NATS, REWARD = Unit(1, 2, "+", " nats"), Unit(1, 3, "+")


@dataclasses.dataclass(frozen=True)
class Combined:
    """A mean with every interval that must agree on a verdict, each by what it was resampled over."""

    value: float
    intervals: dict[str, Estimate]
    note: str = ""

    def verdict(self, judged: Judged, threshold: float) -> str:
        """What all intervals agree on, else undecided; undecided for a few tasks."""
        if self._few:
            return UNDECIDED
        verdicts = {judged(estimate, threshold) for estimate in self.intervals.values()}
        return verdicts.pop() if len(verdicts) == 1 else UNDECIDED

    @property
    def remark(self) -> str:
        """What a reader must know beside the numbers."""
        return "; ".join(filter(None, (self.note, FEW_TASKS if self._few else "")))

    @property
    def _few(self) -> bool:
        return "tasks" in self.intervals and self.intervals["tasks"].n < FEWEST_TASKS

    def text(self, unit: Unit) -> str:
        """The mean and its intervals in words."""
        spans = [
            f"over {over} {unit.text(e.low)} to {unit.text(e.high)}"
            for over, e in self.intervals.items()
            if not np.isnan(e.low)
        ]
        return f"{unit.text(self.value)}{unit.name} ({', '.join(spans) or 'no interval'})"


def combine(measures: Sequence[Json | None]) -> Combined | None:
    """Combine the measures of one policy, one for each seed.

    One seed keeps its own interval, over tasks or over updates. Several are averaged over the tasks that all of them
    have, with an interval over these tasks and Student's over seeds; figures that are no mean over tasks have
    Student's alone.

    Args:
        measures: "value", "ci_low", "ci_high", "n_tasks", "per_task"; None where a seed has none.

    Returns:
        Combined; None where no seed has the measure, or seeds share fewer than two tasks.
    """
    found = [measure for measure in measures if measure is not None]
    if len(found) < 2:
        return _alone(found[0]) if found else None
    missing = len(measures) - len(found)
    note = f"{len(found)} of {len(measures)} seeds" if missing else ""
    if any(measure["per_task"] is None for measure in found):
        seeds = student_interval(mean_and_sd([measure["value"] for measure in found]))
        return Combined(float(seeds.estimate), {f"{len(found)} seeds": seeds}, note)
    common = sorted(set.intersection(*(set(measure["per_task"]) for measure in found)))
    if len(common) < 2:
        return None
    values = [[[measure["per_task"][task]] for task in common] for measure in found]
    return of_seed_mean(means_over_seeds(values)[0], note)


def of_seed_mean(value: SeedMean, note: str = "") -> Combined:
    """Read a mean over seeds and tasks; one seed has no interval over seeds."""
    n = len(value.per_seed)
    if n == 1:
        return Combined(value.mean, {"tasks": value.tasks}, "; ".join(filter(None, (note, ONE_SEED))))
    return Combined(value.mean, {"tasks": value.tasks, f"{n} seeds": value.seeds}, note)


def _alone(measure: Json) -> Combined:
    low, high = (np.nan if measure[end] is None else measure[end] for end in ("ci_low", "ci_high"))
    n_tasks = measure["n_tasks"]
    over = "updates" if n_tasks is None else "tasks"
    return Combined(measure["value"], {over: Estimate(measure["value"], low, high, n_tasks or 0)}, ONE_SEED)
