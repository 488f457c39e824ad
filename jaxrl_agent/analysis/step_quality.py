"""Which of two policies acts better in the same state: win, tie, loss and mean difference, each task weighing the same.

Both policies replied n times to the same context; a reply amounts to one of the state's outcomes, and every outcome
that anybody chose has a value under each quality. Source: "Step quality".
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrl_agent.analysis.estimates import (
    EQUAL_WEIGHT,
    INTERVAL,
    PerTask,
    bootstrap_p_value,
    by_task,
    holm_column,
    number,
    power_bins,
)
from jaxrl_agent.errors import RunError
from jaxrl_agent.run_dir import Json

TIE = 1e-9  # values this close are equal
KINDS = {"ordinary": "ordinary", "error_states": "error"}  # name in the result: name in the probe
ORACLE = "q_star_0.99"  # the exact value of a player that knows everything
_SHARES = ("win", "tie", "loss", "wins_plus_half_ties", "pairwise_with_half_ties")
_COLUMNS = (*_SHARES, "mean_difference", "base_best", "policy_best")
_DIFFERENCE = _COLUMNS.index("mean_difference")


@dataclasses.dataclass(frozen=True)
class Compared:
    """The states of one kind under one quality, a row each."""

    tasks: np.ndarray  # int64 [S]
    rows: np.ndarray  # float64 [S, columns]: win, tie, loss, wins plus half ties, pairwise, d, share of best replies
    positions: dict[str, np.ndarray]  # float64 [S] each: turns left and covariates; NaN where not known


def reply_counts(actions: Sequence[int], n_outcomes: int) -> np.ndarray:
    """Count how often each outcome was replied, int64 [n_outcomes]."""
    return np.bincount(np.asarray(actions, np.int64), minlength=n_outcomes)


def mean_value(counts: ArrayLike, values: ArrayLike) -> float:
    """Average the values of replies, sum(counts * values) / n in float64.

    Equal counts give the same float, in whatever order the replies came: ties are exact.

    Args:
        counts: [outcomes], how often each was replied.
        values: [outcomes]; NaN where no reply needs it.
    """
    counts, values = np.asarray(counts), np.asarray(values, np.float64)
    chosen = counts > 0
    return float((counts[chosen] * values[chosen]).sum() / counts.sum())


def pairwise_share(policy_counts: ArrayLike, base_counts: ArrayLike, values: ArrayLike) -> float:
    """Share of pairs (a reply of the policy, one of the base) in which the policy's is better, half of equal ones."""
    values = np.asarray(values, np.float64)
    gap = values[:, None] - values[None, :]
    better = np.where(gap > TIE, 1.0, np.where(gap < -TIE, 0.0, 0.5))
    pairs = np.outer(policy_counts, base_counts)
    return float((pairs * better)[pairs > 0].sum() / pairs.sum())


def compare_replies(policy: Sequence[int], base: Sequence[int], values: Sequence[float | None]) -> list[float]:
    """Compare the replies of two policies to one state.

    Args:
        policy: outcome of each reply of the policy, as an index into `values`.
        base: the same of the base.
        values: of each outcome; None where nobody chose it.

    Returns:
        One number for each of: win, tie, loss, wins plus half ties, pairwise share, d, share of the base's replies that
        have the best value among those valued, and the same share of the policy's.

    Raises:
        RunError: a reply whose outcome has no value, or no replies.
    """
    values_O = np.array(values, np.float64)
    counts = [reply_counts(actions, len(values_O)) for actions in (policy, base)]
    if (
        any(len(count) > len(values_O) or not count.any() for count in counts)
        or np.isnan(values_O[(counts[0] + counts[1]) > 0]).any()
    ):
        raise RunError(
            "every state needs replies of both policies, and a value for each outcome that was replied",
            value={"policy": list(policy), "base": list(base), "values": list(values)},
            remedy="Probe again.",
        )
    d = mean_value(counts[0], values_O) - mean_value(counts[1], values_O)
    win, loss = float(d > TIE), float(d < -TIE)
    best = values_O >= np.nanmax(values_O) - TIE
    shares = [float(count[best].sum() / count.sum()) for count in counts]
    half_ties = 0.5 * (1 + win - loss)
    return [win, 1 - win - loss, loss, half_ties, pairwise_share(*counts, values_O), d, shares[1], shares[0]]


def compare_states(states: Json | None, quality: str) -> Compared | None:
    """Compare the replies in all states of one kind under one quality; None where there is no such state or value.

    Replies that could not be checked (None in place of an outcome) are left out, and with them states in which a policy
    has no other.
    """
    if not states or not states["task"] or not states["values"].get(quality):
        return None
    sides = [[_checked(row) for row in states[f"{side}_actions"]] for side in ("policy", "base")]
    replies = list(zip(*sides, states["values"][quality], strict=True))
    known_S = np.array([bool(policy) and bool(base) for policy, base, _ in replies])
    if not known_S.any():
        return None
    positions = {"turns_left": states["turns_left"], **(states.get("covariates") or {})}
    return Compared(
        tasks=np.array(states["task"], np.int64)[known_S],
        rows=np.array([compare_replies(*row) for row, known in zip(replies, known_S, strict=True) if known]),
        positions={name: np.array(column, np.float64)[known_S] for name, column in positions.items()},
    )


