"""FrozenLake played by host code, one episode at a time, in the very ids of the device path.

Words, their order, the reading of replies and the rules of the lake are not written a second time: an episode lays the
task's own pieces end to end, follows its automaton, and calls its environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.envs import frozenlake
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.tasks.frozenlake import LakeData, LakeTask
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.tasks.pieces import PieceTable
from jaxrl_agent.tasks.reply import NO_ACTION
from jaxrl_agent.types import StopReason, TokenRow

_env_step = jax.jit(frozenlake.step)


class HostLake:
    """One split of the game for host code, a `tasks.base.HostTask`.

    Args:
        task: its static half, see `make_frozenlake`.
        data: its device data; copied to the host.
        tokenizer: encodes replies that are given as text.
    """

    def __init__(self, task: LakeTask, data: LakeData, tokenizer: Any):
        self.task, self.tokenizer = task, tokenizer
        self.data: LakeData = jax.tree.map(np.asarray, data)
        self.t_max, self.max_tokens = task.t_max, task.max_tokens
        # A reply in bare words has so many tokens whatever they are; a chat reply ends with a token of its own.
        ends = {token for token in tokenizer.stop_ids if self.data.text.grammar.final_Q[self._after(token)]}
        self.stop_ids: tuple[int, ...] = tuple(sorted(ends))

    def __len__(self) -> int:
        return len(self.data.maps.start)

    def reset(self, instance: int, *, budget: int, key: jax.Array, context: int | None = None) -> LakeEpisode:
        """Begin an episode.

        Args:
            instance: index of the lake.
            budget: turns allowed, 1 to `task.t_max`.
            key: of the world's chance; turn t (from 0) draws from fold_in(key, t).
            context: tokens that the row has room for; by default those of the longest trajectory.

        Raises:
            ArgumentError: there is no such instance, or the budget is out of range.
        """
        if not 0 <= instance < len(self):
            raise ArgumentError(f"instance must lie in 0..{len(self) - 1}", value=instance)
        if not 1 <= budget <= self.task.t_max:
            raise ArgumentError(f"budget must lie in 1..{self.task.t_max}", value=budget)
        room = self.task.context_width(self.data) if context is None else context
        return LakeEpisode(self, instance, budget, key, room)

    def read(self, reply: Sequence[int]) -> tuple[bool, int]:
        """Follow the automaton: whether the reply is over, and the action that it names, -1 if none.

        Raises:
            ArgumentError: ids stand behind the end of the reply.
        """
        grammar = self.data.text.grammar
        state = int(grammar.start)
        for place, token in enumerate(reply):
            if grammar.final_Q[state]:
                raise ArgumentError("nothing may stand behind the end of a reply", value=list(reply[place:]))
            state = int(grammar.next_QV[state, token])
        return bool(grammar.final_Q[state]), int(grammar.action_Q[state])

    def _after(self, token: int) -> int:
        grammar = self.data.text.grammar
        return int(grammar.next_QV[int(grammar.start), token])

    def encode(self, reply: str) -> list[int]:
        """Ids of a reply that an outside player gives as text, with the game's end token where the text has none."""
        ids = self.tokenizer.encode(reply)
        return ids if self.read(ids)[0] else [*ids, _piece(self.data.text.replies, 0)[-1]]


