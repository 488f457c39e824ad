"""Sample replies for many token rows at once; their key/value cache stays on the device between calls.

A `Batch` pairs rows (host: identity and ids) with a cache (device). `Sampler.generate` samples one reply a prompt;
dialogues go `start`, `decode`, `append`, `decode`, ... Ids are never decoded and encoded again, and nothing is read
twice. Rows, slots and chunks come in few sizes, so that after the first calls nothing compiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_agent.errors import ArgumentError, NonFiniteError
from jaxrl_agent.models.kv_cache import KVCache
from jaxrl_agent.models.qwen3 import Params, Qwen3Config
from jaxrl_agent.rollout.buckets import bucket, padded_pieces, padded_rows, power_of_two
from jaxrl_agent.rollout.decoding import WINDOW, decode_params, decode_window, empty_cache, extend_cache, gather_cache
from jaxrl_agent.rollout.sampling import check_sampling, row_keys

_PREFILL_TOKENS = 8192  # largest chunk that is read at once, over all rows, padding included
_SMALLEST_CHUNK = 16
_SMALLEST_CACHE = 64


class Reply(NamedTuple):
    """What a row gained."""

    tokens: list[int]
    logprobs: list[float]  # nats, of the temperature-scaled, unfiltered distribution; of temperature 1 when greedy
    stop_reason: str  # "stop": its last token is a stop id; "length": max_new_tokens; "context": no position left


@dataclasses.dataclass
class Row:
    """One row on the host: its identity, all its tokens, and the reply under way."""

    row_id: int  # what its random numbers hang on
    tokens: list[int]
    logprobs: list[float] = dataclasses.field(default_factory=list)  # of the reply, nats
    allowed: int = 0  # tokens that the reply may still gain
    limit: str = "length"  # what it means when they are used up
    stop_reason: str = "length"  # empty while the reply goes on

    @property
    def live(self) -> bool:
        """Whether the reply goes on."""
        return not self.stop_reason

    @property
    def reply(self) -> Reply:
        """What was sampled since the reply was opened."""
        return Reply(self.tokens[len(self.tokens) - len(self.logprobs) :], self.logprobs, self.stop_reason)

    def open_reply(self, max_new_tokens: int, room: int) -> None:
        """Start a reply of at most `max_new_tokens`, for which the context has `room`."""
        self.logprobs, self.allowed = [], min(max_new_tokens, room)
        self.limit = "length" if max_new_tokens <= room else "context"
        self.stop_reason = "" if self.allowed else self.limit

    def take(self, tokens: list[int], logprobs: list[float], stop_ids: frozenset[int]) -> None:
        """Add what a window sampled, one token or more."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.allowed -= len(tokens)
        if tokens[-1] in stop_ids:
            self.stop_reason = "stop"
        elif not self.allowed:
            self.stop_reason = self.limit


@dataclasses.dataclass
class Batch:
    """Rows and their cache. Whatever moves a batch on replaces its cache and donates the old one."""

    rows: list[Row]
    cache: KVCache  # the first `len(rows)` rows are in use; each lacks its last token

    @property
    def bucket(self) -> int:
        """Rows of the cache."""
        return len(self.cache.lengths_B)


def generate(
    config: Qwen3Config,
    params: Params,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_ids: Iterable[int] = (),
    seed: int = 0,
    row_ids: Sequence[int] | None = None,
) -> list[Reply]:
    """Sample one reply a prompt.

    Args:
        config: the model's configuration.
        params: parameters, layers stacked.
        prompts: token ids, one list a row.
        max_new_tokens: limit of each reply.
        temperature: 0 for greedy decoding.
        top_k: entries kept; 0 keeps all.
        top_p: share of mass kept inside those, in (0, 1].
        stop_ids: tokens that end a reply; the reply includes the one it ended with.
        seed: 0 .. 2**32 - 1.
        row_ids: what each row's randomness hangs on, 0 .. 2**32 - 1; its index by default. With the seed and a
            token's position it decides the random number, whatever else is in the batch; so equal ids draw
            equal numbers, and equal prompts under equal ids give equal replies.

    Returns:
        (tokens, logprobs, stop_reason) of each prompt, see `Reply`. A prompt that fills the context gets an empty
        reply.

    Raises:
        ArgumentError: an empty prompt or one longer than the context, an id outside the vocabulary, a setting
            out of range.
        NonFiniteError: a log-probability that is not finite.
    """
    sampler = Sampler(config, params, temperature=temperature, top_k=top_k, top_p=top_p, stop_ids=stop_ids, seed=seed)
    return sampler.generate(prompts, max_new_tokens=max_new_tokens, row_ids=row_ids)


