"""How well two policies get on after an injected error, against the same states without it. Source: "Step quality"."""

from __future__ import annotations

import numpy as np

from jaxrl_agent.analysis.estimates import (
    EQUAL_WEIGHT,
    INTERVAL,
    PerTask,
    bootstrap_p_value,
    by_task,
    ends,
    figure,
    holm_column,
    power_bins,
)
from jaxrl_agent.run_dir import Json

AFTER = ("base_success", "policy_success")
BEFORE = ("base_without_error", "policy_without_error")


def recovery(probe: Json) -> Json | None:
    """Compare success from error states, each policy continuing on its own; None without error states.

    Args:
        probe: with "recovery", whose rows are those of "states.error".

    Returns:
        Success of both after the error, the same without it, what the error cost, and success by turns left.
    """
    columns = _columns(probe)
    if columns is None:
        return None
    tasks, found = columns["task"], _compare(columns, AFTER, "after the injected error, with the turns left")
    if found is None:
        return None
    gains = _differences(columns)
    return {
        **found,
        "without_error": _compare(columns, BEFORE, "from the same states before the error, one turn more left"),
        "extra_gain": figure(
            by_task(tasks, gains["extra_gain"]),
            f"Difference of the two policies after an error minus their difference without one, state by state; "
            f"{EQUAL_WEIGHT}; {INTERVAL}.",
        ),
        "error_cost": {
            name: figure(
                by_task(tasks, columns[before] - columns[after]),
                f"Success without the error minus success after it, {who}; {EQUAL_WEIGHT}; {INTERVAL}.",
            )
            for name, before, after, who in (
                ("optimal", "optimal_before", "optimal_after", "of the best agent that sees everything (exact)"),
                ("base", BEFORE[0], AFTER[0], "each of the base's own continuations"),
                ("policy", BEFORE[1], AFTER[1], "each of the policy's own continuations"),
            )
        },
        "by_turns_left": _by_turns_left(columns),
    }


def measured(probe: Json) -> dict[str, PerTask | None]:
    """Values by task of what is judged: recovery_difference, without_error_difference, extra_gain."""
    columns = _columns(probe)
    if columns is None:
        return dict.fromkeys(("recovery_difference", "without_error_difference", "extra_gain"))
    return {name: by_task(columns["task"], column) for name, column in _differences(columns).items()}


def _columns(probe: Json) -> dict[str, np.ndarray] | None:
    """Tasks, turns left and success shares of the error states; NaN where a column is missing or a value unknown."""
    states, found = (probe.get("states") or {}).get("error"), probe.get("recovery")
    if not states or not found or not states["task"]:
        return None
    unknown = [None] * len(states["task"])
    shares = {
        name: np.array(found.get(name) or unknown, np.float64)
        for name in (*AFTER, *BEFORE, "optimal_before", "optimal_after")
    }
    return {"task": np.array(states["task"]), "turns_left": np.array(states["turns_left"]), **shares}


def _differences(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    after, before = (columns[policy] - columns[base] for base, policy in (AFTER, BEFORE))
    return {"recovery_difference": after, "without_error_difference": before, "extra_gain": after - before}


def _compare(columns: dict[str, np.ndarray], names: tuple[str, str], when: str) -> Json | None:
    base, policy = (columns[name] for name in names)
    means = by_task(columns["task"], np.stack([base, policy, policy - base], axis=1))
    if means is None:
        return None
    of_base, of_policy, difference = (means.column(c) for c in range(3))
    low, high = ends(difference.estimate)
    return {
        "base": float(of_base.mean),
        "policy": float(of_policy.mean),
        "difference": float(difference.mean),
        "ci_low": low,
        "ci_high": high,
        "base_ci": ends(of_base.estimate),
        "policy_ci": ends(of_policy.estimate),
        "n_states": means.n,
        "n_tasks": len(means.tasks),
        "definition": f"Share of continuations that succeed {when}; {EQUAL_WEIGHT}; {INTERVAL}, paired by state.",
    }


def _by_turns_left(columns: dict[str, np.ndarray]) -> list[Json]:
    table, p_values = [], []
    for low, high in power_bins(columns["turns_left"]):
        inside = (columns["turns_left"] >= low) & (columns["turns_left"] <= high)
        within = {name: column[inside] for name, column in columns.items()}
        found = _compare(within, AFTER, "")
        if found is None:
            continue
        kept = ("base", "policy", "difference", "ci_low", "ci_high", "n_states", "n_tasks")
        table.append({"low": low, "high": high, **{name: found[name] for name in kept}})
        p_values.append(bootstrap_p_value(by_task(within["task"], within[AFTER[1]] - within[AFTER[0]]).values))
    return [{**row, "p_holm": p} for row, p in zip(table, holm_column(p_values), strict=True)]
