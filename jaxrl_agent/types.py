"""The words and arrays that every floor shares.

Dimension key (a local array of rank two or more ends in its letters):

    P  task instances (prompts)      G  group size           B = P * G  trajectories
    T  turns, padded to t_max        L  token positions      S  cache slots
    C  tokens of one appended chunk  V  vocabulary           D  model width
    H  query heads                   K  key/value heads      E  head size
    F  MLP width                     N  samples per task in evaluation
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import jax
from flax import struct


class StopReason(enum.StrEnum):
    """Why a trajectory ended. On device the code is the position in this list."""

    SUCCESS = "success"  # the environment terminated with the goal reached
    FAILURE = "failure"  # the environment terminated without it
    BUDGET = "budget"  # the allowed turns were used up: truncated, reward 0, stays in the loss
    TOKEN_LIMIT = "token_limit"  # one reply reached its token limit: masked from the loss by default
    CONTEXT_LIMIT = "context_limit"  # no room for another turn: masked from the loss by default
    INVALID = "invalid"  # the protocol ends an episode on an unusable reply
    ENVIRONMENT_ERROR = "environment_error"
    TIME_LIMIT = "time_limit"
    COULD_NOT_CHECK = "could_not_check"

    @property
    def code(self) -> int:
        """Integer used inside jit."""
        return list(StopReason).index(self)

    @classmethod
    def from_code(cls, code: int) -> StopReason:
        """Inverse of `code`."""
        return list(cls)[code]


@struct.dataclass
class TokenBatch:
    """Trajectories as token rows, right-padded; what the learner trains on.

    Masks come from lengths and from who wrote a token, never from a pad id.
    """

    tokens_BL: jax.Array  # int32
    lengths_B: jax.Array  # int32, tokens in use
    loss_mask_BL: jax.Array  # bool, True only on tokens that the policy sampled
    sampler_logprobs_BL: jax.Array  # float32, at the sampling temperature; 0 where loss_mask is False
    turn_BL: jax.Array  # int32, turn that a sampled token belongs to; -1 elsewhere


@struct.dataclass
class TurnRecord:
    """What happened turn by turn; entries at and after `n_turns` are 0."""

    state_BT: jax.Array  # int32, the task's compact state before the action (FrozenLake: the cell)
    action_BT: jax.Array  # int32, parsed action, -1 for an unusable reply
    reward_BT: jax.Array  # float32
    step_quality_BT: jax.Array  # float32, exact value of the action taken, Q* at gamma 0.99 (logging only)
    best_quality_BT: jax.Array  # float32, value of the best action in that state (logging only)
    process_BT: jax.Array  # float32, the task's process reward of the turn; 0 where it offers none
    key_BTK: jax.Array  # int32 [B, T, columns], exact key of the state: equal rows are one state of an instance


@struct.dataclass
class Rollout:
    """A batch of finished trajectories, grouped: rows p*G .. p*G+G-1 share instance and budget."""

    batch: TokenBatch
    turns: TurnRecord
    instance_B: jax.Array  # int32, index into the task's instances
    group_B: jax.Array  # int32, group id within this batch
    budget_B: jax.Array  # int32, turns allowed
    n_turns_B: jax.Array  # int32, turns used
    prompt_lengths_B: jax.Array  # int32, tokens
    stop_B: jax.Array  # int32, StopReason code
    return_B: jax.Array  # float32, sum of turn rewards
    success_B: jax.Array  # bool


@dataclasses.dataclass
class TokenRow:
    """One token row while the host writes it: ids are appended, and never taken back or changed."""

    ids: list[int] = dataclasses.field(default_factory=list)
    turns: list[int] = dataclasses.field(default_factory=list)  # turn that sampled the id; -1 for ids of others

    def append(self, ids: Sequence[int], *, turn: int = -1) -> None:
        """Write ids behind the others; `turn` is that of the policy's own ids."""
        self.ids += ids
        self.turns += [turn] * len(ids)

    @property
    def loss_mask(self) -> list[bool]:
        """True on ids that the policy sampled."""
        return [turn >= 0 for turn in self.turns]


@dataclasses.dataclass(frozen=True)
class Turn:
    """One assistant message and the environment's answer to it (host side)."""

    text: str
    observation: str  # what the policy read before it replied
    tokens: list[int]  # sampled ids
    logprobs: list[float]  # natural log, at the sampling temperature
    reward: float
    parsed_action: str | None
    state_key: str
    info: dict[str, Any] = dataclasses.field(default_factory=dict)  # task extras: cell, action values


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode on the host, as written to `trajectories/*.jsonl`."""

    instance_id: str
    group_id: int
    budget: int
    t_max: int
    success: bool
    return_: float
    stop_reason: StopReason
    turns: list[Turn]
    prompt_tokens: list[int]
    policy_version: int
    instance: dict[str, Any] = dataclasses.field(default_factory=dict)  # what was played, e.g. the map