class Sampler:
    """Grow token rows under one policy.

    Args:
        config: the model's configuration.
        params: parameters, layers stacked; `load` replaces them.
        temperature: 0 for greedy decoding.
        top_k: entries kept; 0 keeps all.
        top_p: share of mass kept inside those, in (0, 1].
        stop_ids: tokens that end a reply and belong to it.
        seed: 0 .. 2**32 - 1.
        max_rows: rows that `generate` decodes at one time.

    Raises:
        ArgumentError: a setting out of range.
    """

    def __init__(
        self,
        config: Qwen3Config,
        params: Params,
        *,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        stop_ids: Iterable[int] = (),
        seed: int = 0,
        max_rows: int = 256,
    ):
        check_sampling(temperature, top_k, top_p)
        _check_uint32("seed", [seed])
        if max_rows < 1:
            raise ArgumentError("max_rows must be at least 1", value=max_rows)
        self._config = config
        self._sampling = {"temperature": float(temperature), "top_k": int(top_k), "top_p": float(top_p)}
        self._stop_ids = frozenset(_checked_ids(config, list(stop_ids)))
        filler = [-1] * (power_of_two(max(len(self._stop_ids), 4)) - len(self._stop_ids))
        self._stop_ids_K = np.array([*sorted(self._stop_ids), *filler], np.int32)
        self._key = jax.random.key(seed)
        self._max_rows = max_rows
        self.load(params)

    def load(self, params: Params) -> None:
        """Take the weights of the next policy; a batch under way keeps what it read under the one before."""
        self._params = decode_params(self._config, params)

    def start(self, prompts: Sequence[Sequence[int]], row_ids: Sequence[int] | None = None) -> Batch:
        """Read prompts; equal ones are read once and forked.

        Args:
            prompts: token ids, one list a row, at least one row.
            row_ids: see `generate`.

        Raises:
            ArgumentError: no prompt, an empty one or one longer than the context, an id outside the vocabulary,
                row ids out of range or of another number than the prompts.
        """
        if not prompts:
            raise ArgumentError("a batch must have at least one prompt", value=list(prompts))
        return self._read(self._make_rows(prompts, row_ids))

    def decode(self, batch: Batch, max_new_tokens: int | Sequence[int]) -> list[Reply]:
        """Sample a reply for every row and add it to the row.

        Args:
            batch: the rows; moved on.
            max_new_tokens: limit of each reply, one for all or one a row; 0 leaves a row as it is.

        Raises:
            ArgumentError: a limit below 0, or not one a row.
            NonFiniteError: a log-probability that is not finite.
        """
        limits = [max_new_tokens] * len(batch.rows) if np.ndim(max_new_tokens) == 0 else list(max_new_tokens)
        if len(limits) != len(batch.rows) or min(limits) < 0:
            raise ArgumentError(f"max_new_tokens must be 0 or more for each of {len(batch.rows)} rows", value=limits)
        for row, limit in zip(batch.rows, limits, strict=True):
            row.open_reply(int(limit), self._room(row))
        while any(row.live for row in batch.rows):
            self._decode_window(batch)
        return [row.reply for row in batch.rows]

    def append(self, batch: Batch, pieces: Sequence[Sequence[int]]) -> None:
        """Add given tokens, an observation for example, to every row; an empty piece leaves a row as it is.

        Raises:
            ArgumentError: not one piece a row, an id outside the vocabulary, or a row that outgrows the context.
        """
        if len(pieces) != len(batch.rows):
            raise ArgumentError(f"append takes one piece for each of {len(batch.rows)} rows", value=len(pieces))
        pieces = [_checked_ids(self._config, piece) for piece in pieces]
        for row, piece in zip(batch.rows, pieces, strict=True):
            self._check_context(len(row.tokens) + len(piece))
        unread = [[row.tokens[-1], *piece][:-1] if piece else [] for row, piece in zip(batch.rows, pieces, strict=True)]
        self._grow(batch, max(len(row.tokens) + len(piece) for row, piece in zip(batch.rows, pieces, strict=True)) - 1)
        batch.cache = self._feed(batch.cache, unread)
        for row, piece in zip(batch.rows, pieces, strict=True):
            row.tokens += piece

    def select(self, batch: Batch, indices: Sequence[int]) -> Batch:
        """Keep the rows at `indices`, each at most once, in the smallest bucket that holds them."""
        return self._gather((batch, indices))

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, row_ids: Sequence[int] | None = None
    ) -> list[Reply]:
        """Sample one reply a prompt, for any number of prompts.

        At most `max_rows` rows are decoded at one time: between windows waiting prompts take the places of finished
        rows, and in the end the batch shrinks with them.

        Raises:
            ArgumentError: as `start`, or max_new_tokens below 1.
            NonFiniteError: a log-probability that is not finite.
        """
        if max_new_tokens < 1:
            raise ArgumentError("max_new_tokens must be at least 1", value=max_new_tokens)
        rows = self._make_rows(prompts, row_ids)
        for row in rows:
            row.open_reply(max_new_tokens, self._room(row))
        waiting = [row for row in reversed(rows) if row.live]
        batch = None
        while batch := self._turn_over(batch, waiting):
            self._decode_window(batch)
        return [row.reply for row in rows]

    def _make_rows(self, prompts: Sequence[Sequence[int]], row_ids: Sequence[int] | None) -> list[Row]:
        row_ids = range(len(prompts)) if row_ids is None else row_ids
        if len(row_ids) != len(prompts):
            raise ArgumentError(f"row_ids must name each of {len(prompts)} prompts", value=len(row_ids))
        _check_uint32("a row id", row_ids)
        rows = [
            Row(int(row_id), _checked_ids(self._config, prompt))
            for row_id, prompt in zip(row_ids, prompts, strict=True)
        ]
        for row in rows:
            if not row.tokens:
                raise ArgumentError("a prompt must hold at least one token", remedy="Start it with a token of its own.")
            self._check_context(len(row.tokens))
        return rows

    def _room(self, row: Row) -> int:
        return self._config.max_position_embeddings - len(row.tokens)

    def _check_context(self, length: int) -> None:
        limit = self._config.max_position_embeddings
        if length > limit:
            raise ArgumentError(
                f"a row must fit into the model's {limit} positions", value=length, remedy="Shorten the prompt."
            )

    def _slots(self, needed: int) -> int:
        return min(bucket(needed, _SMALLEST_CACHE), self._config.max_position_embeddings)

    def _read(self, rows: list[Row]) -> Batch:
        """Prefill the distinct prompts and fork them to their rows, with slots for the first window."""
        places: dict[tuple[int, ...], int] = {}
        place_of_row = [places.setdefault(tuple(row.tokens), len(places)) for row in rows]
        longest = max(map(len, places)) - 1
        slots = self._slots(longest + max(min(row.allowed or WINDOW, WINDOW) for row in rows))
        is_forked = len(places) < len(rows)
        prompt_slots = self._slots(longest) if is_forked else slots
        cache = empty_cache(self._config, power_of_two(len(places)), prompt_slots)
        cache = self._feed(cache, [prompt[:-1] for prompt in places])
        if is_forked:
            cache = gather_cache((cache,), padded_rows(place_of_row), slots=slots)
        return Batch(rows, cache)

    def _feed(self, cache: KVCache, pieces: Sequence[Sequence[int]]) -> KVCache:
        return feed(self._config, self._params, cache, pieces)

    def _decode_window(self, batch: Batch) -> None:
        """Let every live row gain up to `WINDOW` tokens."""
        live = [(i, row) for i, row in enumerate(batch.rows) if row.live]
        self._grow(batch, max(len(row.tokens) - 1 + min(row.allowed, WINDOW) for _, row in live))
        row_ids_B = np.zeros(batch.bucket, np.uint32)
        last_B, allowed_B = np.zeros((2, batch.bucket), np.int32)
        for i, row in live:
            row_ids_B[i], last_B[i], allowed_B[i] = row.row_id, row.tokens[-1], row.allowed
        batch.cache, *gained = decode_window(
            self._config,
            self._params,
            batch.cache,
            keys_B=_row_keys(self._key, row_ids_B),
            last_B=last_B,
            allowed_B=allowed_B,
            stop_ids_K=self._stop_ids_K,
            **self._sampling,
        )
        tokens_WB, logprobs_WB, counts_B = jax.device_get(gained)
        for i, row in live:
            logprobs = logprobs_WB[: counts_B[i], i]
            if not np.isfinite(logprobs).all():
                raise NonFiniteError(
                    "log-probabilities of sampled tokens must be finite",
                    remedy="The weights hold NaN or infinity: go back to a checkpoint before that.",
                )
            row.take(tokens_WB[: counts_B[i], i].tolist(), logprobs.tolist(), self._stop_ids)

    def _turn_over(self, batch: Batch | None, waiting: list[Row]) -> Batch | None:
        """Replace finished rows by waiting ones, or drop them; None when nothing is left to do."""
        live = [i for i, row in enumerate(batch.rows) if row.live] if batch else []
        free = self._max_rows - len(live)
        # Not for every free place: reading prompts holds the others up.
        if waiting and 4 * free >= self._max_rows:
            fresh = self._read([waiting.pop() for _ in range(min(free, len(waiting)))])
            return self._gather((batch, live), (fresh, range(len(fresh.rows)))) if live else fresh
        if not live:
            return None
        return self.select(batch, live) if power_of_two(len(live)) < batch.bucket else batch

    def _grow(self, batch: Batch, needed: int) -> None:
        if needed > batch.cache.slots:
            everything_R = np.arange(batch.bucket, dtype=np.int32)
            batch.cache = gather_cache((batch.cache,), everything_R, slots=self._slots(needed))

    def _gather(self, *parts: tuple[Batch, Sequence[int]]) -> Batch:
        rows = [batch.rows[i] for batch, indices in parts for i in indices]
        firsts = np.cumsum([0, *(batch.bucket for batch, _ in parts)])
        places = [int(first) + i for first, (_, indices) in zip(firsts, parts, strict=False) for i in indices]
        slots = max(batch.cache.slots for batch, _ in parts)
        return Batch(rows, gather_cache(tuple(batch.cache for batch, _ in parts), padded_rows(places), slots=slots))


