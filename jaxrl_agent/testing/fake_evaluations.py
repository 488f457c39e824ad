"""Evaluations and comparisons made up for a purpose: policies that succeed with given probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_agent.analysis.arms import Arm, Policy
from jaxrl_agent.analysis.pass_surface import Comparison, analyse
from jaxrl_agent.run_dir import Json

T_MAX, TASKS = 16, 60
# Shares of success at 4, 8, 12 and 16 turns: the pattern of the study.
BASE, GRPO, MIX = (0.4, 0.5, 0.6, 0.65), (0.2, 0.6, 0.7, 0.9), (0.5, 0.75, 0.85, 0.93)


ARMS = (Policy("base"), Policy("grpo", "base"), Policy("mix", "base", mixes_budgets=True))


def fake_evaluation(
    shares: Sequence[float], *, seed: int, samples: int = 16, optimal: float | None = 1.0, **changes
) -> Json:
    """An evaluation in the format of evaluate.py whose policy succeeds with these probabilities at equal steps of T."""
    rng = np.random.default_rng([seed, *(int(1000 * share) for share in shares)])
    budgets = [T_MAX // len(shares) * (i + 1) for i in range(len(shares))]
    wins_TPN = rng.random((len(shares), TASKS, samples)) < np.reshape(shares, (-1, 1, 1))
    headroom = [
        {"T": turns, "optimal": optimal, "headroom": optimal - wins.mean(), "ci_low": optimal - wins.mean() - 0.02}
        for turns, wins in zip(budgets, wins_TPN, strict=True)
        if optimal is not None
    ]
    return {
        "task": "frozenlake",
        "split": "test",
        "data_hash": "abc",
        "t_max": T_MAX,
        "budget_visibility": "total",
        "n_tasks": TASKS,
        "n_samples": samples,
        "grid": [{"K": 1, "T": turns} for turns in budgets],
        "runs": [
            {"T": turns, "first_success_turns": np.where(wins, turns, 0).tolist()}
            for turns, wins in zip(budgets, wins_TPN, strict=True)
        ],
        "headroom": {"by_T": headroom} if headroom else None,
        **changes,
    }


def fake_comparison(
    base: Sequence[float] = BASE,
    grpo: Sequence[float] = GRPO,
    mix: Sequence[float] = MIX,
    *,
    seeds: int = 4,
    arms: Sequence[Arm] = ARMS,
    **options,
) -> Comparison:
    """A comparison of arms that bear these three names."""
    shares = {"base": base, "grpo": grpo, "mix": mix}
    found = {
        arm.name: [fake_evaluation(shares[arm.name], seed=seed, **options) for seed in range(seeds)] for arm in arms
    }
    return analyse(arms, range(seeds), found)
