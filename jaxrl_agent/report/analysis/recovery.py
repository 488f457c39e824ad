"""Figures of recovery: success after an injected error against success without it, and what the error costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxrl_agent.report import svg
from jaxrl_agent.report.analysis import marks
from jaxrl_agent.report.analysis.load import Analysis, Pair, run_keys
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.rows import Row
from jaxrl_agent.run_dir import Json

_AFTER, _WITHOUT = "After an injected error", "Same states without the error"
_BEST = svg.N_SLOTS  # the colour of the text


def _states(pair: Pair) -> dict[str, Json | None]:
    found = pair.found["recovery"]
    return {_AFTER: found, _WITHOUT: found["without_error"]}


def success_figure(analysis: Analysis) -> Figure | None:
    """Success of base and policy from the same states, with and without the error."""
    pairs = analysis.having("recovery")
    if not pairs:
        return None
    axis = svg.nice_axis((0.0, 1.0), text=svg.percent)
    panels, rows = [], []
    for pair in pairs:
        drawn = []
        for heading, found in _states(pair).items():
            if found is None:
                continue
            for side in ("base", "policy"):
                run = pair.run(side)
                ends = marks.ends(found, side, found[f"{side}_ci"] or (None, None))
                drawn.append(Row(heading, run.name, run.slot, *ends))
                counts = (found["n_states"], found["n_tasks"])
                rows.append((pair.policy.name, heading == _AFTER, run.name, *ends, *counts))
        label = f"success of continuations ({pair.found['recovery']['n_states']} error states)"
        panels.append(
            marks.estimate_panel(
                f"{pair.policy.name} against {pair.base.name}",
                label,
                drawn,
                text=marks.percent,
                ticks=svg.percent,
                axis=axis,
                reference=math.nan,
            )
        )
    defined = pairs[0].found["recovery"]
    without = (defined["without_error"] or {}).get("definition")
    return Figure(
        key="recovery-success",
        title="Success after an error, and without it",
        panels=tuple(panels),
        keys=analysis.keys(),
        reading=(
            "Each panel has states of its own, visited by its two policies, so the base may differ between panels. A "
            "policy that leads after the error as much as without it is better everywhere, not better at recovering."
        ),
        definition=marks.definitions({"": defined.get("definition"), "Without the error: ": without}),
        table=Table(("pair", "after_error", "run", "success", "ci_low", "ci_high", "n_states", "n_tasks"), tuple(rows)),
    )


def turns_figure(analysis: Analysis) -> Figure | None:
    """Success after an error by turns left, and the difference with its interval."""
    pairs = analysis.having("recovery")
    tables = {pair.policy.name: pair.found["recovery"]["by_turns_left"] or [] for pair in pairs}
    bins = marks.bins_of(tables.values())
    if not bins:
        return None
    x_axis, share_axis = marks.bins_axis(bins), svg.nice_axis((0.0, 1.0), text=svg.percent)
    panels = [
        marks.line_panel(
            f"Success: {pair.policy.name} and {pair.base.name}",
            "turns left after the error",
            x_axis,
            [
                marks.binned(tables[pair.policy.name], side, pair.run(side).name, pair.run(side).slot, bins, band=False)
                for side in ("base", "policy")
            ],
            text=marks.percent,
            y_axis=share_axis,
        )
        for pair in pairs
    ]
    differences = [
        marks.binned(tables[pair.policy.name], "difference", pair.policy.name, pair.policy.slot, bins, band=True)
        for pair in pairs
    ]
    panels.append(
        marks.line_panel(
            f"Difference: policy {svg.MINUS} {analysis.base.name}, points",
            "turns left after the error",
            x_axis,
            differences,
            text=marks.points,
            ticks=svg.points,
            reference=0.0,
        )
    )
    columns = ("low", "high", "base", "policy", "difference", "ci_low", "ci_high", "p_holm", "n_states", "n_tasks")
    rows = tuple((run, *(row.get(key) for key in columns)) for run, table in tables.items() for row in table)
    return Figure(
        key="recovery-by-turns",
        title="Success after an error, by turns left",
        panels=tuple(panels),
        keys=analysis.keys(),
        reading=(
            "With few turns left an error can rarely be mended by anybody. In the last panel a band clear of zero "
            "means that the policy recovers better, or worse, than the base with so many turns left."
        ),
        definition=(
            "Bins of the states after an injected error; both policies continue from the same states, so the "
            "difference is paired. Bands: 95% intervals over tasks, each bin by itself; p-values adjusted for the "
            "number of bins (Holm) are in the CSV."
        ),
        table=Table(("run", *columns), rows),
    )


def cost_figure(analysis: Analysis) -> Figure | None:
    """Differences with and without the error, and what the error costs each policy and the best possible one."""
    pairs = analysis.having("recovery")
    if not pairs:
        return None
    gains = [
        Row(heading, pair.policy.name, pair.policy.slot, *marks.ends(entry, name))
        for heading, name, entries in (
            (_AFTER, "difference", [pair.found["recovery"] for pair in pairs]),
            (_WITHOUT, "difference", [pair.found["recovery"]["without_error"] for pair in pairs]),
            ("Extra gain: the first minus the second", "value", [p.found["recovery"]["extra_gain"] for p in pairs]),
        )
        for pair, entry in zip(pairs, entries, strict=True)
    ]
    costs = [row for pair in pairs for row in _costs(pair)]
    rows = [("difference", row.heading, row.label, row.value, row.low, row.high) for row in gains]
    rows += [("cost", row.heading, row.label, row.value, row.low, row.high) for row in costs]
    best = [Key("best possible", f"slot-{_BEST}", _BEST)] * any(row.slot == _BEST for row in costs)
    first = pairs[0].found["recovery"]
    told = {"Extra gain: ": (first["extra_gain"] or {}).get("definition")}
    told |= {"Cost: ": ((first["error_cost"] or {}).get("policy") or {}).get("definition")}
    return Figure(
        key="recovery-cost",
        title="What an error costs, and whether training made it cheaper",
        panels=(
            _points_panel(f"Difference: policy {svg.MINUS} {analysis.base.name}", gains),
            _points_panel(f"Cost of the error: success without {svg.MINUS} after", costs),
        ),
        keys=(*analysis.keys(), *best),
        reading=(
            "Left: an extra gain above zero means that training helps more after an error than it helps anyway. Right: "
            "the further right, the dearer the error; what even the best possible policy loses is the state's doing."
        ),
        definition=marks.definitions(told),
        table=Table(("measure", "where", "run", "value", "ci_low", "ci_high"), marks.known_rows(rows)),
    )


def _costs(pair: Pair) -> list[Row]:
    cost = pair.found["recovery"]["error_cost"] or {}
    heading = f"States of {pair.policy.name} and {pair.base.name}"
    sides = [(side, pair.run(side).name, pair.run(side).slot) for side in ("base", "policy")]
    entries = [*sides, ("optimal", "best possible", _BEST)]
    return [Row(heading, label, slot, *marks.ends(cost[k])) for k, label, slot in entries if cost.get(k)]


def _points_panel(title: str, rows: Sequence[Row]):
    return marks.estimate_panel(title, "percentage points", rows, text=marks.points, ticks=svg.points)


def tool_figure(analysis: Analysis) -> Figure | None:
    """How often a failed tool call is followed by one that works."""
    pairs = analysis.having("tool_error_correction")
    if not pairs:
        return None
    rates, differences, rows = [], [], []
    for pair in pairs:
        found = pair.found["tool_error_correction"]
        for side in ("base", "policy"):
            run, entry = pair.run(side), found[side] or {}
            heading = f"{pair.policy.name} against {pair.base.name}"
            rates.append(Row(heading, run.name, run.slot, *marks.ends(entry, "rate")))
            counts = (entry.get(key) for key in ("rate_of_all", "error_turns", "followed", "corrected"))
            rows.append((pair.policy.name, run.name, *marks.ends(entry, "rate"), *counts))
        label = f"{pair.policy.name} {svg.MINUS} {pair.base.name}"
        differences.append(Row("Difference", label, pair.policy.slot, *marks.ends(found, "difference")))
        rows.append((pair.policy.name, label, *marks.ends(found, "difference"), None, None, None, None))
    shares = {"text": marks.percent, "ticks": svg.percent, "axis": svg.nice_axis((0.0, 1.0), text=svg.percent)}
    columns = ("pair", "run", "rate", "ci_low", "ci_high", "rate_of_all", "error_turns", "followed", "corrected")
    return Figure(
        key="tool-error-correction",
        title="How often a failed tool call is mended in the next turn",
        panels=(
            marks.estimate_panel("Failed calls that are mended", "share", rates, reference=math.nan, **shares),
            _points_panel("Difference between the policies", differences),
        ),
        keys=run_keys(analysis.runs),
        reading="Left: further right is better. Right: a whisker clear of zero means that training changed the share.",
        definition=marks.definitions({"": pairs[0].found["tool_error_correction"].get("definition")}),
        table=Table(columns, marks.known_rows(rows)),
    )
