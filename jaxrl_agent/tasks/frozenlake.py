"""FrozenLake as a task: lakes, the text that shows them, and how a reply becomes a move; all of it inside jit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agent.config import TaskConfig
from jaxrl_agent.envs import frozenlake, frozenlake_exact, frozenlake_maps
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES, LakeText, make_text
from jaxrl_agent.tasks.pieces import PieceTable, join_pieces
from jaxrl_agent.tasks.reply import ReplyAutomaton

QUALITY_GAMMA = 0.99  # below 1, so that safe moves of a deterministic lake do not all tie
_KEY_BITS = 31  # seen cells in one column of a state's key
QUALITY_SWEEPS = 400  # value iteration error below gamma**400, about 2%, only on lakes that slip for that long


@struct.dataclass
class LakeData:
    """The instances of one split as device arrays."""

    maps: frozenlake.LakeMap  # leading axis [N]
    quality_NX4: jax.Array  # float32, Q* of the true lake at QUALITY_GAMMA
    horizon_NHX4: (
        jax.Array | None
    )  # float32, finite-horizon Q at gamma 1, H = 0..t_max turns left; None unless asked for
    text: LakeText


@dataclasses.dataclass(frozen=True)
class LakeTask:
    """The static half of the task: pure functions of (data, instance, state), for one trajectory, to be vmapped."""

    rules: frozenlake.LakeRules
    t_max: int  # turns
    visibility: str  # hidden, total, remaining
    max_tokens: int  # tokens of one reply

    def prompt_width(self, data: LakeData) -> int:
        """Tokens of the longest prompt."""
        return sum(table.width for table, _ in self.prompt_slots(data, 0, 0))

    def observation_width(self, data: LakeData) -> int:
        """Tokens of the longest observation."""
        state = frozenlake.reset(jax.tree.map(lambda leaf: leaf[0], data.maps))
        return sum(table.width for table, _ in self.observation_slots(data, 0, state, 0, 0))

    def context_width(self, data: LakeData) -> int:
        """Tokens of the longest trajectory."""
        return self.prompt_width(data) + self.t_max * (self.observation_width(data) + self.max_tokens)

    def grammar(self, data: LakeData) -> ReplyAutomaton:
        """How replies are read."""
        return data.text.grammar

    def reset(self, data: LakeData, instance: jax.Array) -> frozenlake.LakeState:
        """First state of an instance; the budget has no say in it."""
        return frozenlake.reset(_pick(data.maps, instance))

    def prompt(self, data: LakeData, instance: jax.Array, budget: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tokens before the first observation: (tokens_W int32 right-padded, length)."""
        return join_pieces(self.prompt_slots(data, instance, budget))

    def observe(
        self, data: LakeData, instance: jax.Array, state: frozenlake.LakeState, turn: jax.Array, budget: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens read before the reply of `turn` (from 0): (tokens_O int32 right-padded, length)."""
        return join_pieces(self.observation_slots(data, instance, state, turn, budget))

    def step(
        self, data: LakeData, instance: jax.Array, state: frozenlake.LakeState, action: jax.Array, key: jax.Array
    ) -> tuple[frozenlake.LakeState, jax.Array, jax.Array]:
        """Play one action (-1 wastes the turn): (state, reward float32, terminated bool)."""
        return frozenlake.step(self.rules, _pick(data.maps, instance), state, action, key)

    def quality(
        self, data: LakeData, instance: jax.Array, state: frozenlake.LakeState, action: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Q* of the action and of the best one, float32; looking or wasting a turn is worth gamma * V*."""
        quality_4 = data.quality_NX4[instance, state.cell]
        best = quality_4.max()
        moves = (action >= 0) & (action < frozenlake.N_MOVES)
        return jnp.where(moves, quality_4[jnp.clip(action, 0, 3)], QUALITY_GAMMA * best), best

    def process(
        self, data: LakeData, instance: jax.Array, state: frozenlake.LakeState, action: jax.Array, turns_left: jax.Array
    ) -> jax.Array:
        """Exact advantage Q_h(s, a) - V_h(s) with h turns left, this one included; 0 where it was not asked for.

        It is that of an agent that sees every hole; looking or wasting a turn is worth V_{h-1}(s).
        """
        if data.horizon_NHX4 is None:
            return jnp.float32(0)
        left = jnp.clip(turns_left, 1, self.t_max)
        quality, best = frozenlake_exact.step_quality(
            data.horizon_NHX4[instance], turns_left=left, cell=state.cell, action=action
        )
        return quality - best

    def optimum(self, data: LakeData, instance: jax.Array, budget: jax.Array) -> jax.Array:
        """Best chance of success within a budget, of an agent that sees every hole; 1 where it was not asked for."""
        if data.horizon_NHX4 is None:
            return jnp.float32(1)
        return data.horizon_NHX4[instance, budget, data.maps.start[instance]].max()

    def state_code(self, state: frozenlake.LakeState) -> jax.Array:
        """Compact state for the turn record: the cell."""
        return state.cell

    def state_key(self, state: frozenlake.LakeState) -> jax.Array:
        """Exact key of a state of one lake, int32 columns: the cell, and on the foggy lake what has been seen."""
        if not self.rules.foggy:
            return state.cell[None]
        bits_CX = jnp.pad(state.seen_X, (0, -len(state.seen_X) % _KEY_BITS)).reshape(-1, _KEY_BITS)
        return jnp.concatenate([state.cell[None], (bits_CX << jnp.arange(_KEY_BITS)).sum(axis=1, dtype=jnp.int32)])

    def prompt_slots(self, data: LakeData, instance, budget) -> list[tuple[PieceTable, Any]]:
        """The prompt as (table, row) in reading order."""
        text = data.text
        told = [(text.budget, budget)] if self.visibility == "total" else []
        return [(text.prompt_start, 0), (text.lake, instance), *told, (text.prompt_end, 0)]

    def observation_slots(self, data: LakeData, instance, state, turn, budget) -> list[tuple[PieceTable, Any]]:
        """An observation as (table, row) in reading order."""
        text, size = data.text, data.maps.size[instance]
        side = round(data.maps.hole_X.shape[-1] ** 0.5)
        place = state.cell // size * side + state.cell % size
        # A demonstration may outlast the budget that it was told; it goes on reading that one turn is left.
        left = jnp.maximum(budget - turn, 1)
        told = [(text.turns_left, left)] if self.visibility == "remaining" else []
        between = jnp.minimum(turn, 1)  # the first observation continues the message that the prompt opened
        return [
            (text.turn_start, between),
            (text.place, place),
            (text.look, state.last_look + 1),
            *told,
            (text.turn_end, 0),
        ]


@dataclasses.dataclass(frozen=True)
class LakeInstances:
    """What the host needs to name instances and to explain turns."""

    split: str
    descs: list[list[str]]
    rules: str  # what else decides how a game goes: the rules, the text, the length of a reply

    def __len__(self) -> int:
        return len(self.descs)

    @property
    def data_hash(self) -> str:
        """SHA-256 over the rules and all maps in order: equal hashes mean the same games."""
        games = [self.rules, *("\n".join(desc) for desc in self.descs)]
        return hashlib.sha256("\n\n".join(games).encode()).hexdigest()

    def instance_id(self, index: int) -> str:
        """Stable name of an instance, from its map alone."""
        return frozenlake_maps.map_hash(self.descs[index])[:16]

    def instance_info(self, index: int) -> dict[str, Any]:
        """What was played."""
        return {"map": self.descs[index]}

    def action_name(self, action: int) -> str | None:
        """Word of an action number; None for an unusable reply."""
        return ACTION_NAMES[action] if action >= 0 else None

    def explain_turns(
        self, index: int, cells: Sequence[int], actions: Sequence[int], quality: Sequence[float], best: Sequence[float]
    ) -> list[tuple[str, dict[str, Any]]]:
        """(state_key, info) of every turn of one trajectory; what looks have told is followed from its actions."""
        letters, size = "".join(self.descs[index]), len(self.descs[index])
        seen: set[int] = set()
        turns = []
        for cell, action, value, top in zip(cells, actions, quality, best, strict=True):
            known = sorted(seen)
            key = f"{self.instance_id(index)}/{cell}/{','.join(map(str, known))}"
            holes = [other for other in known if letters[other] == "H"]
            info = {"cell": cell, "quality": value, "best_quality": top, "cells_seen": known, "holes_seen": holes}
            turns.append((key, info))
            if action == frozenlake.LOOK:
                near = np.asarray(frozenlake.neighbours(size, cell))
                seen |= {int(other) for other in near if other != cell}
        return turns

    def optimal_success(self, budgets: Sequence[int], *, success_rate: float) -> np.ndarray:
        """Best possible probability of success of an agent that sees every hole; float64 [len(budgets), N]."""
        return np.stack(
            [frozenlake_exact.start_value(d, success_rate=success_rate, budgets=budgets) for d in self.descs], axis=1
        )


def make_frozenlake(
    config: TaskConfig, tokenizer, split: str, *, vocab_size: int, exact: bool = False
) -> tuple[LakeTask, LakeData, LakeInstances]:
    """Build one split of the task.

    Args:
        config: task settings.
        tokenizer: as `load_tokenizer` gives it.
        split: "train", "validation" or "test"; their maps are disjoint by hash.
        vocab_size: rows of the model's embedding; ids beyond the tokenizer's stand for nothing.
        exact: put finite-horizon values into the data, for process rewards and headroom.

    Returns:
        The static task, its device data, and the host's view of the instances.

    Raises:
        MapError: the settings allow too few maps.
        TokenizerError: the tokenizer lacks a word that the text needs.
    """
    lake = config.lake
    descs = frozenlake_maps.map_set(
        split,
        config.n_train if split == "train" else config.n_test,
        seed=lake.map_seed,
        size=(lake.min_size, lake.max_size),
        frozen_prob=lake.frozen_prob,
        start=lake.start,
        min_path=lake.min_path,
        min_holes=lake.min_holes,
        max_holes=lake.max_holes,
    )
    maps = frozenlake_maps.stack_maps(descs, lake.max_size)
    quality_NX4 = frozenlake_exact.discounted_q_maps(
        maps, success_rate=lake.success_rate, gamma=QUALITY_GAMMA, sweeps=QUALITY_SWEEPS
    )
    text = make_text(config, tokenizer, descs, vocab_size=vocab_size)
    task = LakeTask(
        rules=frozenlake.LakeRules(success_rate=lake.success_rate, foggy=lake.foggy),
        t_max=config.t_max,
        visibility=config.budget_visibility,
        max_tokens=config.max_tokens,
    )
    horizon_NHX4 = None
    if exact:
        horizon_NHX4 = frozenlake_exact.finite_horizon_q_maps(
            maps, success_rate=lake.success_rate, horizon=config.t_max
        )
    rules = f"{task.rules} {config.text} {config.max_tokens}"
    data = LakeData(maps=maps, quality_NX4=quality_NX4, horizon_NHX4=horizon_NHX4, text=text)
    return task, data, LakeInstances(split, descs, rules)


def _pick(maps: frozenlake.LakeMap, instance: jax.Array) -> frozenlake.LakeMap:
    return jax.tree.map(lambda leaf: leaf[instance], maps)
