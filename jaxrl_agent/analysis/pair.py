"""Everything that is computed of one policy against its base, from their raw probe and the policy's metrics."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_agent.analysis import estimates, likelihood, recovery, step_quality, tool_errors
from jaxrl_agent.analysis.dynamics import dynamics
from jaxrl_agent.run_dir import Json

CHANGES = ("trajectory_reward", "step_reward_pooled", "step_reward_first_turn")  # along training, to be judged


def analyse_pair(probe: Json, metrics: Sequence[Json] | None = None) -> Json:
    """Compute one pair.

    Args:
        probe: raw probe of the pair.
        metrics: rows of the policy's metrics.jsonl; None where there is no run.

    Returns:
        One part for each kind of figure, None where nothing was measured, and "measures": the figures that verdicts
        are made from, with their values by task.
    """
    found = {
        "base": probe["base"],
        "policy": probe["policy"],
        "checkpoints": probe.get("checkpoints"),
        "step_quality": step_quality.step_quality(probe),
        "recovery": recovery.recovery(probe),
        "tool_error_correction": tool_errors.tool_error_correction(probe),
        "likelihood": likelihood.likelihood(probe),
        "dynamics": dynamics(metrics),
    }
    return {**found, "measures": _measures(probe, found)}


def _measures(probe: Json, found: Json) -> Json:
    parts = (step_quality.measured(probe), recovery.measured(probe), likelihood.measured(probe))
    by_task = {name: estimates.measure(means) for part in parts for name, means in part.items()}
    tools, along = found["tool_error_correction"], (found["dynamics"] or {}).get("change", {})
    rated = tools and tools["difference"] is not None
    return {
        **by_task,
        "tool_error_correction_difference": _pooled({**tools, "value": tools["difference"]}) if rated else None,
        **{f"{name}_change": along.get(name) and _pooled(along[name]) for name in CHANGES},
    }


def _pooled(figure: Json) -> Json:
    """A figure that is no mean over tasks."""
    return {**{name: figure[name] for name in ("value", "ci_low", "ci_high", "n_tasks")}, "per_task": None}
