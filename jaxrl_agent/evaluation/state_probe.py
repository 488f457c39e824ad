"""The same-state probe: both policies reply to the same bytes, many times, and the replies are valued.

States come from both policies' own trajectories, half each, spread evenly over the tasks, each (task, state, turns
left) once. Source: "Step quality".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.arena import MONTE_CARLO, Arena, Positions, Visits
from jaxrl_agent.run_dir import Json

Choice = tuple[int, int]  # which trajectories (0 = base, 1 = policy), which of their visited states


def choose(visits: Sequence[Visits], count: int, *, seed: int, least_turns_left: int = 1) -> list[Choice]:
    """Choose states to probe.

    From each list in turn, a state of the task that has the fewest so far, at random within that; a state that was
    chosen already, from whichever list, is passed over.

    Args:
        visits: visited states of each policy.
        count: states wanted; fewer come back where there are not so many.
        seed: of the order.
        least_turns_left: states with fewer turns left are passed over.

    Returns:
        (list, index into it) of each chosen state.
    """
    waiting = [
        _by_task(found, np.random.default_rng([seed, source]), least_turns_left) for source, found in enumerate(visits)
    ]
    taken: set[tuple[int, str, int]] = set()
    per_task: Counter[int] = Counter()
    chosen: list[Choice] = []
    while len(chosen) < count and any(waiting):
        for source, tasks in enumerate(waiting):
            if (found := _next(visits[source], tasks, taken, per_task)) is not None:
                chosen.append((source, found))
    return chosen[:count]


def _by_task(visits: Visits, rng: np.random.Generator, least_turns_left: int) -> dict[int, list[int]]:
    """Indices of each task's states in random order; tasks in random order too."""
    tasks: dict[int, list[int]] = {}
    for index in rng.permutation(len(visits.task_V)).tolist():
        if visits.turns_left_V[index] >= least_turns_left:
            tasks.setdefault(int(visits.task_V[index]), []).append(index)
    return tasks


def _next(visits: Visits, tasks: dict[int, list[int]], taken: set, per_task: Counter[int]) -> int | None:
    """Take a fresh state of the task with the fewest; None where there is none left."""
    while tasks:
        task = min(tasks, key=per_task.__getitem__)
        while tasks[task]:
            index = tasks[task].pop()
            name = task, visits.keys[index], int(visits.turns_left_V[index])
            if name not in taken:
                taken.add(name)
                per_task[task] += 1
                return index
        del tasks[task]
    return None


def probe_states(
    arena: Arena,
    positions: Positions,
    *,
    base: Policy,
    policy: Policy,
    sources: Sequence[str],
    replies: int,
    rollouts: int,
) -> Json:
    """Let both policies reply to every position and value what they said.

    Args:
        arena: the task.
        positions: the states.
        base: the policy that the other is compared with, and the reference that goes on where values are sampled.
        policy: the other.
        sources: whose trajectory came through each state, for the record.
        replies: replies of each policy to each state.
        rollouts: continuations for each sampled value; 0 leaves sampled values out.

    Returns:
        Columns over states, as JSON values: task, key, source, turns_left, covariates; outcomes and values (by
        quality) of each state, base_actions and policy_actions (indices into the outcomes, None for a reply that could
        not be checked), base_llr and policy_llr (log pi_policy - log pi_base of each reply, nats; None where there is
        no reply).
    """
    found = arena.act([base, policy], positions, replies=replies)
    values = arena.exact(positions, found)
    if rollouts:
        values[MONTE_CARLO] = arena.monte_carlo(base, positions, found, rollouts=rollouts)
    llr = [_llr(arena, base, policy, rows, replies) for rows in found.rows]
    return {
        "task": positions.task_S.tolist(),
        "key": positions.keys,
        "source": list(sources),
        "turns_left": positions.turns_left_S.tolist(),
        "covariates": {name: values_S.tolist() for name, values_S in positions.covariates.items()},
        "outcomes": found.outcomes,
        "values": values,
        "base_actions": _actions(found.outcome_SN[0]),
        "policy_actions": _actions(found.outcome_SN[1]),
        "base_llr": llr[0],
        "policy_llr": llr[1],
    }


def _actions(outcome_SN: np.ndarray) -> list[list[int | None]]:
    return [[None if outcome < 0 else outcome for outcome in row] for row in outcome_SN.tolist()]


def _llr(arena: Arena, base: Policy, policy: Policy, rows, replies: int) -> list[list[float | None]]:
    """log pi_policy - log pi_base of every reply, [S][N]; None where the machinery let nobody reply."""
    found = [arena.score(scorer, rows, last_only=True) for scorer in (policy, base)]
    llr_B = (found[0].turn_BT - found[1].turn_BT).sum(axis=1)
    replied_B = found[0].tokens_BT.any(axis=1)
    flat = [value if replied else None for value, replied in zip(llr_B.tolist(), replied_B, strict=True)]
    return [flat[first : first + replies] for first in range(0, len(flat), replies)]
