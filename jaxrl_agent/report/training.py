"""Curves along training, from the lines of metrics.jsonl and warm_start.jsonl."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_agent.report import svg
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.load import Run, setting
from jaxrl_agent.report.panels import LinePanel, Series
from jaxrl_agent.report.settings import STEP_QUALITY, is_foggy, turn_names
from jaxrl_agent.run_dir import Json

MAX_DRAWN = 400  # points of one line: more than a panel can show


@dataclasses.dataclass(frozen=True)
class Curve:
    """One panel of training curves: the key in metrics.jsonl, its title, and how its axis reads."""

    key: str
    title: str
    text: Callable[[float], str] = svg.plain
    log: bool = False
    include: tuple[float, ...] = ()


REWARD = (
    Curve("trajectory_reward", "Trajectory reward"),
    Curve("success", "Success", svg.percent),
    Curve("turns", "Turns used by a trajectory", include=(0.0,)),
    Curve("optimal_share", "Turns with a best action", svg.percent),
    Curve("invalid_share", "Turns wasted on unusable replies", svg.percent, include=(0.0,)),
)
STEP_REWARD = (
    Curve("step_reward_first_turn", "first turn only"),
    Curve("step_reward_mean_of_means", "mean of trajectory means"),
    Curve("step_reward_pooled", "pooled over turns"),
)
HEALTH = (
    Curve("entropy", "Entropy, nats per token", include=(0.0,)),
    Curve("kl", "KL from the policy that sampled, nats", include=(0.0,)),
    Curve("reference_kl", "KL from the reference policy, nats", include=(0.0,)),
    Curve("clip_fraction", "Tokens whose ratio is clipped", svg.percent, include=(0.0,)),
    Curve("sampler_trainer_max_diff", f"Largest |sampler {svg.MINUS} trainer| log-probability", log=True),
    Curve("zero_variance_groups", "Groups without any spread of reward", svg.percent, include=(0.0,)),
    Curve("grad_norm", "Gradient norm before clipping", include=(0.0,)),
)
WARM_START = (
    Curve("loss", "Loss, nats per token"),
    Curve("accuracy", "Tokens that the policy ranks first", svg.percent),
    Curve("demonstration_success", "Demonstrations that succeed", svg.percent, include=(0.0, 1.0)),
)


def column(rows: Sequence[Json], key: str) -> np.ndarray:
    """Values of `key` as float64; nan where a row lacks it."""
    values = [row.get(key) for row in rows]
    return np.array([v if isinstance(v, (int, float)) else math.nan for v in values], np.float64)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean over `window` (odd) entries, fewer at the ends, without the nans; nan where all are."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    index, half = np.arange(len(values)), window // 2
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    n = counts[high] - counts[low]
    return np.where(n > 0, (sums[high] - sums[low]) / np.maximum(n, 1), math.nan)


def window_for(n: int) -> int:
    """Odd window of about a fifteenth of the run."""
    return max(1, n // 15) | 1


def _listed(values: np.ndarray) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


def updates_axis(runs: Sequence[Run]) -> svg.Axis:
    """Axis from 0 to the last update of the runs."""
    return svg.nice_axis([row["update"] for run in runs for row in run.metrics], include=(0.0,))


def smoothed_series(updates: Sequence[float], values: Sequence[float | None], label: str, slot: int) -> Series:
    """Smoothed line over the raw values of every update, thinned to what a panel can show."""
    raw = np.array([v if isinstance(v, (int, float)) else math.nan for v in values], np.float64)
    stride = math.ceil(len(raw) / MAX_DRAWN)
    smoothed = smooth(raw, window_for(len(raw)))
    return Series(label, slot, updates[::stride], _listed(smoothed[::stride]), faint=_listed(raw[::stride]))


def _curve_line(key: str, run: Run, label: str, slot: int) -> Series:
    """Smoothed line over the raw values of one metric of one run."""
    updates = [row["update"] for row in run.metrics]
    return smoothed_series(updates, [row.get(key) for row in run.metrics], label, slot)


def _curve_panel(curve: Curve, runs: Sequence[Run]) -> LinePanel | None:
    """The panel of one metric, or None if no run has it."""
    runs = [run for run in runs if _has(run.metrics, curve.key)]
    if not runs:
        return None
    lines = tuple(_curve_line(curve.key, run, run.name, run.slot) for run in runs)
    drawn = [value for line in lines for value in line.faint]
    y_axis = svg.log_axis(drawn) if curve.log else svg.nice_axis(drawn, include=curve.include, text=curve.text)
    return LinePanel(curve.title, "update", updates_axis(runs), y_axis, lines, text=curve.text)


def _smoothing(runs: Sequence[Run]) -> str:
    """What thick and faint lines are."""
    widths = sorted({window_for(len(run.metrics)) for run in runs})
    return f"Thick: centred moving mean over {' or '.join(map(str, widths))} updates. Faint: every update."


def _curves_figure(
    key: str, title: str, curves: Sequence[Curve], runs: Sequence[Run], *, definition: str
) -> Figure | None:
    runs = [run for run in runs if run.metrics]
    panels = [(curve, panel) for curve in curves if (panel := _curve_panel(curve, runs)) is not None]
    if not panels:
        return None
    names = [curve.key for curve, _ in panels]
    rows = tuple((run.name, row["update"], *(row.get(name) for name in names)) for run in runs for row in run.metrics)
    return Figure(
        key=key,
        title=title,
        panels=tuple(panel for _, panel in panels),
        keys=tuple(Key(run.name, f"slot-{run.slot}", run.slot) for run in runs),
        reading=_smoothing(runs),
        definition=definition,
        table=Table(("run", "update", *names), rows),
    )


def reward_figure(runs: Sequence[Run]) -> Figure | None:
    """Trajectory reward, success and length along training."""
    trained = [run for run in runs if run.metrics]
    same = all(
        np.array_equal(column(r.metrics, "success"), column(r.metrics, "trajectory_reward"), equal_nan=True)
        for r in trained
    )
    curves = [_in_words_of(trained, curve) for curve in REWARD if not (same and curve.key == "success")]
    definition = "Means over the trajectories of one update, sampled on training tasks under the training budgets. "
    definition += "A run that mixes budgets earns less than one that always has the full budget, at equal skill."
    if any(_has(run.metrics, "optimal_share") and setting(run.config, "task.name") != "deepcoder" for run in trained):
        definition += (
            " A best action is judged by exact values of the true map: on a foggy lake a look counts as a turn lost, "
            "however sensible it was."
            if any(is_foggy(run.config) for run in trained)
            else " A best action has the highest quality that its state allows."
        )
    if same:
        definition += " Success is equal to the trajectory reward in every update."
    return _curves_figure("training-reward", "Reward along training", curves, runs, definition=definition)


def _in_words_of(runs: Sequence[Run], curve: Curve) -> Curve:
    name = turn_names(runs[0].config).get(curve.key) if runs else None
    return dataclasses.replace(curve, title=name.capitalize()) if name else curve


def step_reward_figure(runs: Sequence[Run]) -> Figure | None:
    """Step reward three ways, one panel for each run, so that the three lines can be held against one another."""
    measured = {run.name: [c for c in STEP_REWARD if _has(run.metrics, c.key)] for run in runs}
    runs = [run for run in runs if measured[run.name]]
    if not runs:
        return None
    slots = {curve.key: 3 + i for i, curve in enumerate(STEP_REWARD)}
    lines = {
        run.name: tuple(_curve_line(curve.key, run, curve.title, slots[curve.key]) for curve in measured[run.name])
        for run in runs
    }
    y_axis = svg.nice_axis([v for group in lines.values() for s in group for v in (*s.ys, *(s.faint or ()))])
    rows = tuple(
        (run.name, row["update"], *(row.get(curve.key) for curve in STEP_REWARD)) for run in runs for row in run.metrics
    )
    return Figure(
        key="training-step-reward",
        title="Step reward along training, three ways",
        panels=tuple(LinePanel(run.name, "update", updates_axis(runs), y_axis, lines[run.name]) for run in runs),
        keys=tuple(Key(curve.title, f"slot-{slots[curve.key]}", slots[curve.key]) for curve in STEP_REWARD),
        reading=(
            f"{_smoothing(runs)} If the pooled line falls while the first-turn line does not, long failing "
            "trajectories moved the mean, not skill."
        ),
        definition=(
            f"Step reward is {STEP_QUALITY}. First turn: start states only, so the policy's own path cannot shift it. "
            "Mean of means: each trajectory counts once. Pooled: each turn counts once."
        ),
        table=Table(("run", "update", *(curve.key for curve in STEP_REWARD)), rows),
    )


def health_figure(runs: Sequence[Run]) -> Figure | None:
    """Entropy, KL, clipping, mismatch, groups without a signal and the gradient's size."""
    has_reference = any(column(run.metrics, "reference_kl")[-1:].any() for run in runs)
    return _curves_figure(
        "training-health",
        "Health of the optimisation",
        [curve for curve in HEALTH if curve.key != "reference_kl" or has_reference],
        runs,
        definition=(
            "Entropy and KL (estimator k3) are means over sampled tokens at the sampling temperature. The sampler and "
            "the trainer score the same tokens with the same weights; what differs is rounding. A group whose "
            "trajectories all earn the same reward gives no gradient."
        ),
    )


