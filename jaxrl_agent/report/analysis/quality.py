"""Figures of the step quality: who replies better in the same state, by kind of state, quality and place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jaxrl_agent.report.analysis import marks
from jaxrl_agent.report.analysis.load import Analysis, Pair, run_keys
from jaxrl_agent.report.figure import Figure, Key, Table
from jaxrl_agent.report.panels import LinePanel
from jaxrl_agent.report.rows import Outcome, OutcomePanel
from jaxrl_agent.report.svg import MINUS
from jaxrl_agent.run_dir import Json

KINDS = {"ordinary": "Ordinary states", "error_states": "Error states"}
_TITLES = {"monte_carlo": "Monte-Carlo value", "q_horizon": "Exact value within the turns left"}
_NUMBERS = ("win", "tie", "loss", "wins_plus_half_ties", "win_among_non_ties", "mean_difference", "ci_low", "ci_high")
_COVARIATE = "by_"


def quality_title(name: str) -> str:
    """A quality in words: `q_star_0.9` is the exact value with discount 0.9."""
    discounted = re.fullmatch(r"q_star_([\d.]+)", name)
    return f"Exact value, discount {discounted[1]}" if discounted else _TITLES.get(name, name.replace("_", " "))


def _cells(pair: Pair) -> Iterator[tuple[str, str, Json]]:
    """Quality, kind and comparison, the primary quality first."""
    quality = pair.found["step_quality"]
    names = sorted(quality["by_quality"], key=lambda name: name != quality["primary_quality"])
    for name in names:
        for kind in KINDS:
            cell = (quality["by_quality"][name] or {}).get(kind)
            if cell is not None:
                yield name, kind, cell


def _primary(pair: Pair, kind: str) -> Json:
    quality = pair.found["step_quality"]
    return (quality["by_quality"][quality["primary_quality"]] or {}).get(kind) or {}


def _heading(pair: Pair, name: str) -> str:
    about = pair.found["step_quality"]["qualities"].get(name) or {}
    return quality_title(name) + (" (knows more than the agent)" if about.get("fair") is False else "")


def outcome_figure(analysis: Analysis) -> Figure | None:
    """Wins, ties and losses of every policy against the base, under every quality."""
    pairs = analysis.having("step_quality")
    outcomes: dict[str, list[tuple[bool, Outcome]]] = {kind: [] for kind in KINDS}
    rows = []
    for pair in pairs:
        for name, kind, cell in _cells(pair):
            main = name == pair.found["step_quality"]["primary_quality"]
            ends = marks.ends(cell, "wins_plus_half_ties", cell["intervals"]["wins_plus_half_ties"])
            shares = (cell["win"], cell["tie"], cell["loss"])
            outcomes[kind].append(
                (main, Outcome(_heading(pair, name), pair.policy.name, pair.policy.slot, *shares, *ends, main))
            )
            counts = (cell["n_states"], cell["n_tasks"])
            numbers = (cell.get(key) for key in _NUMBERS)
            rows.append((pair.policy.name, pair.base.name, name, cell.get("fair"), kind, *numbers, *ends[1:], *counts))
    if not rows:
        return None
    panels = []
    for kind, found in outcomes.items():
        # Policies stand together under each quality, in the order in which the qualities first appear.
        order = list(dict.fromkeys(o.heading for _, o in sorted(found, key=lambda item: not item[0])))
        together = tuple(sorted((o for _, o in found), key=lambda o: order.index(o.heading)))
        if together:
            panels.append(OutcomePanel(_counted(KINDS[kind], kind, pairs), together, analysis.base.slot))
    header = ("run", "minus", "quality", "fair", "states", *_NUMBERS, "half_ties_low", "half_ties_high")
    definition = {kind: (_primary(pairs[0], kind) or {}).get("definition") for kind in KINDS}
    return Figure(
        key="step-quality-outcomes",
        title="Who replies better in the same state",
        panels=tuple(panels),
        keys=(
            *(Key(f"{pair.policy.name} better", f"part slot-{pair.policy.slot}") for pair in pairs),
            Key("equal", "part tied"),
            Key(f"{analysis.base.name} better", f"part slot-{analysis.base.slot}"),
            *(
                Key(f"{pair.policy.name}: wins plus half the ties", f"slot-{pair.policy.slot}", pair.policy.slot)
                for pair in pairs
            ),
        ),
        reading=(
            "The mark below a bar is wins plus half the ties, with its interval and in numbers at the right: clear of "
            "the line at 50% on the right, the policy replies better than the base; across it, nobody can tell. The "
            "tall bars are the main measure, the thin ones the same replies under other values."
        ),
        definition=marks.definitions({"": definition["ordinary"] or definition["error_states"]}),
        table=Table((*header, "n_states", "n_tasks"), tuple(rows)),
    )


def _counted(title: str, kind: str, pairs: list[Pair]) -> str:
    counts = dict.fromkeys(_primary(pair, kind).get("n_states") for pair in pairs)
    known = " / ".join(str(n) for n in counts if n is not None)
    return f"{title} ({known})" if known else title


def place_figures(analysis: Analysis) -> list[Figure]:
    """Mean difference by turns left, and by each covariate that was measured."""
    cells = [_primary(pair, kind) for pair in analysis.having("step_quality") for kind in KINDS]
    names = dict.fromkeys(key for cell in cells for key in cell if key.startswith(_COVARIATE))
    found = (_place_figure(analysis, name) for name in names)
    return [figure for figure in found if figure is not None]


def _place_figure(analysis: Analysis, name: str) -> Figure | None:
    pairs = analysis.having("step_quality")
    tables = {(pair.policy.name, kind): _primary(pair, kind).get(name) or [] for pair in pairs for kind in KINDS}
    bins = marks.bins_of(tables.values())
    if not bins:
        return None
    words = name.removeprefix(_COVARIATE).replace("_", " ")
    lines = {
        kind: [
            marks.binned(
                tables[pair.policy.name, kind], "mean_difference", pair.policy.name, pair.policy.slot, bins, band=True
            )
            for pair in pairs
        ]
        for kind in KINDS
        if any(tables[pair.policy.name, kind] for pair in pairs)
    }
    y_axis = marks.axis_of([v for group in lines.values() for v in marks.values_of(group)], include=(0.0,))
    x_label = f"{words}, the reply's turn included" if name == "by_turns_left" else words
    panels: tuple[LinePanel, ...] = tuple(
        marks.line_panel(
            KINDS[kind], x_label, marks.bins_axis(bins), group, text=marks.signed(3), y_axis=y_axis, reference=0.0
        )
        for kind, group in lines.items()
    )
    numbers = (key for key in _NUMBERS if key != "win_among_non_ties")
    columns = ("low", "high", *numbers, "p_holm", "n_states", "n_tasks")
    rows = tuple(
        (run, analysis.base.name, kind, *(row.get(key) for key in columns))
        for (run, kind), table in tables.items()
        for row in table
    )
    primary = quality_title(pairs[0].found["step_quality"]["primary_quality"])
    return Figure(
        key=f"step-quality-{name.replace('_', '-')}",
        title=f"Better replies, by {words}",
        panels=panels,
        keys=run_keys([pair.policy for pair in pairs]),
        reading=(
            "Above zero the policy's replies are worth more than the base's. A band that touches zero leaves it open."
        ),
        definition=(
            f"{primary} of a policy's replies {MINUS} {analysis.base.name}'s in the same state, mean of each task "
            "first. Bands: 95% intervals over tasks, each bin by itself; a point without a band rests on a single "
            "task. P-values adjusted for the number of bins (Holm) are in the CSV."
        ),
        table=Table(("run", "minus", "states", *columns), rows),
    )