class LakeEpisode:
    """One try at one lake, see `tasks.base.Episode`; made by `HostLake.reset`.

    Attributes:
        row: everything that the policy read and wrote.
        state: where it stands and what it has seen, numpy scalars and arrays.
        n_turns: replies so far.
        stop: why the episode is over; None while it goes on.
    """

    def __init__(self, lake: HostLake, instance: int, budget: int, key: jax.Array, context: int):
        self.lake, self.instance, self.budget, self.context = lake, instance, budget, context
        self._key = key
        self._map = jax.tree.map(lambda leaf: leaf[instance], lake.data.maps)
        self.state: frozenlake.LakeState = _on_host(frozenlake.reset(self._map))
        self.n_turns = 0
        self.stop: StopReason | None = None
        self.row = TokenRow()
        self.row.append(_join(lake.task.prompt_slots(lake.data, instance, budget)))
        self._observe()

    def step(self, reply: Sequence[int] | str, *, sampled: bool = True) -> Answer:
        """Write a reply down, play it, and write down what the policy reads next.

        A reply without an end was cut by the token limit: it is not played and ends the episode. The environment is
        played on the last allowed turn as on any other.

        Args:
            reply: sampled ids, end token included, at most `task.max_tokens`; or text of an outside player.
            sampled: False for a reply that was put in the agent's place.

        Raises:
            ArgumentError: the episode is over, or the reply is empty, too long, or goes on behind its end.
        """
        ids = self._checked(self.lake.encode(reply) if isinstance(reply, str) else reply)
        over, action = self.lake.read(ids)
        self.row.append(ids, turn=self.n_turns if sampled else -1)
        known = {"text": _spelled(self.lake.tokenizer, ids), **self._describe(action)}
        reward, terminated = self._play(action) if over else (0.0, False)
        self.n_turns += 1
        if not over:
            self.stop = StopReason.TOKEN_LIMIT
        elif terminated:
            self.stop = StopReason.SUCCESS if reward > 0 else StopReason.FAILURE
        elif self.n_turns >= self.budget:
            self.stop = StopReason.BUDGET
        observation = [] if self.stop else self._observe()
        name = None if action == NO_ACTION else ACTION_NAMES[action]
        return Answer(observation, reward, terminated, self.stop, name, **known)

    def close(self) -> None:
        """Nothing is held."""

    def _describe(self, action: int) -> dict[str, Any]:
        """The state as it is before a reply, and what the action is worth there."""
        quality, best = self.lake.task.quality(self.lake.data, self.instance, self.state, np.int32(action))
        seen = ",".join(map(str, np.flatnonzero(self.state.seen_X)))
        key = f"{self.instance}/{int(self.state.cell)}/{seen}"
        return {"state_key": key, "quality": float(quality), "best_quality": float(best)}

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if self.stop:
            raise ArgumentError("an episode that is over takes no reply", value=str(self.stop), remedy="Begin another.")
        if not 1 <= len(ids) <= self.lake.task.max_tokens:
            raise ArgumentError(f"a reply must have 1 to {self.lake.task.max_tokens} ids", value=len(ids))
        return list(map(int, ids))

    def _play(self, action: int) -> tuple[float, bool]:
        """Move the environment: reward, and whether it is done."""
        key = jax.random.fold_in(self._key, self.n_turns)
        state, reward, terminated = _env_step(self.lake.task.rules, self._map, self.state, action, key)
        self.state = _on_host(state)
        return float(reward), bool(terminated)

    def _observe(self) -> list[int]:
        """Write down what the policy reads before its next reply, if the longest reply still fits behind it."""
        lake = self.lake
        ids = _join(lake.task.observation_slots(lake.data, self.instance, self.state, self.n_turns, self.budget))
        if len(self.row.ids) + len(ids) + lake.task.max_tokens > self.context:
            self.stop = StopReason.CONTEXT_LIMIT
            return []
        self.row.append(ids)
        return ids


def _spelled(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode([token for token in ids if token < tokenizer.vocab_size])


def _on_host(state: frozenlake.LakeState) -> frozenlake.LakeState:
    return jax.tree.map(np.asarray, state)


def _piece(table: PieceTable, row: int) -> list[int]:
    return table.tokens_RW[row, : table.lengths_R[row]].tolist()


def _join(slots: Sequence[tuple[PieceTable, Any]]) -> list[int]:
    """The chosen rows end to end, as `join_pieces` lays them on the device."""
    return [token for table, row in slots for token in _piece(table, int(row))]
