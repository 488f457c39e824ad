"""What probes ask of FrozenLake, on the host in float64: names of states, exact values, distances, errors to inject.

Letters: `S` states, `A` outcomes of a reply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_agent.envs import frozenlake, frozenlake_exact
from jaxrl_agent.tasks.frozenlake import LakeInstances, LakeTask
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES

_GAMMAS = {"q_star_0.99": 0.99, "q_star_0.9": 0.9}
_HORIZON = "q_horizon"
_ERROR_GAMMA = 0.99  # of the Q* by which an error is the worst move
_GAP = 1e-9  # two float64 values closer than this are the same value


class LakeProbe:
    """FrozenLake as `evaluation.device_arena` asks for it.

    Attributes:
        outcomes: what a reply can amount to: an action, or None for an unusable one, which comes last.
        qualities: definitions of the exact values, by name.
        primary: the quality that a study is about; None where none of them is fair to what the agent can know.
        covariates: what else describes a state, by name.

    Args:
        task: the static half of the game.
        instances: the host's view of its lakes.
    """

    def __init__(self, task: LakeTask, instances: LakeInstances):
        self._descs, self._instances, self._rate = instances.descs, instances, task.rules.success_rate
        self.outcomes: tuple[str | None, ...] = (*ACTION_NAMES[: task.rules.n_actions], None)
        seen = " of an agent that sees every hole; a look or an unusable reply is worth the cell one turn later"
        self.qualities = {
            **{name: f"Q* at gamma {gamma}{seen}" for name, gamma in _GAMMAS.items()},
            _HORIZON: f"best probability of success in the turns left{seen}",
        }
        self.covariates = {"distance_to_goal": "moves of the shortest path to the goal that meets no hole"}
        deterministic = "q_star_0.99" if self._rate == 1.0 else _HORIZON
        self.primary: str | None = None if task.rules.foggy else deterministic
        rate, exact = self._rate, frozenlake_exact
        self._horizon = self._per_lake(exact.finite_horizon_q, success_rate=rate, horizon=task.t_max)
        self._worst = functools.cache(
            lambda i: exact.worst_surviving_action(self._descs[i], self._discounted[_ERROR_GAMMA](i), success_rate=rate)
        )
        self._successors = self._per_lake(exact.surviving_successors, success_rate=rate)
        self._distances = self._per_lake(_distances)
        self._discounted = {
            gamma: self._per_lake(exact.discounted_q, success_rate=rate, gamma=gamma) for gamma in _GAMMAS.values()
        }

    def keys(self, instance_S: np.ndarray, state: frozenlake.LakeState) -> list[str]:
        """Names of states: lake, cell, and what looks have told, the last of them included."""
        return [
            f"{self._instances.instance_id(int(i))}/{cell}/{','.join(map(str, np.flatnonzero(seen)))}/{look}"
            for i, cell, seen, look in zip(instance_S, state.cell, state.seen_X, state.last_look, strict=True)
        ]

    def describe(self, instance_S: np.ndarray, state: frozenlake.LakeState) -> dict[str, np.ndarray]:
        """Covariates of states, by name, float64 [S]; NaN where one is not defined."""
        distance_S = [self._distances(int(i))[cell] for i, cell in zip(instance_S, state.cell, strict=True)]
        return {"distance_to_goal": np.array(distance_S)}

    def values(
        self, instance_S: np.ndarray, state: frozenlake.LakeState, turns_left_S: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Exact value of every outcome in every state, by quality, float64 [S, A].

        Args:
            instance_S: int, lakes.
            state: states, leading axis S.
            turns_left_S: int, turns left including the one to be played.
        """
        places = list(zip(instance_S.tolist(), state.cell.tolist(), turns_left_S.tolist(), strict=True))
        found = {}
        for name, gamma in _GAMMAS.items():
            now_S4 = np.array([self._discounted[gamma](i)[cell] for i, cell, _ in places])
            found[name] = self._with_waiting(now_S4, gamma * now_S4.max(axis=1))
        horizon = [self._horizon(i)[h, cell] for i, cell, h in places]
        later_S = np.array([self._horizon(i)[h - 1, cell].max() for i, cell, h in places])
        return {**found, _HORIZON: self._with_waiting(np.array(horizon), later_S)}

    def optimum(self, instance_S: np.ndarray, state: frozenlake.LakeState, turns_left_S: np.ndarray) -> np.ndarray:
        """Best probability of success of an agent that sees every hole, float64 [S]."""
        places = zip(instance_S.tolist(), state.cell.tolist(), turns_left_S.tolist(), strict=True)
        return np.array([self._horizon(i)[h, cell].max() for i, cell, h in places])

    def inject(
        self, instance_S: np.ndarray, state: frozenlake.LakeState, *, seed: int
    ) -> tuple[np.ndarray, np.ndarray, frozenlake.LakeState]:
        """Find the error of each state: the worst move (by Q* at gamma 0.99) of those that can leave the agent alive.

        Args:
            instance_S: int, lakes.
            state: states, leading axis S.
            seed: of the successors on slippery ice, drawn given that the agent survives.

        Returns:
            ok_S: bool, False where no move is worse than another, or none leaves the agent alive.
            action_S: int, the error; 0 where there is none.
            after: the state behind it, leading axis S.
        """
        rng = np.random.default_rng([seed, 0xE])
        action_S, cell_S = np.zeros(len(instance_S), np.int32), np.array(state.cell)
        for place, (i, cell) in enumerate(zip(instance_S.tolist(), state.cell.tolist(), strict=True)):
            value_4 = self._discounted[_ERROR_GAMMA](i)[cell]
            action = int(self._worst(i)[cell])
            chance = rng.random()  # drawn for every state, so that one without an error moves no other
            if action < 0 or value_4.max() - value_4[action] <= _GAP:
                action_S[place] = -1
                continue
            action_S[place] = action
            odds_X = np.cumsum(self._successors(i)[cell, action])
            cell_S[place] = np.searchsorted(odds_X, chance * odds_X[-1], side="right")
        ok_S = action_S >= 0
        forgotten_S = np.where(ok_S, frozenlake.NOT_LOOKED, state.last_look).astype(np.int32)
        after = state.replace(cell=cell_S.astype(np.int32), last_look=forgotten_S)
        return ok_S, np.maximum(action_S, 0), after

    def _with_waiting(self, moves_S4: np.ndarray, waiting_S: np.ndarray) -> np.ndarray:
        """Values of the moves, and of everything that stands still, in the order of `outcomes`."""
        still = len(self.outcomes) - frozenlake.N_MOVES
        return np.concatenate([moves_S4, np.repeat(waiting_S[:, None], still, axis=1)], axis=1)

    def _per_lake(self, function: Callable[..., np.ndarray], **settings: float) -> Callable[[int], np.ndarray]:
        """`function` of a lake's map, computed once for each lake."""
        return functools.cache(lambda instance: function(self._descs[instance], **settings))


def _distances(desc: Sequence[str]) -> np.ndarray:
    """Moves to the goal from every cell, whatever the ice does; NaN where there is no way, and on holes."""
    value_X = frozenlake_exact.discounted_q(desc, success_rate=1.0, gamma=0.5).max(axis=1)  # 0.5 ** (moves - 1)
    with np.errstate(divide="ignore"):
        return np.where(value_X > 0, 1 - np.round(np.log2(value_X)), np.nan)
