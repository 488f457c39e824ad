"""Figures of the evaluation: success by budget, differences, success by number of samples, and headroom."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_agent.report import svg
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.load import Run
from jaxrl_agent.report.panels import Interval, IntervalPanel, LinePanel, Series
from jaxrl_agent.report.surface import Cell, Surface
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import Estimate

INTERVALS = (
    "Bands and whiskers: percentile 95% of 10,000 bootstrap resamples of the tasks. They cover the choice of tasks and "
    "of samples, not another training seed."
)
PASS_AT_KT = (
    "Pass@(K,T): probability that at least one of K independent attempts succeeds when each may use T turns; the "
    "unbiased estimate from {n} samples of each of {p} tasks."
)
_HEADROOM = ("T", "T_fraction", "optimal", "infeasible_share", "success", "headroom", "ci_low", "ci_high")


def _keys(runs: Sequence[Run]) -> tuple[Key, ...]:
    return tuple(Key(run.name, f"slot-{run.slot}", run.slot) for run in runs)


def _definition(surface: Surface) -> str:
    first = surface.runs[0].evaluation
    samples = " or ".join(str(n) for n in sorted({run.evaluation["n_samples"] for run in surface.runs}))
    return PASS_AT_KT.format(n=samples, p=first["n_tasks"])


def _turns_axis(surface: Surface) -> svg.Axis:
    """Axis of budgets with the headline budgets as ticks."""
    ticks = {b.turns: f"{b.turns}" for b in surface.budgets}
    drawn = sorted({t for run in surface.runs for t in run.evaluated_turns()} | set(ticks))
    axis = svg.listed_axis(drawn, [""] * len(drawn), pad=0.04)
    return svg.Axis(axis.low, axis.high, tuple(ticks.items()))


def _line(run: Run, cells: Sequence[Cell], xs: Sequence[float], surface: Surface) -> Series:
    estimates = [surface.cells[run.name][cell] for cell in cells]
    return Series(
        label=run.name,
        slot=run.slot,
        xs=xs,
        ys=[e.estimate for e in estimates],
        lows=[e.low for e in estimates],
        highs=[e.high for e in estimates],
    )


def _share_axis(series: Sequence[Series]) -> svg.Axis:
    """One axis for all panels of a figure, from the ends of the intervals, within 0 and 1."""
    ends = [v for s in series for v in (*(s.lows or s.ys), *(s.highs or s.ys))]
    return svg.nice_axis(ends, text=svg.percent, bounds=(0.0, 1.0))


def _cells_table(surface: Surface, ks: Sequence[int], turns: Sequence[int] | None = None) -> Table:
    rows = []
    for run in surface.runs:
        for (k, t), e in surface.cells[run.name].items():
            if k in ks and (turns is None or t in turns):
                samples = run.evaluation["n_samples"]
                rows.append((run.name, k, t, t / run.t_max, e.estimate, e.low, e.high, e.n, samples))
    header = ("run", "K", "T", "T_fraction", "value", "ci_low", "ci_high", "n_tasks", "n_samples")
    return Table(header, tuple(rows))


def budget_figure(surface: Surface) -> Figure:
    """Pass@(K,T) over T for one attempt and for several."""
    lines = {
        k: tuple(
            _line(run, [(k, t) for t in run.evaluated_turns()], run.evaluated_turns(), surface) for run in surface.runs
        )
        for k in surface.headline_ks
    }
    y_axis = _share_axis([s for group in lines.values() for s in group])
    told = {
        "hidden": "The agent is not told its budget, so one set of episodes gives every T.",
        "total": "The agent is told its budget at the start; each T is a set of episodes of its own.",
        "remaining": "The agent is told its remaining turns; each T is a set of episodes of its own.",
    }
    return Figure(
        key="success-by-budget",
        title="Success by turn budget",
        panels=tuple(
            LinePanel(
                "One attempt: Pass@1" if k == 1 else f"Best of {k} attempts: Pass@{k}",
                f"turns allowed, T (of {surface.runs[0].t_max})",
                _turns_axis(surface),
                y_axis,
                group,
                marks=True,
                text=lambda value: f"{100 * value:.1f}%",
            )
            for k, group in lines.items()
        ),
        keys=_keys(surface.runs),
        reading=(
            "Higher is better. "
            + "Lines that cross mean that the better policy depends on the budget. " * (len(surface.runs) > 1)
            + told.get(surface.runs[0].evaluation["budget_visibility"], "")
        ),
        definition=f"{_definition(surface)} {INTERVALS}",
        table=_cells_table(surface, surface.headline_ks),
    )


def difference_figure(surface: Surface) -> Figure | None:
    """Paired differences between runs at the headline budgets."""
    if not surface.differences:
        return None
    slots = _difference_slots(surface)
    intervals: dict[int, list[Interval]] = {}
    rows = []
    for k in surface.headline_ks:
        intervals[k] = []
        for i, budget in enumerate(surface.budgets):
            for d in surface.differences:
                e = d.cells[k, budget.turns]
                intervals[k].append(Interval(i, d.label, slots[d.label], e.estimate, e.low, e.high))
                rows.append((d.better.name, d.than.name, k, budget.turns, e.estimate, e.low, e.high, e.n))
    every = [v for group in intervals.values() for i in group for v in (i.low, i.high)]
    axis = svg.nice_axis(every, include=(0.0,), text=svg.points)
    return Figure(
        key="differences",
        title="Differences between runs, task by task",
        panels=tuple(
            IntervalPanel(
                f"Difference in Pass@{k}",
                "percentage points",
                tuple(f"T = {b.turns}" for b in surface.budgets),
                axis,
                tuple(intervals[k]),
            )
            for k in surface.headline_ks
        ),
        keys=tuple(Key(d.label, f"slot-{slots[d.label]}", slots[d.label]) for d in surface.differences),
        reading=(
            "A mark right of zero means that the run named first solves more. An interval that touches zero leaves the "
            "sign open."
        ),
        definition=(
            f"Mean over {surface.runs[0].evaluation['n_tasks']} tasks of the difference in Pass@(K,T) on the same task "
            f"(paired). {INTERVALS} No correction for the number of comparisons."
        ),
        table=Table(("run", "minus", "K", "T", "difference", "ci_low", "ci_high", "n_tasks"), tuple(rows)),
    )


def _difference_slots(surface: Surface) -> dict[str, int]:
    """Colour of a difference: that of its first run, but a new one where the run already stands against the base."""
    return {
        d.label: d.better.slot if d.than is surface.runs[0] else len(surface.runs) % svg.N_SLOTS
        for d in surface.differences
    }


def samples_figure(surface: Surface) -> Figure | None:
    """Pass@(K,T) over K at each headline budget."""
    if len(surface.ks) < 2:
        return None
    lines = {
        b: tuple(_line(run, [(k, b.turns) for k in surface.ks], surface.ks, surface) for run in surface.runs)
        for b in surface.budgets
    }
    y_axis = _share_axis([s for group in lines.values() for s in group])
    x_axis = svg.listed_axis(surface.ks, [str(k) for k in surface.ks], log=True, pad=0.04)
    return Figure(
        key="success-by-attempts",
        title="Success by number of attempts, at each budget",
        panels=tuple(
            LinePanel(
                f"T = {b.turns} ({b.percent}% of {surface.runs[0].t_max} turns)",
                "attempts, K (log scale)",
                x_axis,
                y_axis,
                group,
                marks=True,
                text=lambda value: f"{100 * value:.1f}%",
            )
            for b, group in lines.items()
        ),
        keys=_keys(surface.runs),
        reading=(
            "A line that starts higher but rises less is better at one attempt without covering more tasks. A gap that "
            "stays open at the right is coverage that sampling more would not buy."
        ),
        definition=(
            f"{_definition(surface)} {INTERVALS} Estimates at K above half the samples rest on few distinct draws."
        ),
        table=_cells_table(surface, surface.ks, [b.turns for b in surface.budgets]),
    )


def headroom_figure(surface: Surface) -> Figure | None:
    """What the best possible policy could reach, and what each run leaves."""
    known = [run for run in surface.runs if (run.evaluation.get("headroom") or {}).get("by_T")]
    if not known:
        return None
    rows = {run.name: sorted(run.evaluation["headroom"]["by_T"], key=lambda row: row["T"]) for run in known}
    best = rows[known[0].name]
    optimal_slot = svg.N_SLOTS  # drawn as a dashed line in the colour of the text

    def series(run: Run, key: str) -> Series:
        return Series(run.name, run.slot, [x["T"] for x in rows[run.name]], [x[key] for x in rows[run.name]])

    optimal = Series("best possible", optimal_slot, [x["T"] for x in best], [x["optimal"] for x in best])
    reached = [series(run, "success") for run in known]
    left = tuple(_with_interval(series(run, "headroom"), rows[run.name]) for run in known)
    label, x_axis = f"turns allowed, T (of {known[0].t_max})", _turns_axis(surface)
    return Figure(
        key="headroom",
        title="Structural headroom: what the budget itself leaves possible",
        panels=(
            _headroom_panel("Best possible, and reached", label, x_axis, (*reached, optimal), bounds=(0.0, 1.0)),
            _headroom_panel(f"Headroom: best possible {svg.MINUS} reached", label, x_axis, left, bounds=(-1.0, 1.0)),
        ),
        keys=(*_keys(known), Key("best possible", f"slot-{optimal_slot}", optimal_slot)),
        reading=(
            "Left: no policy can pass the dashed line. Right: how much of it each run leaves, lower is better; a low "
            "success with little headroom is the budget's doing, not the policy's."
        ),
        definition=_headroom_definition(known, best),
        table=Table(
            ("run", *_HEADROOM),
            tuple((run.name, *(row.get(key) for key in _HEADROOM)) for run in known for row in rows[run.name]),
        ),
    )


def _with_interval(series: Series, rows: Sequence[Json]) -> Series:
    """The line with its band, if the evaluation has one."""
    if any(row.get("ci_low") is None or row.get("ci_high") is None for row in rows):
        return series
    return dataclasses.replace(series, lows=[row["ci_low"] for row in rows], highs=[row["ci_high"] for row in rows])


def _headroom_definition(known: Sequence[Run], rows: Sequence[Json]) -> str:
    """The definition that the evaluation stored, and how many tasks no policy can solve."""
    stored = dict.fromkeys(str(run.evaluation["headroom"].get("definition", "")).rstrip(". ") for run in known)
    text = "; ".join(stored) + "."
    infeasible = [
        f"{100 * row['infeasible_share']:.1f}% at T = {row['T']}" for row in rows if row.get("infeasible_share")
    ]
    if infeasible:
        text += f" Tasks that nobody can solve within T stay in the mean: {', '.join(infeasible)}."
    return text


def _headroom_panel(title: str, label: str, x_axis: svg.Axis, series: tuple[Series, ...], *, bounds) -> LinePanel:
    ends = [y for s in series for y in (*s.ys, *(s.lows or ()), *(s.highs or ()))]
    y_axis = svg.nice_axis(ends, include=(0.0,), text=svg.percent, bounds=bounds)
    return LinePanel(title, label, x_axis, y_axis, series, marks=True, text=lambda value: f"{100 * value:.1f}%")


def headline_table(surface: Surface) -> Table:
    """The numbers of the headline table: each run, then each difference."""
    turns = [b.turns for b in surface.budgets]
    rows = [
        (f"Pass@{k}", run.name, "", t, *_ends(surface.cells[run.name][k, t]))
        for k in surface.headline_ks
        for run in surface.runs
        for t in turns
    ]
    rows += [
        (f"Pass@{k}", d.better.name, d.than.name, t, *_ends(d.cells[k, t]))
        for k in surface.headline_ks
        for d in surface.differences
        for t in turns
    ]
    return Table(("measure", "run", "minus", "T", "value", "ci_low", "ci_high"), tuple(rows))


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.estimate, estimate.low, estimate.high
