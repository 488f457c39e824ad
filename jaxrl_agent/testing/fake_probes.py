"""Raw probes drawn from a seeded generator, in the exact format of real ones: a lake of five actions, values made up.

The policy prefers good outcomes a little more than the base does, recovers more often, and scores its own actions
higher. The numbers mean nothing beyond that.
"""

from __future__ import annotations

import numpy as np

from jaxrl_agent.run_dir import Json

OUTCOMES = ("left", "down", "right", "up", "look", None)
REPLIES, CONTINUATIONS, T_MAX = 16, 8, 16
QUALITIES = {
    "monte_carlo": {"definition": "share of rollouts of the base that succeed after the action", "fair": True},
    "q_star_0.99": {"definition": "exact value on the true map, discount 0.99", "fair": False},
}
FACTS = {
    "task": "frozenlake",
    "split": "test",
    "data_hash": "abc",
    "t_max": T_MAX,
    "budget": T_MAX,
    "budget_visibility": "total",
    "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "think": "off", "max_tokens": 2},
    "samples": 4,
    "replies_per_state": REPLIES,
    "continuations": CONTINUATIONS,
    "rollouts_per_value": 16,
    "qualities": QUALITIES,
    "primary_quality": "monte_carlo",
    "covariates": {"distance_to_goal": "moves of the shortest safe path to the goal"},
    "definitions": {},
    "versions": {},
}


def fake_probe(
    seed: int = 0,
    *,
    name: str = "grpo",
    base: str = "base",
    n_tasks: int = 12,
    tools: bool = False,
    identical: bool = False,
    runs: Json | None = None,
) -> Json:
    """Make the raw probe of one pair.

    Args:
        seed: another seed, other numbers.
        name: of the policy.
        base: name of the base.
        n_tasks: tasks, each with states of both kinds and with trajectories.
        tools: whether the task has tools, so that turns have calls.
        identical: let the policy be the base: the same actions, the same scores.
        runs: run directories of "base" and "policy".

    Returns:
        What `probes/NAME.json` holds.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    gain = 0.0 if identical else 1.0
    error = _states(rng, n_tasks, gain)
    return {
        "base": base,
        "policy": name,
        "runs": runs or {"base": None, "policy": None},
        "checkpoints": {"base": f"fake:{base}", "policy": f"fake:{name}"},
        "n_tasks": n_tasks,
        "seed": seed,
        **FACTS,
        "states": {"ordinary": _states(rng, n_tasks, gain), "error": error},
        "recovery": _recovery(rng, len(error["task"]), gain),
        "episodes": _episodes(rng, n_tasks, gain, tools),
    }


def _states(rng: np.random.Generator, n_tasks: int, gain: float, per_task: int = 6) -> Json:
    n = n_tasks * per_task
    values = rng.random((len(QUALITIES), n, len(OUTCOMES)))
    tilt = 2 * values[0]  # the base prefers what is valuable, the policy more so
    actions = {side: _sampled(rng, tilt * (1 + more)) for side, more in (("base", 0.0), ("policy", gain))}
    if not gain:
        actions["policy"] = actions["base"]
    chosen = [set(a) | set(b) for a, b in zip(actions["base"], actions["policy"], strict=True)]
    llr = {side: gain * (0.5 * sign + 0.3 * rng.standard_normal((n, REPLIES))) for side, sign in _SIGNS.items()}
    return {
        "task": np.repeat(np.arange(n_tasks), per_task).tolist(),
        "key": [f"state {i}" for i in range(n)],
        "source": [("base", "policy")[i % 2] for i in range(n)],
        "turns_left": rng.integers(1, T_MAX + 1, n).tolist(),
        "covariates": {"distance_to_goal": [None if i % 7 == 0 else int(rng.integers(1, 9)) for i in range(n)]},
        "outcomes": [list(OUTCOMES)] * n,
        "values": {
            quality: [
                [v if o in seen else None for o, v in enumerate(row)] for row, seen in zip(rows, chosen, strict=True)
            ]
            for quality, rows in zip(QUALITIES, values.tolist(), strict=True)
        },
        **{f"{side}_actions": rows for side, rows in actions.items()},
        **{f"{side}_llr": rows.tolist() for side, rows in llr.items()},
    }


_SIGNS = {"base": -1.0, "policy": 1.0}


def _sampled(rng: np.random.Generator, logits: np.ndarray) -> list[list[int]]:
    noise = rng.gumbel(size=(len(logits), REPLIES, logits.shape[1]))
    return (logits[:, None, :] + noise).argmax(axis=-1).tolist()


def _recovery(rng: np.random.Generator, n: int, gain: float) -> Json:
    ease = rng.random(n)

    def share(more: float) -> np.ndarray:
        return rng.binomial(CONTINUATIONS, np.clip(0.2 + 0.4 * ease + more, 0, 1)) / CONTINUATIONS

    base, without = share(0.0), share(0.15)
    return {
        "injected": [OUTCOMES[i % 4] for i in range(n)],
        "base_success": base.tolist(),
        "policy_success": (share(0.2) if gain else base).tolist(),
        "base_without_error": without.tolist(),
        "policy_without_error": (share(0.25) if gain else without).tolist(),
        "optimal_before": [1.0] * n,
        "optimal_after": [None if i % 5 == 0 else 0.9 for i in range(n)],
    }


def _episodes(rng: np.random.Generator, n_tasks: int, gain: float, tools: bool, samples: int = 4) -> Json:
    found = {}
    for side, sign in _SIGNS.items():
        turns = rng.integers(1, 9, n_tasks * samples)
        own = [-rng.gamma(2.0, 0.5, n) for n in turns]
        ratio = [gain * (0.6 + 0.4 * rng.standard_normal(n)) for n in turns]  # of who sampled over the other
        other = {"policy": "base", "base": "policy"}[side]
        scores = {
            side: [row.tolist() for row in own],
            other: [(row - more).tolist() for row, more in zip(own, ratio, strict=True)],
        }
        success = rng.random(len(turns)) < 0.6 + 0.2 * sign * gain
        found[side] = {
            "task": np.repeat(np.arange(n_tasks), samples).tolist(),
            "success": success.tolist(),
            "stop": ["success" if won else "budget" for won in success],
            "n_turns": turns.tolist(),
            "logprobs": scores,
            "action_logprobs": scores,
            "tokens": [[2] * n for n in turns],
            "quality": [rng.random(n).tolist() for n in turns],
            "best_quality": [[1.0] * n for n in turns],
            "call_ok": [_calls(rng, n, 0.2 * sign * gain) for n in turns] if tools else None,
        }
    return found


def _calls(rng: np.random.Generator, n: int, more: float) -> list[bool | None]:
    """True, False, None: worked, returned an error, called nothing."""
    return [(True, False, None)[i] for i in rng.choice(3, n, p=[0.6 + more, 0.3 - more, 0.1])]


def assert_ties_everywhere(raw: Json) -> None:
    """Check what a real probe of a policy against itself must find: equal replies, ratios of exactly 0."""
    for states in raw["states"].values():
        assert states["base_actions"] == states["policy_actions"]
        assert not np.any(states["base_llr"])
        assert not np.any(states["policy_llr"])
    assert raw["recovery"]["base_success"] == raw["recovery"]["policy_success"]
    for columns in raw["episodes"].values():
        assert columns["logprobs"]["base"] == columns["logprobs"]["policy"]
