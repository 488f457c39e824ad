"""The compiled half of sampling: functions on a cache, each for static buckets.

    extend_cache    append given tokens: prompts, observations
    decode_window   sample up to `WINDOW` tokens a row on the device, finished rows frozen
    gather_cache    fork one prefilled prompt to its group, drop finished rows, add fresh ones, grow

and two more for rows that come and go while others decode (`rollout.lanes`): `take_rows` and `place_rows`.

One invariant keeps them simple: the cache of a row holds all its tokens but the last. A prompt is read up to its last
token, every step of `decode_window` reads one pending token and samples the next, and the final token of a reply
enters the cache only if the row goes on.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_agent.models.kv_cache import KVCache, gather_rows, init_cache, put_rows
from jaxrl_agent.models.qwen3 import Params, Qwen3Config, extend, output_logits, param_axes, unstack_layers
from jaxrl_agent.parallel.rules import constrain
from jaxrl_agent.rollout.sampling import sample_tokens, uniforms

WINDOW = 128  # tokens a row may gain before the host looks; in between rows are dropped and the cache grows
UNROLLED_LAYERS = 8  # up to here unrolled layers decode faster than a scan (measured on CPU)


@functools.partial(jax.jit, static_argnums=0)
def decode_params(config: Qwen3Config, params: Params) -> Params:
    """Lay weights out for decoding: in compute dtype, whole over `fsdp`, a few layers apart.

    Once a policy, not once a call. Left in fsdp's pieces they would travel between devices for every token.
    """
    axes = param_axes(config)
    params = jax.tree.map(
        lambda leaf, names: constrain(leaf.astype(config.compute_dtype), names, whole=("fsdp",)), params, axes
    )
    return unstack_layers(params) if config.num_hidden_layers <= UNROLLED_LAYERS else params


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty_cache(config: Qwen3Config, rows: int, slots: int) -> KVCache:
    """Make an empty cache in the layout of `decode_params`."""
    return init_cache(config, rows, slots, stacked=config.num_hidden_layers > UNROLLED_LAYERS)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def extend_cache(
    config: Qwen3Config, params: Params, cache: KVCache, tokens_BC: jax.Array, counts_B: jax.Array
) -> KVCache:
    """Append the first `counts_B[b]` of `tokens_BC[b]` to every row, see `models.qwen3.extend`; donates the cache."""
    return extend(config, params, cache, tokens_BC, counts_B)[1]


@struct.dataclass
class _Loop:
    """What one step of `decode_window` hands to the next; W = WINDOW."""

    step: jax.Array  # int32
    cache: KVCache
    last_B: jax.Array  # int32, the token that the cache lacks
    live_B: jax.Array  # bool
    counts_B: jax.Array  # int32, tokens gained
    tokens_WB: jax.Array  # int32
    logprobs_WB: jax.Array  # float32, nats


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("temperature", "top_k", "top_p"), donate_argnames="cache"
)
def decode_window(
    config: Qwen3Config,
    params: Params,
    cache: KVCache,
    *,
    keys_B: jax.Array,
    last_B: jax.Array,
    allowed_B: jax.Array,
    stop_ids_K: jax.Array,
    temperature: float,
    top_k: int,
    top_p: float,
    enough: jax.Array | int = 0,
    steps: jax.Array | int = WINDOW,
) -> tuple[KVCache, jax.Array, jax.Array, jax.Array]:
    """Sample until every row drew a stop id or used up its allowance, but no more than `WINDOW` tokens.

    Args:
        config: the model's configuration.
        params: weights as `decode_params` lays them out.
        cache: all tokens of each row but the last, with slots for what is to come; donated.
        keys_B: typed key of each row, not consumed: the token's position is folded in.
        last_B: int32, each row's last token.
        allowed_B: int32, tokens that each row may gain; 0 freezes the row.
        stop_ids_K: int32, ids that end a row; -1 is filler.
        temperature: static, see `sample_tokens`.
        top_k: static.
        top_p: static.
        enough: rows that may still be unfinished when the window ends early, so that the host can tend to the others.
        steps: most tokens of this window, at most `WINDOW`.

    Returns:
        The cache, again without each row's last token; int32 tokens and float32 log-probabilities [WINDOW, B]; and
        int32 [B], how many of them each row gained.
    """

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.step < jnp.minimum(steps, WINDOW)) & (loop.live_B.sum() > enough)

    def decode_step(loop: _Loop) -> _Loop:
        hidden_B1D, cache = extend(config, params, loop.cache, loop.last_B[:, None], loop.live_B.astype(jnp.int32))
        token_B, logprob_B = sample_tokens(
            constrain(output_logits(config, params, hidden_B1D[:, 0]), ("batch", "vocab")),
            uniforms(keys_B, cache.lengths_B),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        counts_B = loop.counts_B + loop.live_B
        stopped_B = (token_B[:, None] == stop_ids_K).any(axis=1)
        return _Loop(
            step=loop.step + 1,
            cache=cache,
            last_B=jnp.where(loop.live_B, token_B, loop.last_B),
            live_B=loop.live_B & ~stopped_B & (counts_B < allowed_B),
            counts_B=counts_B,
            tokens_WB=loop.tokens_WB.at[loop.step].set(token_B),
            logprobs_WB=loop.logprobs_WB.at[loop.step].set(logprob_B),
        )

    rows = last_B.shape[0]
    start = _Loop(
        step=jnp.int32(0),
        cache=cache,
        last_B=last_B,
        live_B=allowed_B > 0,
        counts_B=jnp.zeros(rows, jnp.int32),
        tokens_WB=jnp.zeros((WINDOW, rows), jnp.int32),
        logprobs_WB=jnp.zeros((WINDOW, rows), jnp.float32),
    )
    end = jax.lax.while_loop(unfinished, decode_step, start)
    # Replicated, so that every process of a larger job can read them.
    gained = (constrain(x, (None,) * x.ndim) for x in (end.tokens_WB, end.logprobs_WB, end.counts_B))
    return end.cache, *gained


@functools.partial(jax.jit, static_argnames="slots")
def gather_cache(caches: tuple[KVCache, ...], rows_R: jax.Array, *, slots: int) -> KVCache:
    """Build the cache of `slots` slots whose row r is row `rows_R[r]` of all `caches` laid end to end.

    Args:
        caches: one or more caches in one layout; what the rows hold must fit.
        rows_R: int32, rows to take, each any number of times.
        slots: static, tokens that a row of the result can hold.
    """
    parts = [_with_slots(cache, slots) for cache in caches]
    joined = jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=max(arrays[0].ndim - 4, 0)), *parts)
    return gather_rows(joined, rows_R)


@functools.partial(jax.jit, static_argnames="slots")
def take_rows(caches: tuple[KVCache, ...], source_R: jax.Array, rows_R: jax.Array, *, slots: int) -> KVCache:
    """Copy a few rows out of several caches, which stay as they are.

    Args:
        caches: in one layout, each with any number of rows and slots.
        source_R: int32, which cache each row comes from.
        rows_R: int32, its place there.
        slots: static, tokens that a row of the result can hold.
    """
    parts = [_with_slots(gather_rows(cache, rows_R), slots) for cache in caches]

    def choose(*arrays: jax.Array) -> jax.Array:
        rank = arrays[0].ndim
        shape = [1] * rank
        shape[max(rank - 4, 0)] = len(rows_R)
        return jax.lax.select_n(jnp.broadcast_to(source_R.reshape(shape), arrays[0].shape), *arrays)

    return jax.tree.map(choose, *parts)


def place_rows(
    lanes: KVCache, shelf: KVCache, entering: KVCache, lanes_R: jax.Array, shelf_R: jax.Array
) -> tuple[KVCache, KVCache]:
    """Put rows into lanes, and what was there onto the shelf; donates lanes and shelf.

    Args:
        lanes: rows that decode.
        shelf: rows that wait.
        entering: R rows, with as many slots as the others.
        lanes_R: int32, lane of each entering row; one past the end puts it nowhere.
        shelf_R: int32, place on the shelf for what was in that lane; one past the end throws it away.
    """
    # Two programs: in one, the lanes would be read and overwritten, for which XLA copies them whole.
    shelf = _leave(lanes, shelf, lanes_R, shelf_R)
    return _put(lanes, lanes_R, entering), shelf


@functools.partial(jax.jit, donate_argnums=1)
def _leave(lanes: KVCache, shelf: KVCache, lanes_R: jax.Array, shelf_R: jax.Array) -> KVCache:
    return put_rows(shelf, shelf_R, gather_rows(lanes, lanes_R))


_put = jax.jit(put_rows, donate_argnums=0)


def _with_slots(cache: KVCache, slots: int) -> KVCache:
    def fit(array: jax.Array, slot_axis: int) -> jax.Array:
        kept = jax.lax.slice_in_dim(array, 0, min(slots, array.shape[slot_axis]), axis=slot_axis)
        padding = [(0, 0)] * array.ndim
        padding[slot_axis] = (0, slots - kept.shape[slot_axis])
        return jnp.pad(kept, padding)

    return cache.replace(
        key=jax.tree.map(lambda array: fit(array, array.ndim - 1), cache.key),
        value=jax.tree.map(lambda array: fit(array, array.ndim - 2), cache.value),
    )