def _has(rows: Sequence[Json], key: str) -> bool:
    return bool(np.isfinite(column(rows, key)).any())


def _warm_line(key: str, names: list[str], run: Run) -> Series:
    updates = column(run.warm_start, "update").tolist()
    return Series(", ".join(names), run.slot, updates, _listed(column(run.warm_start, key)))


def warm_start_figure(runs: Sequence[Run]) -> Figure | None:
    """Loss and accuracy of supervised training; runs that share one warm start are drawn once."""
    distinct: list[tuple[list[str], Run]] = []
    for run in runs:
        twin = next((names for names, other in distinct if other.warm_start == run.warm_start), None)
        if twin is not None:
            twin.append(run.name)
        elif run.warm_start:
            distinct.append(([run.name], run))
    if not distinct:
        return None
    panels = []
    for curve in WARM_START:
        series = tuple(_warm_line(curve.key, names, run) for names, run in distinct if _has(run.warm_start, curve.key))
        if series:
            x_axis = svg.nice_axis([x for s in series for x in s.xs], include=(0.0,))
            y_axis = svg.nice_axis([y for s in series for y in s.ys], text=curve.text)
            panels.append(LinePanel(curve.title, "supervised update", x_axis, y_axis, series, text=curve.text))
    keys = [curve.key for curve in WARM_START]
    rows = tuple(
        (name, row["update"], *(row.get(key) for key in keys))
        for names, run in distinct
        for name in names
        for row in run.warm_start
    )
    return Figure(
        key="warm-start",
        title="Warm start: supervised training on imperfect demonstrations",
        panels=tuple(panels),
        keys=tuple(Key(", ".join(names), f"slot-{run.slot}", run.slot) for names, run in distinct),
        reading="One line for each distinct warm start; runs that share it are named together.",
        definition=(
            "Cross-entropy on the reply tokens of demonstrations. They are imperfect on purpose, so the loss has a "
            "floor above zero."
        ),
        table=Table(("run", "update", *keys), rows),
    )
