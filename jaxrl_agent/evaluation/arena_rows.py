"""What arenas share, wherever their task is played: what a row's randomness hangs on, batches of one size, scores.

Random numbers hang on what a row is about, never on its place: on (instance, sample) of whole episodes, on the name of
the state, its turns left and the number of the copy elsewhere. So a state gets the same replies in any study.
Letters: `S` states or starts, `N` copies of each, `B` rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.arena import Positions, Scores
from jaxrl_agent.evaluation.score import score_turns
from jaxrl_agent.parallel.distributed import to_host
from jaxrl_agent.types import Rollout

CUT = "cut off"  # a reply without an end: it ends the episode, so it is worth nothing
PLAY, ACT, FINISH, VALUE = range(4)  # streams of random numbers
_SAMPLES = 2**16  # whole episodes of one instance that have identities of their own


def stream_key(seed: int, stream: int) -> jax.Array:
    """Key of one of the streams."""
    return jax.random.fold_in(jax.random.key(seed), stream)


def episode_ids(instances_S: np.ndarray, samples: int) -> np.ndarray:
    """Identity of every whole episode, uint32 [S, N]."""
    return (instances_S[:, None] * _SAMPLES + np.arange(samples)).astype(np.uint32)


def row_ids(positions: Positions, copies: int) -> np.ndarray:
    """Identity of every copy of a state, uint32 [S, N]: a checksum of the state's name, its turns left and the copy."""
    names = [f"{key} {left}" for key, left in zip(positions.keys, positions.turns_left_S.tolist(), strict=True)]
    ids = [[checksum(f"{name} {copy}") for copy in range(copies)] for name in names]
    return np.array(ids, np.uint32).reshape(len(positions), copies)


def checksum(name: str) -> int:
    """A number from 0 to 2**32 - 1 that hangs on the text alone (CRC-32)."""
    return zlib.crc32(name.encode())


def joined(parts: Sequence[Any]) -> Any:
    """Lay trees of numpy arrays end to end along their leading axes."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def in_batches(count: int, call: Callable[[np.ndarray], Any], *, rows: int, copies: int = 1) -> Any:
    """Call on indices in batches of one size, the last filled up with earlier ones, and join what is asked for.

    Args:
        count: indices, from 0; at least 1.
        call: gives a tree of arrays with `copies` rows for each index it is called on.
        rows: most rows of a batch.
        copies: rows for each index.
    """
    size = min(count, max(1, rows // copies))
    parts = []
    for first in range(0, count, size):
        whole = to_host(call(np.arange(first, first + size) % count))
        wanted = min(size, count - first) * copies
        parts.append(jax.tree.map(lambda leaf, wanted=wanted: leaf[:wanted], whole))
    return joined(parts)


def last_turns(rollout: Rollout) -> Rollout:
    """Leave only what was sampled in the last turn of each trajectory in the loss mask."""
    batch = rollout.batch
    last_BL = batch.turn_BL == rollout.n_turns_B[:, None] - 1
    return rollout.replace(batch=batch.replace(loss_mask_BL=batch.loss_mask_BL & last_BL))


def score_rollout(
    policy: Policy,
    rollout: Rollout,
    *,
    last_only: bool = False,
    n_turns: int,
    width: int,
    rows: int,
    temperature: float,
    think_ids: tuple[int, int] | None,
) -> Scores:
    """Score what was sampled under any policy, in batches of one size; of every turn, or of the last one alone.

    Args:
        policy: who scores.
        rollout: numpy, at least one trajectory.
        last_only: whether only the last turn is scored.
        n_turns: turns that the result has room for.
        width: most tokens of a trajectory that are scored.
        rows: trajectories in a batch.
        temperature: that the tokens were sampled at.
        think_ids: opening and closing token of reasoning, if any.
    """
    batch = (last_turns(rollout) if last_only else rollout).batch

    def score(index_S: np.ndarray) -> tuple[np.ndarray, ...]:
        found = score_turns(
            policy,
            jax.tree.map(lambda leaf: leaf[index_S], batch),
            n_turns=n_turns,
            width=width,
            temperature=temperature,
            think_ids=think_ids,
        )
        return found.turn_BT, found.action_BT, found.tokens_BT

    return Scores(*in_batches(len(batch.lengths_B), score, rows=rows))
