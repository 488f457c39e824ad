from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.models.kv_cache import KVCache, gather_rows, init_cache, write_slots, write_tokens
from jaxrl_agent.models.qwen3 import extend, init_params, output_logits, param_axes, unstack_layers
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings

CONFIG = get_preset("lake-tiny")


def test_slots_by_hand():
    # Rows: two tokens fit, nothing to write, one of three fits (the cache has 8 slots), already full.
    slots_BC = write_slots(jnp.array([2, 4, 7, 8]), jnp.array([2, 0, 3, 3]), chunk=3, slots=8)
    assert slots_BC.tolist() == [[2, 3, 10], [8, 9, 10], [7, 9, 10], [8, 9, 10]]


def test_slots_of_a_row_are_unique_whatever_the_counts():
    random = np.random.default_rng(0)
    lengths_B, counts_B = random.integers(0, 17, 500), random.integers(0, 7, 500)
    slots_BC = np.asarray(write_slots(jnp.asarray(lengths_B), jnp.asarray(counts_B), chunk=6, slots=16))
    assert all(len(set(row)) == 6 for row in slots_BC.tolist())
    np.testing.assert_array_equal((slots_BC < 16).sum(1), np.minimum(counts_B, 16 - lengths_B))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("slot_axis", [-1, -2])
@pytest.mark.parametrize("layer", [None, 1])
def test_writing_touches_the_named_slots_alone(slot_axis, layer, jit):
    new_BCKE = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4) + 1
    slots_BC = np.array([[5, 0, 7], [3, 6, 8]], np.int32)  # 6 slots: 6, 7 and 8 must be dropped
    shape = (2, 2, 4, 6) if slot_axis == -1 else (2, 2, 6, 4)
    expected = np.full(shape, -1.0, np.float32)
    for row, token in [(0, 0), (0, 1), (1, 0)]:
        np.moveaxis(expected[row], slot_axis, 0)[slots_BC[row, token]] = new_BCKE[row, token]

    array = np.full(shape, -1.0, np.float32)
    write = functools.partial(write_tokens, slot_axis=slot_axis)
    write = jax.jit(write) if jit else write
    if layer is None:
        found = write(jnp.asarray(array), new_BCKE, slots_BC)
    else:
        stacked = write(jnp.asarray(np.stack([array] * 3)), new_BCKE, slots_BC, layer=jnp.int32(layer))
        found = stacked[layer]
        np.testing.assert_array_equal(stacked[0], array)
        np.testing.assert_array_equal(stacked[2], array)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stacked", [True, False])
def test_cache_starts_empty_in_either_layout(stacked):
    cache = init_cache(CONFIG, 3, 10, stacked=stacked)
    assert (cache.stacked, cache.slots) == (stacked, 10)
    assert cache.lengths_B.tolist() == [0, 0, 0]
    leading = (2,) if stacked else ()
    assert {array.shape for array in jax.tree.leaves(cache.key)} == {(*leading, 3, 2, 16, 10)}
    assert {array.shape for array in jax.tree.leaves(cache.value)} == {(*leading, 3, 2, 10, 16)}


@pytest.mark.parametrize("stacked", [True, False])
def test_gathered_rows_go_on_like_the_rows_that_they_came_from(stacked):
    params = init_params(CONFIG, jax.random.key(0))
    params = params if stacked else unstack_layers(params)
    tokens_BC = jax.random.randint(jax.random.key(1), (3, 5), 0, CONFIG.vocab_size)
    step = jax.jit(extend, static_argnums=0)
    _, cache = step(CONFIG, params, init_cache(CONFIG, 3, 8, stacked=stacked), tokens_BC, jnp.array([5, 3, 1]))
    rows_R = jnp.array([2, 0, 0, 1])
    forked = jax.jit(gather_rows)(cache, rows_R)
    assert forked.lengths_B.tolist() == [1, 5, 5, 3]
    assert forked.stacked == stacked
    expected_BCD, _ = step(CONFIG, params, cache, tokens_BC[:, :1], jnp.ones(3, jnp.int32))
    found_RCD, _ = step(CONFIG, params, forked, tokens_BC[rows_R, :1], jnp.ones(4, jnp.int32))
    np.testing.assert_allclose(found_RCD, expected_BCD[rows_R], atol=1e-5)


def decode(config, params, cache: KVCache, steps: int):
    """Greedy decoding as a sampler does it: the cache in the carry of a while_loop."""
    rows = cache.lengths_B.shape[0]

    def step(state):
        count, tokens_B, cache = state
        hidden_BCD, cache = extend(config, params, cache, tokens_B[:, None], jnp.ones(rows, jnp.int32))
        logits_BV = output_logits(config, params, hidden_BCD[:, 0])
        return count + 1, jnp.argmax(logits_BV, axis=-1).astype(jnp.int32), cache

    state = (jnp.int32(0), jnp.full(rows, 3, jnp.int32), cache)
    return jax.lax.while_loop(lambda state: state[0] < steps, step, state)[1:]


@pytest.mark.parametrize("stacked", [True, False])
def test_decoding_copies_no_cache(stacked):
    config = dataclasses.replace(CONFIG, num_hidden_layers=6)
    params = init_params(config, jax.random.key(0))
    params = params if stacked else unstack_layers(params)
    cache = init_cache(config, 4, 4096, stacked=stacked)
    compiled = jax.jit(decode, static_argnums=(0, 3), donate_argnums=2).lower(config, params, cache, 64).compile()
    cache_bytes = sum(array.nbytes for array in jax.tree.leaves((cache.key, cache.value)))
    # Reading one layer of a stacked cache may need a slice of it, a sixth; keys or values alone would be a half.
    assert compiled.memory_analysis().temp_size_in_bytes < cache_bytes / 4


@pytest.mark.parametrize("stacked", [True, False])
def test_batch_stays_split_over_devices_while_decoding(stacked):
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    params = init_params(CONFIG, jax.random.key(0))
    mesh = make_mesh("data:8", jax.devices()[:8])
    spread = jax.device_put(params, tree_shardings(param_axes(CONFIG), params, mesh))
    spread = spread if stacked else unstack_layers(spread)
    with jax.set_mesh(mesh):
        cache = jax.jit(lambda: init_cache(CONFIG, 16, 24, stacked=stacked))()
        compiled = jax.jit(decode, static_argnums=(0, 3)).lower(CONFIG, spread, cache, 8).compile()
        _, after = compiled(spread, cache)
    collectives = re.findall(r"\b(all-gather|all-reduce|all-to-all|collective-permute)\(", compiled.as_text())
    assert collectives == []
    rows = jax.tree.leaves(after.key)[0].addressable_shards[0].data.shape[1 if stacked else 0]
    assert rows == 2
