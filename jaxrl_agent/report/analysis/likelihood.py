"""Figures of likelihood: how far a policy has moved from the base, on whose actions, and with which success."""

from __future__ import annotations

import dataclasses
import math

from jaxrl_agent.report import svg
from jaxrl_agent.report.analysis import marks
from jaxrl_agent.report.analysis.load import Analysis, Pair
from jaxrl_agent.report.analysis.schema import SIDES
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.panels import LinePanel, Series
from jaxrl_agent.report.rows import MatrixPanel, Row
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED, UNDECIDED

_RATIO = "log-likelihood ratio, nats"
_GROUPS = {"success": "Trajectories that succeed", "failure": "Trajectories that fail", "all": "All trajectories"}
_KINDS = {"ordinary": "Per reply in ordinary states", "error_states": "Per reply in error states"}
_nats, _whole = marks.signed(2), "Whole trajectories"


@dataclasses.dataclass(frozen=True)
class Check:
    """A sign that a mean ratio must have in expectation, and whether it has it."""

    pair: Pair
    text: str
    verdict: str


def _measured(analysis: Analysis, part: str) -> list[tuple[Pair, Json]]:
    pairs = analysis.having("likelihood")
    return [(pair, pair.found["likelihood"][part]) for pair in pairs if pair.found["likelihood"].get(part)]


def _versus(pair: Pair) -> str:
    return f"{pair.policy.name} against {pair.base.name}"


def turn_figure(analysis: Analysis) -> Figure | None:
    """Cumulative log-likelihood ratio by turn, by who sampled."""
    found = _measured(analysis, "llr")
    lines = {pair.policy.name: [_by_turn(pair, llr, side) for side in SIDES] for pair, llr in found}
    lines = {name: [s for s in group if s.xs] for name, group in lines.items()}
    found = [(pair, llr) for pair, llr in found if lines[pair.policy.name]]
    if not found:
        return None
    x_axis = _turns_axis(max(x for group in lines.values() for s in group for x in s.xs))
    y_axis = marks.axis_of([v for g in lines.values() for v in marks.values_of(g)], include=(0.0,))
    panels: tuple[LinePanel, ...] = tuple(
        marks.line_panel(
            f"{_versus(pair)}: log p({pair.policy.name}) {svg.MINUS} log p({pair.base.name}), nats",
            "turns played",
            x_axis,
            lines[pair.policy.name],
            text=_nats,
            y_axis=y_axis,
            reference=0.0,
        )
        for pair, _ in found
    )
    columns = ("turn", "mean", "ci_low", "ci_high", "n")
    rows = tuple(
        (pair.policy.name, pair.run(side).name, *(row[key] for key in columns))
        for pair, llr in found
        for side in SIDES
        for row in (llr["by_turn"] or {}).get(side) or []
    )
    return Figure(
        key="likelihood-by-turn",
        title="How a trajectory's likelihood ratio grows, by who sampled it",
        panels=panels,
        keys=tuple(Key(f"sampled by {run.name}", f"slot-{run.slot}", run.slot) for run in analysis.runs),
        reading=(
            "Where a line rises or falls steeply, the two policies disagree on that turn. A flat stretch is one of "
            "turns on which they agree, or which few trajectories reach; the CSV says how many do."
        ),
        definition=marks.definitions({"": found[0][1].get("definition"), "Bands: ": "95% intervals over tasks"}),
        table=Table(("pair", "sampled_by", *columns), rows),
    )


def _turns_axis(last: float) -> svg.Axis:
    """From 0 to the last turn, with round ticks up to it."""
    ticks = svg.nice_axis((0.0, last)).ticks
    return svg.Axis(0.0, last, tuple(tick for tick in ticks if tick[0] <= last))


def _by_turn(pair: Pair, llr: Json, side: str) -> Series:
    rows = [row for row in (llr["by_turn"] or {}).get(side) or [] if row["mean"] is not None]
    run = pair.run(side)
    return Series(
        f"sampled by {run.name}",
        run.slot,
        [row["turn"] for row in rows],
        [row["mean"] for row in rows],
        [row["ci_low"] for row in rows],
        [row["ci_high"] for row in rows],
    )


def nll_figure(analysis: Analysis) -> Figure | None:
    """Negative log-likelihood of an action: who sampled it, and who scores it."""
    found = _measured(analysis, "action_nll")
    if not found:
        return None
    rows = []
    for pair, nll in found:
        for by in SIDES:
            for under in SIDES:
                name = f"{by}_actions_under_{under}"
                ends = marks.ends(nll, name, nll["intervals"][name] or (None, None))
                bare = (nll.get("without_reasoning") or {}).get(name)
                rows.append(
                    (pair.policy.name, pair.run(by).name, pair.run(under).name, *ends, nll["n_actions"][by], bare)
                )
    return Figure(
        key="likelihood-action-nll",
        title="How unlikely an action is: who sampled it, who scores it",
        panels=tuple(_matrix(pair, nll) for pair, nll in found),
        keys=(),
        reading=(
            "In each row the one that sampled the actions should score them lowest, which is the diagonal. How much "
            "more the policy's column says of the base's actions than the base's own says how far training has gone."
        ),
        definition=marks.definitions({"": found[0][1].get("definition"), "Lower is likelier. ": _bare(found[0][1])}),
        table=Table(
            ("pair", "sampled_by", "scored_by", "nll", "ci_low", "ci_high", "n_actions", "nll_without_reasoning"),
            marks.known_rows(rows),
        ),
    )