def _checked(actions: Sequence[int | None]) -> list[int]:
    """Outcomes of the replies that could be checked."""
    return [action for action in actions if action is not None]


def step_quality(probe: Json) -> Json:
    """Compare two policies in the states of a raw probe, under every quality.

    Args:
        probe: with "states", "qualities" and "primary_quality".

    Returns:
        "ordinary" and "error_states" under the primary quality, all of them in "by_quality"; None where there was no
        state to compare.
    """
    qualities, primary = probe["qualities"], probe["primary_quality"]
    names = dict.fromkeys((primary, *qualities))
    cells = {quality: {kind: _cell(probe, kind, quality) for kind in KINDS} for quality in names}
    return {
        **cells[primary],
        "by_quality": {quality: cells[quality] for quality in qualities},
        "primary_quality": primary,
        "qualities": qualities,
    }


def measured(probe: Json) -> dict[str, PerTask | None]:
    """Values by task of what is judged: KIND_wins_plus_half_ties and KIND_mean_difference under the primary quality.

    Where that is not the oracle's, oracle_KIND_... as well, under the exact value by which the paper judges FrozenLake.
    """
    qualities = {"": probe["primary_quality"]}
    if ORACLE in probe["qualities"] and probe["primary_quality"] != ORACLE:
        qualities["oracle_"] = ORACLE
    found = {}
    for (prefix, quality), (kind, key) in itertools.product(qualities.items(), KINDS.items()):
        compared = compare_states((probe.get("states") or {}).get(key), quality)
        means = by_task(compared.tasks, compared.rows) if compared else None
        for name in ("wins_plus_half_ties", "mean_difference"):
            found[f"{prefix}{kind}_{name}"] = means and means.column(_COLUMNS.index(name))
    return found


def _cell(probe: Json, kind: str, quality: str) -> Json | None:
    compared = compare_states((probe.get("states") or {}).get(KINDS[kind]), quality)
    if compared is None:
        return None
    about: Mapping[str, Any] = probe["qualities"].get(quality) or {}
    found = _summary(compared.tasks, compared.rows)
    intervals, best = found.pop("intervals"), found.pop("best_share")
    decided = found["win"] + found["loss"]
    return {
        **found,
        "intervals": intervals,
        "win_among_non_ties": found["win"] / decided if decided else None,
        "quality": quality,
        "fair": about.get("fair"),
        "definition": _definition(probe, quality, about.get("definition", "")),
        "best_share": best,
        **{f"by_{name}": _by_bins(compared, where) for name, where in compared.positions.items()},
    }


def _summary(tasks: np.ndarray, rows: np.ndarray) -> Json:
    means = by_task(tasks, rows)
    estimate = means.estimate
    mean = dict(zip(_COLUMNS, estimate.estimate.tolist(), strict=True))
    low, high = (dict(zip(_COLUMNS, map(number, x), strict=True)) for x in (estimate.low, estimate.high))
    return {
        **{name: mean[name] for name in _SHARES},
        "mean_difference": mean["mean_difference"],
        "ci_low": low["mean_difference"],
        "ci_high": high["mean_difference"],
        "intervals": {name: [low[name], high[name]] for name in _SHARES},
        "best_share": {"base": mean["base_best"], "policy": mean["policy_best"]},
        "n_states": means.n,
        "n_tasks": len(means.tasks),
    }


def _by_bins(compared: Compared, position_S: np.ndarray) -> list[Json]:
    """The states by where they lie (turns left, distance); those of unknown place are left out."""
    table, p_values = [], []
    for low, high in power_bins(position_S[~np.isnan(position_S)]):
        inside = (position_S >= low) & (position_S <= high)
        found = _summary(compared.tasks[inside], compared.rows[inside])
        del found["intervals"], found["best_share"], found["pairwise_with_half_ties"]
        table.append({"low": low, "high": high, **found})
        p_values.append(bootstrap_p_value(by_task(compared.tasks[inside], compared.rows[inside, _DIFFERENCE]).values))
    return [{**row, "p_holm": p} for row, p in zip(table, holm_column(p_values), strict=True)]


def _definition(probe: Json, quality: str, meaning: str) -> str:
    replies = probe.get("replies_per_state")
    return (
        f"d = mean value of {replies or 'the'} replies of {probe['policy']} minus that of {probe['base']} to the same "
        "context, both drawn with the same random numbers (so ties are more frequent than among independent replies), "
        f"value = {quality}{f' ({meaning})' if meaning else ''}; win d > {TIE:g}, loss d < -{TIE:g}; "
        f"{EQUAL_WEIGHT}; {INTERVAL}; p_holm: two-sided bootstrap p-values of the mean difference, adjusted within a "
        "table. pairwise_with_half_ties: share of pairs of single replies in which the policy's is better."
    )
