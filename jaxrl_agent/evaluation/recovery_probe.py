"""Recovery: how often a policy succeeds from states behind an injected error, and from the same states without it.

Source: "Step quality", error states and recovery.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.arena import Arena, Positions
from jaxrl_agent.run_dir import Json


@dataclasses.dataclass(frozen=True)
class Injected:
    """States before and behind an error, in one order."""

    before: Positions
    after: Positions
    names: list[str]  # the error
    kept_S: np.ndarray  # int, which of the given positions they are


def inject_errors(arena: Arena, positions: Positions, count: int) -> Injected:
    """Put an error in place of the next turn of the first `count` positions that allow one.

    Errors can lead from different states to the same one, of the same task with as many turns left; the first is kept.
    """
    errors = arena.inject(positions)
    after = errors.after
    places = list(zip(after.task_S.tolist(), after.keys, after.turns_left_S.tolist(), strict=True))
    first = {places[index]: index for index in reversed(np.flatnonzero(errors.ok_S).tolist())}
    kept_S = np.array(sorted(first.values())[:count], int)
    names = [errors.names[place] for place in kept_S.tolist()]
    return Injected(positions.take(kept_S), after.take(kept_S), names, kept_S)


def probe_recovery(
    arena: Arena, injected: Injected, *, base: Policy, policy: Policy, continuations: int
) -> tuple[Json, dict[str, Any]]:
    """Let both policies play on with the turns that are left, behind the error and without it.

    Args:
        arena: the task.
        injected: states with their errors.
        base: the policy that the other is compared with.
        policy: the other.
        continuations: of each policy from each state, with and without the error.

    Returns:
        Columns over states as JSON values: injected, base_success, policy_success, base_without_error,
        policy_without_error (shares of the continuations whose success is known, None where it is of none),
        optimal_before, optimal_after (exact, or None), not_known (continuations left out, by column); and the episodes
        behind the error of each policy, by "base" and "policy".
    """
    players = {"base": base, "policy": policy}
    ends = {name: arena.finish(player, injected.after, continuations=continuations) for name, player in players.items()}
    without = {
        name: arena.finish(player, injected.before, continuations=continuations)[0] for name, player in players.items()
    }
    found = {f"{name}_success": success_SN for name, (success_SN, _) in ends.items()}
    found |= {f"{name}_without_error": success_SN for name, success_SN in without.items()}
    columns: Json = {"injected": injected.names, **{name: _shares(success_SN) for name, success_SN in found.items()}}
    columns["not_known"] = {name: int(np.isnan(success_SN).sum()) for name, success_SN in found.items()}
    for place, positions in (("before", injected.before), ("after", injected.after)):
        best_S = arena.optimum(positions)
        columns[f"optimal_{place}"] = None if best_S is None else best_S.tolist()
    return columns, {name: episodes for name, (_, episodes) in ends.items()}


def _shares(success_SN: np.ndarray) -> list[float | None]:
    """Share of successes among the continuations whose outcome is known, state by state."""
    known_SN = ~np.isnan(success_SN)
    counts_S, sums_S = known_SN.sum(axis=1), np.where(known_SN, success_SN, 0).sum(axis=1)
    return [float(total / count) if count else None for total, count in zip(sums_S, counts_S, strict=True)]