def _bare(nll: Json) -> str:
    """Whether reasoning tokens are part of the numbers."""
    bare = nll.get("without_reasoning")
    if not bare:
        return "All sampled tokens of an action count"
    same = all(math.isclose(bare[key], nll[key]) for key in bare if None not in (bare[key], nll.get(key)))
    return "There are no reasoning tokens" if same else "Reasoning tokens count here; without them see the CSV"


def _matrix(pair: Pair, nll: Json) -> MatrixPanel:
    def cell(by: str, under: str) -> tuple[str, str]:
        name = f"{by}_actions_under_{under}"
        value, low, high = marks.ends(nll, name, nll["intervals"][name] or (None, None))
        text = "\N{EM DASH}" if math.isnan(value) else f"{value:.3f}"
        return text, "" if math.isnan(low) else f"{low:.3f} \N{EN DASH} {high:.3f}"

    def count(side: str) -> str:
        number = nll["n_actions"][side]
        return "sampled it" if number is None else f"sampled it, {number:,} actions"

    return MatrixPanel(
        title=f"{_versus(pair)}: nats per action",
        corner="",
        columns=tuple((pair.run(side).name, "scores it", pair.run(side).slot) for side in SIDES),
        rows=tuple((pair.run(side).name, count(side), pair.run(side).slot) for side in SIDES),
        cells=[[cell(by, under) for under in SIDES] for by in SIDES],
    )


def split_figure(analysis: Analysis) -> Figure | None:
    """The ratio of whole trajectories by outcome, and of single replies by kind of state."""
    found = _measured(analysis, "llr")
    if not found:
        return None
    panels, rows = [], []
    for pair, llr in found:
        whole, replies = _whole_rows(pair, llr), _reply_rows(pair, llr)
        for title, group in ((_whole, whole), ("One action", replies)):
            name = f"{title}: {_versus(pair)}"
            panels.append(marks.estimate_panel(name, _RATIO, group, text=_nats, ticks=svg.plain))
        rows += [(pair.policy.name, row.heading, row.label, row.value, row.low, row.high) for row in (*whole, *replies)]
    llr = found[0][1]
    return Figure(
        key="likelihood-split",
        title="Likelihood ratio by outcome and by kind of state",
        panels=tuple(panels),
        keys=tuple(Key(f"sampled by {run.name}", f"slot-{run.slot}", run.slot) for run in analysis.runs),
        reading=(
            "If training had mainly made successes likelier, the ratio would be higher on trajectories that succeed "
            "than on those that fail, whoever sampled them. Failures may be longer or shorter than successes, and a "
            "sum grows with length: compare one action too."
        ),
        definition=marks.definitions({"": llr.get("definition"), "A ratio above zero: ": "likelier under the policy"}),
        table=Table(
            ("pair", "where", "sampled_by", "value", "ci_low", "ci_high"),
            marks.known_rows(rows),
        ),
    )


def _whole_rows(pair: Pair, llr: Json) -> list[Row]:
    rows = []
    for group, heading in _GROUPS.items():
        for side in SIDES:
            name, run = f"{side}_{group}", pair.run(side)
            ends = marks.ends(llr, name, llr["intervals"][name] or (None, None))
            rows.append(Row(heading, f"{run.name} ({llr['n'][name] or 0})", run.slot, *ends))
    return rows


def _reply_rows(pair: Pair, llr: Json) -> list[Row]:
    per_action, kinds = llr["per_action"] or {}, llr["by_state_kind"] or {}
    entries = [("Per action of whole trajectories", side, per_action.get(f"{side}_all")) for side in SIDES]
    for kind, heading in _KINDS.items():
        entries += [(heading, side, (kinds.get(kind) or {}).get(side)) for side in SIDES]
    return [
        Row(heading, pair.run(side).name, pair.run(side).slot, *marks.ends(entry))
        for heading, side, entry in entries
        if entry is not None
    ]


def checks(analysis: Analysis) -> list[Check]:
    """Each policy must find its own samples likelier on average than the base does, and the other way round."""
    found = []
    for pair, llr in _measured(analysis, "llr"):
        for side, sign, key in (("policy", "≥ 0", "policy_all_at_least_0"), ("base", "≤ 0", "base_all_at_most_0")):
            name = f"{side}_all"
            value, low, high = marks.ends(llr, name, llr["intervals"][name] or (None, None))
            if math.isnan(value):
                continue
            interval = "" if math.isnan(low) else f" [{_nats(low)}, {_nats(high)}]"
            text = f"Sampled by {pair.run(side).name}, {_versus(pair)}: {_nats(value)}{interval} nats, must be {sign}"
            found.append(Check(pair, text, _verdict((llr["sanity"] or {}).get(key))))
    return found


def _verdict(said: object) -> str:
    """The analysis may say it as a verdict or as a truth value."""
    if said in (SUPPORTED, CONTRADICTED):
        return str(said)
    return {True: SUPPORTED, False: CONTRADICTED}.get(said, UNDECIDED) if isinstance(said, bool) else UNDECIDED
