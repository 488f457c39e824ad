"""Trajectory reward and step reward of one policy along training, on one scale: do they go the same way?"""

from __future__ import annotations

from jaxrl_agent.report import svg
from jaxrl_agent.report.analysis import marks
from jaxrl_agent.report.analysis.load import Analysis, Pair
from jaxrl_agent.report.analysis.schema import STEP_REWARDS
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.panels import LinePanel, Series
from jaxrl_agent.report.rows import Row
from jaxrl_agent.report.settings import STEP_QUALITY, turn_names
from jaxrl_agent.report.training import smoothed_series, window_for
from jaxrl_agent.run_dir import Json

_REWARD = "trajectory_reward"
_NAMES = {
    _REWARD: "trajectory reward",
    **dict(zip(STEP_REWARDS, ("first turn only", "mean of trajectory means", "pooled over turns"), strict=True)),
}
_MORE = ("optimal_share", "regret")
_SLOTS = {name: 2 + i for i, name in enumerate(_NAMES)}  # the slots that step reward has in the training figures


def dynamics_figures(analysis: Analysis) -> list[Figure]:
    """One figure for each policy that was trained."""
    return [_figure(pair, pair.found["dynamics"]) for pair in analysis.having("dynamics")]


def _label(name: str) -> str:
    return f"step reward, {_NAMES[name]}" if name in STEP_REWARDS else _NAMES[name]


def _figure(pair: Pair, found: Json) -> Figure:
    updates = found["updates"]
    columns = [name for name in (*_NAMES, *_MORE) if any(v is not None for v in found.get(name) or [])]
    lines = [_line(found, name) for name in _NAMES if name in columns]
    names = _NAMES | turn_names(pair.policy.config)
    changes = [_change(found, name, names[name]) for name in columns]
    values = [v for line in lines for v in (*line.ys, *line.faint)]
    x_axis = svg.nice_axis(updates, include=(0.0,))
    panels = (
        LinePanel("Rewards", "update", x_axis, svg.nice_axis(values), tuple(lines)),
        marks.estimate_panel(
            f"Change: last tenth of the updates {svg.MINUS} first tenth",
            "change of the mean",
            changes,
            text=marks.signed(3),
            ticks=svg.plain,
        ),
    )
    table = [("every update", i, *(found[name][k] for name in columns)) for k, i in enumerate(updates)]
    by_change = (found["change"] or {}).get(_REWARD) or {}
    return Figure(
        key=f"dynamics-{pair.policy.slot}",
        title=f"Training dynamics of {pair.policy.name}: trajectory reward against step reward",
        panels=panels,
        keys=tuple(Key(_label(name), f"slot-{_SLOTS[name]}", _SLOTS[name]) for name in _NAMES if name in columns),
        reading=(
            f"Thick: centred moving mean over {window_for(len(updates))} updates. Faint: every update. The two go "
            "apart where trajectory reward rises and step reward stays or falls; trust the sign of a change only where "
            "its whisker is clear of zero."
        ),
        definition=marks.definitions(
            {
                "": (
                    f"Step reward is {STEP_QUALITY}. First turn: start states only. "
                    "Mean of means: each trajectory counts once. Pooled: each turn counts once"
                ),
                "Change: ": by_change.get("definition"),
            }
        ),
        table=Table(("part", "update", *columns), (*table, *_change_rows(changes))),
    )


def _change_rows(changes: list[Row]) -> list[tuple]:
    """Below the updates, the change of each column with its ends."""
    ends = {"change": "value", "change_ci_low": "low", "change_ci_high": "high"}
    numbers = {part: [getattr(row, key) for row in changes] for part, key in ends.items()}
    return [(part, None, *map(marks.known, values)) for part, values in numbers.items()]


def _line(found: Json, name: str) -> Series:
    return smoothed_series(found["updates"], found[name], _label(name), _SLOTS[name])


def _change(found: Json, name: str, label: str) -> Row:
    heading = "Step reward" if name in STEP_REWARDS else "Trajectories" if name == _REWARD else "Actions"
    return Row(
        heading,
        label,
        _SLOTS.get(name, svg.N_SLOTS),
        *marks.ends((found["change"] or {}).get(name)),
    )
