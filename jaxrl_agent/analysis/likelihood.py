"""How likely each policy finds its own and the other's actions and trajectories. Source: "Likelihood analysis".

Log-probabilities are natural (nats), of the distribution at the sampling temperature before any filter. LLR is the log
of the likelihood ratio, log pi_policy - log pi_base; NLL is minus the log-probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxrl_agent.analysis.estimates import EQUAL_WEIGHT, INTERVAL, PerTask, by_task, ends, figure, number, paired
from jaxrl_agent.analysis.step_quality import KINDS
from jaxrl_agent.errors import RunError
from jaxrl_agent.run_dir import Json
from jaxrl_agent.statistics import judge_above, judge_below

SIDES = ("policy", "base")
ROUNDING = 1e-9  # nats: a mean this close to 0 is 0

NLL_DEFINITION = (
    "Minus the log-probability of one action (all sampled tokens of a turn, summed), in nats, of actions sampled by "
    f"one policy and scored by either; {EQUAL_WEIGHT}; {INTERVAL}. without_reasoning leaves reasoning tokens out."
)
LLR_DEFINITION = (
    "Log-likelihood ratio of a whole trajectory, log pi_policy - log pi_base over all its sampled tokens, in nats; "
    f"split by who sampled it and by success, if known; {EQUAL_WEIGHT} that have such a one; {INTERVAL}; n counts "
    "trajectories. by_turn: cumulative over the tokens of turns 1 to t, over all trajectories; one that has ended "
    "keeps its last value; n counts those that reached turn t."
)
SANITY_DEFINITION = (
    "In expectation the LLR over all trajectories is 0 or more on the policy's own samples and 0 or less on the "
    "base's; supported where the whole interval is, contradicted where none of it is."
)


def likelihood(probe: Json) -> Json:
    """Score the actions and trajectories of both policies under both.

    Args:
        probe: with "episodes" of both policies and "states".

    Returns:
        "action_nll" and "llr"; None where nothing was scored.
    """
    episodes = probe.get("episodes") or {}
    scored = all((episodes.get(side) or {}).get("logprobs") for side in SIDES)
    return {"action_nll": _action_nll(episodes) if scored else None, "llr": _llr(probe) if scored else None}


def measured(probe: Json) -> dict[str, PerTask | None]:
    """Values by task of what is judged.

    nll_under_base_difference (the policy's actions minus the base's own), llr_success_difference (the policy's
    successful trajectories minus the base's, on tasks where both have some), llr_policy_all, llr_base_all.
    """
    names = ("nll_under_base_difference", "llr_success_difference", "llr_policy_all", "llr_base_all")
    episodes = probe.get("episodes") or {}
    if not all((episodes.get(side) or {}).get("logprobs") for side in SIDES):
        return dict.fromkeys(names)
    nll, llr = _nll_by_task(episodes, "logprobs"), _llr_by_task(episodes)
    found = (
        paired(nll["policy_actions_under_base"], nll["base_actions_under_base"]),
        paired(llr["policy_success"], llr["base_success"]),
        llr["policy_all"],
        llr["base_all"],
    )
    return dict(zip(names, found, strict=True))


def action_nll(logprobs: Sequence[Sequence[float]]) -> np.ndarray:
    """Minus the log-probability of every action of all trajectories, in nats, float64 [actions]."""
    return -np.array(list(itertools.chain.from_iterable(logprobs)), np.float64)


def turn_llr(policy: Sequence[float], base: Sequence[float]) -> np.ndarray:
    """Log-likelihood ratio of each turn of one trajectory, float64 [turns]; exactly 0 where both score alike.

    Raises:
        RunError: different numbers of turns, or a value that is not finite.
    """
    scores = [np.array(values, np.float64) for values in (policy, base)]
    if scores[0].shape != scores[1].shape or not np.isfinite(scores).all():
        raise RunError("both policies must score every turn with a finite log-probability", value=(policy, base))
    return scores[0] - scores[1]


def cumulative(turns: Sequence[np.ndarray]) -> np.ndarray:
    """Sum up turn by turn, float64 [trajectories, longest]; a trajectory that has ended keeps its last value."""
    longest = max(map(len, turns), default=0)
    return np.array([np.cumsum([*llr, *[0.0] * (longest - len(llr))]) for llr in turns]).reshape(len(turns), longest)


def _action_nll(episodes: Json) -> Json:
    found = _nll_by_task(episodes, "logprobs")
    scored = all(episodes[side].get("action_logprobs") for side in SIDES)
    bare = _nll_by_task(episodes, "action_logprobs") if scored else None
    return {
        **_means(found),
        "intervals": _intervals(found),
        "n_actions": {side: _count(found[f"{side}_actions_under_{side}"]) for side in SIDES},
        "without_reasoning": bare and _means(bare),
        "definition": NLL_DEFINITION,
    }


def _nll_by_task(episodes: Json, column: str) -> dict[str, PerTask | None]:
    found = {}
    for side, scorer in itertools.product(SIDES, SIDES):
        rows = episodes[side][column][scorer]
        tasks = _per_turn(np.array(episodes[side]["task"], np.int64), rows)
        found[f"{side}_actions_under_{scorer}"] = by_task(tasks, action_nll(rows))
    return found


def _llr(probe: Json) -> Json:
    episodes = probe["episodes"]
    found = _llr_by_task(episodes)
    turns = {side: list(_turns(episodes[side])) for side in SIDES}
    tasks = {side: np.array(episodes[side]["task"], np.int64) for side in SIDES}
    per_action = {
        side: by_task(_per_turn(tasks[side], turns[side]), np.concatenate([[], *turns[side]])) for side in SIDES
    }
    return {
        **_means(found),
        "intervals": _intervals(found),
        "n": {name: _count(means) for name, means in found.items()},
        "per_action": {
            f"{side}_all": figure(means, f"LLR of one action, nats; {EQUAL_WEIGHT}; {INTERVAL}.")
            for side, means in per_action.items()
        },
        "by_turn": {side: _by_turn(tasks[side], turns[side]) for side in SIDES},
        "by_state_kind": {kind: _of_replies((probe.get("states") or {}).get(key)) for kind, key in KINDS.items()},
        "sanity": _sanity(found),
        "definition": LLR_DEFINITION,
    }


def _per_turn(tasks: np.ndarray, turns: Sequence[Sequence[float]]) -> np.ndarray:
    return np.repeat(tasks, np.array([len(row) for row in turns], np.int64))


def _turns(side: Json) -> Iterator[np.ndarray]:
    scores = zip(side["logprobs"]["policy"], side["logprobs"]["base"], strict=True)
    return (turn_llr(policy, base) for policy, base in scores)


def _llr_by_task(episodes: Json) -> dict[str, PerTask | None]:
    found = {}
    for side in SIDES:
        turns = list(_turns(episodes[side]))
        totals, any_turn = np.array([llr.sum() for llr in turns]), np.array([llr.size > 0 for llr in turns], bool)
        success = np.array([math.nan if won is None else won for won in episodes[side]["success"]], np.float64)
        for name, kept in (("success", success == 1), ("failure", success == 0), ("all", any_turn)):
            found[f"{side}_{name}"] = by_task(np.array(episodes[side]["task"], np.int64)[kept], totals[kept])
    return found


def _by_turn(tasks: np.ndarray, turns: Sequence[np.ndarray]) -> list[Json]:
    sums = cumulative(turns)
    if not sums.size:
        return []
    estimate = by_task(tasks, sums).estimate
    return [
        {
            "turn": t + 1,
            "mean": float(estimate.estimate[t]),
            "ci_low": number(estimate.low[t]),
            "ci_high": number(estimate.high[t]),
            "n": sum(len(llr) > t for llr in turns),
        }
        for t in range(sums.shape[1])
    ]


def _of_replies(states: Json | None) -> Json:
    """LLR of one reply to a probed state, by who replied."""
    found = {}
    for side in SIDES:
        rows = (states or {}).get(f"{side}_llr")
        means = by_task(states["task"], [_mean(row) for row in rows]) if rows else None
        found[side] = figure(means, f"LLR of one reply of the {side}, mean over the replies to a state; {INTERVAL}.")
    return found


def _mean(row: Sequence[float | None]) -> float:
    """Mean over the replies that there are; NaN where there are none."""
    known = [value for value in row if value is not None]
    return float(np.mean(known)) if known else math.nan


def _sanity(found: Mapping[str, PerTask | None]) -> Json:
    policy, base = found["policy_all"], found["base_all"]
    return {
        "policy_all_at_least_0": policy and judge_above(policy.estimate, -ROUNDING),
        "base_all_at_most_0": base and judge_below(base.estimate, ROUNDING),
        "definition": SANITY_DEFINITION,
    }


def _means(found: Mapping[str, PerTask | None]) -> dict[str, float | None]:
    return {name: means and float(means.mean) for name, means in found.items()}


def _intervals(found: Mapping[str, PerTask | None]) -> dict[str, list[float | None] | None]:
    return {name: ends(means and means.estimate) for name, means in found.items()}


def _count(means: PerTask | None) -> int:
    return means.n if means else 0
