"""What a FrozenLake sweep says, in words made from its numbers: where training on mixed budgets can help at all."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import PARITY_MARGIN

_KINDS = {
    "told": "The optimum that is told its budget (told)",
    "hidden": "The optimum for BudgetMix that is not told (hidden)",
}
_DIMENSIONS = {
    "size": "size {:d}",
    "frozen_prob": "frozen_prob {:g}",
    "success_rate": "success rate {:.3g}",
    "budget": "{:d} turns",
}


def helps(row: Json, margin: float = PARITY_MARGIN, *, over: str = "full") -> bool:
    """Whether a policy's lead over `full`, or `quick`, is above the margin with its whole 95% interval."""
    return row[f"over_{over}_low"] > margin


def answer(rows: Sequence[Json], margin: float = PARITY_MARGIN) -> list[str]:
    """Say where BudgetMix can help: where an optimum that reckons with budgets beats the one for the full budget.

    Args:
        rows: of `lake_sweep.run`.
        margin: least lead that counts, in probability of success.

    Returns:
        Sentences, one a list item.
    """
    t_max, n_maps = rows[0]["t_max"], rows[0]["n_maps"]
    said = [
        f"BudgetMix can help where an optimum that reckons with budgets beats the optimum for the full {t_max} turns, "
        f"stopped at the budget, by more than {100 * margin:g} points of success, the 95% interval over {n_maps} maps "
        "included. A lead that goes away against the quickest of the full optima hangs on ties alone, and a discount "
        "wins it as well."
    ]
    known = [name for name in _KINDS if any(row["policy"] == name for row in rows)]
    for name in known:
        said += _of_policy([row for row in rows if row["policy"] == name], name, margin)
    if not known:
        said.append("This sweep cannot say: neither told nor hidden is among its policies.")
    return said


def _of_policy(rows: Sequence[Json], name: str, margin: float) -> list[str]:
    short = [row for row in rows if row["budget"] < row["t_max"]]
    if not short:
        return [f"{_KINDS[name]}: no budget below the full one was swept."]
    where = [row for row in short if helps(row, margin)]
    if not where:
        most = max(short, key=lambda row: row["over_full"])
        return [f"{_KINDS[name]} leads nowhere by that much: at most {_lead(most)}, at {_place(most)}."]
    beyond_ties = [row for row in short if helps(row, margin, over="quick")]
    said = [
        f"{_KINDS[name]} leads by more in {len(where)} of {len(short)} cells below the full budget, in "
        f"{len(beyond_ties)} of them beyond ties."
    ]
    if beyond_ties:
        top = max(beyond_ties, key=lambda row: row["over_quick"])
        said.append(
            f"Beyond ties it leads most at {_place(top)}: {_lead(top, over='quick')}, {100 * top['success']:.1f}% "
            f"against {100 * (top['success'] - top['over_quick']):.1f}%."
        )
    said += [f"By {key}: {_shares(short, key, margin)}." for key in _DIMENSIONS]
    at_full = [row for row in rows if row["budget"] == row["t_max"]]
    if at_full and name == "hidden":
        cost = min(at_full, key=lambda row: row["over_full"])
        said.append(f"With all {cost['t_max']} turns it gives up most at {_place(cost)}: {_lead(cost)}.")
    return said


def _shares(rows: Sequence[Json], key: str, margin: float) -> str:
    """Share of cells where it helps, and mean lead, for each value of a dimension."""
    parts = []
    for value in sorted({row[key] for row in rows}):
        cells = [row for row in rows if row[key] == value]
        hits, beyond = (sum(helps(row, margin, over=over) for row in cells) for over in ("full", "quick"))
        mean = sum(row["over_quick"] for row in cells) / len(cells)
        name = _DIMENSIONS[key].format(value)
        parts.append(f"{name} {hits} of {len(cells)}, {beyond} beyond ties (mean lead {100 * mean:+.1f})")
    return "; ".join(parts)


def _place(row: Json) -> str:
    return ", ".join(text.format(row[key]) for key, text in _DIMENSIONS.items())


def _lead(row: Json, *, over: str = "full") -> str:
    low, high = (100 * row[f"over_{over}_{end}"] for end in ("low", "high"))
    return f"{100 * row[f'over_{over}']:+.1f} points [{low:+.1f}, {high:+.1f}]"
