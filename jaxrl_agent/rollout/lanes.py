"""The device half of rollouts with host environments: rows that decode, rows that wait, and moves between the two.

    lanes   rows that are decoded, all in one compiled window
    shelf   rows whose environments are at work; their cache waits for them
    stock   freshly read prompts, forked to the members of their groups

Moves touch only the rows that move. Numbers of lanes halve towards the end of a rollout, numbers of slots double as
rows grow, and moves have one width, so that few programs are compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_agent.errors import NonFiniteError
from jaxrl_agent.models.kv_cache import KVCache
from jaxrl_agent.models.qwen3 import Params, Qwen3Config
from jaxrl_agent.rollout.buckets import power_of_two
from jaxrl_agent.rollout.decoding import (
    WINDOW,
    decode_params,
    decode_window,
    empty_cache,
    gather_cache,
    place_rows,
    take_rows,
)
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.sampler import feed

_SMALLEST_SLOTS = 64
LANE, SHELF, STOCK = range(3)


class Move(NamedTuple):
    """One row that gets a lane."""

    source: int  # LANE, SHELF or STOCK
    place: int  # its place there
    lane: int  # where it goes
    shelf: int | None  # where what was in that lane goes; None if nobody needs it any more
    unread: Sequence[int]  # ids to append to its cache on the way


class Gained(NamedTuple):
    """What one window sampled."""

    tokens: list[list[int]]  # of each lane
    logprobs: list[list[float]]  # nats, at the sampling temperature
    steps: int  # decode steps that all lanes were held for


@dataclasses.dataclass
class LaneInput:
    """What a window needs to know of each lane; `allowed` is 0 for lanes that must not move."""

    keys_B2: np.ndarray  # uint32, key data
    last_B: np.ndarray  # int32, the token that the cache lacks
    allowed_B: np.ndarray  # int32, tokens that the reply may still gain

    @classmethod
    def empty(cls, lanes: int) -> LaneInput:
        """No lane moves."""
        return cls(np.zeros((lanes, 2), np.uint32), np.zeros(lanes, np.int32), np.zeros(lanes, np.int32))


class Lanes:
    """Caches of the rows of one rollout, under one policy.

    Args:
        config: the model.
        params: its parameters, layers stacked.
        sampling: how tokens are drawn.
        stop_ids: ids that end a reply.
        lanes: rows decoded at one time.
        shelf: rows that can wait beside them.
    """

    def __init__(
        self,
        config: Qwen3Config,
        params: Params,
        sampling: SamplingSettings,
        stop_ids: Sequence[int],
        *,
        lanes: int,
        shelf: int,
    ):
        self._config, self._sampling = config, dataclasses.asdict(sampling)
        self._params = decode_params(config, params)
        filler = [-1] * (power_of_two(max(len(stop_ids), 4)) - len(stop_ids))
        self._stop_ids_K = np.array([*sorted(stop_ids), *filler], np.int32)
        self.move_width = max(1, power_of_two(lanes) // 4)
        self.count, self.shelf_count = lanes, shelf
        slots = self._size(1)
        self._lanes = empty_cache(config, lanes, slots)
        self._shelf = empty_cache(config, max(shelf, 1), slots)
        self._stock = empty_cache(config, self.move_width, slots)

    @property
    def slots(self) -> int:
        """Tokens that a row can hold at present."""
        return self._lanes.slots

    def read_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Replace the stock by up to `move_width` prompts, each without its last id."""
        self.reserve(max(map(len, prompts)))
        self._stock = self._feed(
            empty_cache(self._config, self.move_width, self.slots), [prompt[:-1] for prompt in prompts]
        )

    def enter(self, moves: Sequence[Move]) -> None:
        """Give lanes to rows, at most `move_width` of them; the caller has reserved slots for what they read."""
        if not moves:
            return
        width, filler = self.move_width, self.move_width - len(moves)

        def column(values: Sequence[int], fill: int) -> np.ndarray:
            return np.array([*values, *[fill] * filler], np.int32)

        entering = take_rows(
            (self._lanes, self._shelf, self._stock),
            column([move.source for move in moves], LANE),
            column([move.place for move in moves], 0),
            slots=self.slots,
        )
        unread = [list(move.unread) for move in moves]
        if any(unread):
            entering = self._feed(entering, unread + [[]] * (width - len(unread)))
        nowhere = max(self.shelf_count, 1)
        self._lanes, self._shelf = place_rows(
            self._lanes,
            self._shelf,
            entering,
            column([move.lane for move in moves], self.count),
            column([nowhere if move.shelf is None else move.shelf for move in moves], nowhere),
        )

    def decode(self, given: LaneInput, *, enough: int, steps: int) -> Gained:
        """Decode all lanes until no more than `enough` are unfinished, or for `steps` tokens.

        Raises:
            NonFiniteError: a log-probability that is not finite.
        """
        self._lanes, *gained = decode_window(
            self._config,
            self._params,
            self._lanes,
            keys_B=_typed(given.keys_B2),
            last_B=given.last_B,
            allowed_B=given.allowed_B,
            stop_ids_K=self._stop_ids_K,
            enough=np.int32(enough),
            steps=np.int32(min(steps, WINDOW)),
            **self._sampling,
        )
        tokens_WB, logprobs_WB, counts_B = jax.device_get(gained)
        counts = counts_B.tolist()
        logprobs = [logprobs_WB[:n, lane].tolist() for lane, n in enumerate(counts)]
        if not all(np.isfinite(row).all() for row in logprobs):
            raise NonFiniteError(
                "log-probabilities of sampled tokens must be finite",
                remedy="The weights hold NaN or infinity: go back to a checkpoint before that.",
            )
        tokens = [tokens_WB[:n, lane].tolist() for lane, n in enumerate(counts)]
        return Gained(tokens, logprobs, max(counts))

    def reserve(self, length: int) -> None:
        """Make room for rows of `length` ids, the last of which is not in the cache."""
        slots = self._size(length)
        if slots > self.slots:
            self._lanes = _resized(self._lanes, np.arange(self.count, dtype=np.int32), slots)
            self._shelf = _resized(self._shelf, np.arange(max(self.shelf_count, 1), dtype=np.int32), slots)
            self._stock = _resized(self._stock, np.arange(self.move_width, dtype=np.int32), slots)

    def shrink(self, kept: Sequence[int], count: int) -> None:
        """Keep the lanes named in `kept`, in that order, as the first of `count` lanes."""
        lanes_R = np.zeros(count, np.int32)
        lanes_R[: len(kept)] = kept
        self._lanes = _resized(self._lanes, lanes_R, self.slots)
        self.count = count

    def _feed(self, cache: KVCache, pieces: Sequence[Sequence[int]]) -> KVCache:
        return feed(self._config, self._params, cache, pieces)

    def _size(self, length: int) -> int:
        return min(power_of_two(max(length, _SMALLEST_SLOTS)), self._config.max_position_embeddings)


def _resized(cache: KVCache, rows_R: np.ndarray, slots: int) -> KVCache:
    return gather_cache((cache,), rows_R, slots=slots)


@jax.jit
def _typed(keys_B2: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(keys_B2)