_row_keys = jax.jit(row_keys)


def feed(config: Qwen3Config, params: Params, cache: KVCache, pieces: Sequence[Sequence[int]]) -> KVCache:
    """Append pieces of different lengths to the first rows of a cache, chunk by chunk; the cache is donated.

    Args:
        config: the model's configuration.
        params: weights as `decode_params` lays them out.
        cache: as many rows as pieces, or more.
        pieces: ids for each row; an empty one leaves the row as it is.
    """
    rows, longest = len(cache.lengths_B), max(map(len, pieces))
    chunk = min(bucket(longest, _SMALLEST_CHUNK), max(_SMALLEST_CHUNK, power_of_two(_PREFILL_TOKENS // rows)))
    for start in range(0, longest, chunk):
        tokens_BC, counts_B = padded_pieces([piece[start : start + chunk] for piece in pieces], rows, chunk)
        cache = extend_cache(config, params, cache, tokens_BC, counts_B)
    return cache


def _checked_ids(config: Qwen3Config, ids: Sequence[int]) -> list[int]:
    array = np.asarray(ids)
    if not array.size:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= config.vocab_size:
        raise ArgumentError(
            f"token ids must be whole numbers in 0 .. {config.vocab_size - 1}, in one list a row",
            value=(array.min().item(), array.max().item()) if array.dtype.kind in "iuf" else array.dtype.name,
            remedy="Encode the text with the tokenizer that belongs to this model.",
        )
    return array.tolist()


def _check_uint32(name: str, values: Sequence[int]) -> None:
    for value in values:
        if int(value) != value or not 0 <= value < 2**32:
            raise ArgumentError(f"{name} must be a whole number in 0 .. 2**32 - 1", value=value)
