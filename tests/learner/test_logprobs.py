from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.learner.logprobs import (
    positions_from_mask,
    selected_logprobs,
    selection_width,
    token_logprobs,
)
from jaxrl_agent.models.qwen3 import Qwen3Config, forward, hidden_states, init_params
from jaxrl_agent.parallel.mesh import make_mesh

CONFIG = Qwen3Config(
    vocab_size=97,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    initializer_range=0.5,
    tie_word_embeddings=True,
)
UNTIED = dataclasses.replace(CONFIG, tie_word_embeddings=False)
ROWS, LENGTH = 4, 12
LENGTHS_B = np.array([12, 7, 1, 3], np.int32)


@functools.cache
def setup(config):
    params = init_params(config, jax.random.key(0))
    tokens_BL = np.random.default_rng(1).integers(0, config.vocab_size, (ROWS, LENGTH)).astype(np.int32)
    return params, tokens_BL


def naive_scores(config, params, tokens_BL, temperature):
    """Log-probabilities and entropies at every position by the textbook, [B, L] with position 0 set to 0."""
    logits_BLV = forward(config, params, tokens_BL, jnp.full(len(tokens_BL), tokens_BL.shape[1]))
    logp_BLV = jax.nn.log_softmax(logits_BLV / temperature)[:, :-1]
    logprobs_BL = jnp.take_along_axis(logp_BLV, tokens_BL[:, 1:, None], axis=-1)[..., 0]
    entropy_BL = -jnp.sum(jnp.exp(logp_BLV) * logp_BLV, axis=-1)
    return tuple(jnp.pad(x_BL, ((0, 0), (1, 0))) for x_BL in (logprobs_BL, entropy_BL))


def some_mask():
    mask_BL = np.random.default_rng(2).random((ROWS, LENGTH)) < 0.4
    mask_BL[2] = False
    mask_BL[:, 0] = False
    return mask_BL


@pytest.mark.parametrize(("config", "temperature"), [(CONFIG, 1.0), (CONFIG, 0.6), (UNTIED, 0.6)])
def test_every_token_gets_its_log_softmax_and_position_zero_and_padding_get_zero(config, temperature):
    params, tokens_BL = setup(config)
    expected_BL = naive_scores(config, params, tokens_BL, temperature)[0]
    logprobs_BL = token_logprobs(config, params, tokens_BL, LENGTHS_B, temperature=temperature)
    used_BL = np.arange(LENGTH) < LENGTHS_B[:, None]
    np.testing.assert_allclose(logprobs_BL, np.where(used_BL, expected_BL, 0), atol=2e-5)
    assert logprobs_BL.dtype == jnp.float32
    assert (np.asarray(logprobs_BL)[~used_BL] == 0).all()
    assert (logprobs_BL[:, 0] == 0).all()


def test_padding_may_hold_any_id_and_changes_nothing():
    params, tokens_BL = setup(CONFIG)
    padded_BL = np.where(np.arange(LENGTH) < LENGTHS_B[:, None], tokens_BL, -7)
    np.testing.assert_array_equal(
        token_logprobs(CONFIG, params, tokens_BL, LENGTHS_B), token_logprobs(CONFIG, params, padded_BL, LENGTHS_B)
    )


@pytest.mark.parametrize("chunk_tokens", [None, 1, 8, 12, 1000])
def test_gathered_chunks_score_as_the_whole_rows_do(chunk_tokens):
    params, tokens_BL = setup(CONFIG)
    mask_BL = some_mask()
    hidden_BLD = hidden_states(CONFIG, params, tokens_BL, jnp.full(ROWS, LENGTH))
    positions_BW, valid_BW = positions_from_mask(jnp.asarray(mask_BL), 9)
    scores = selected_logprobs(
        CONFIG, params, hidden_BLD, tokens_BL, positions_BW, valid_BW, temperature=0.8, chunk_tokens=chunk_tokens
    )
    for values_BW, naive_BL in zip(scores, naive_scores(CONFIG, params, tokens_BL, 0.8), strict=True):
        for row in range(ROWS):
            kept = np.asarray(values_BW[row])[np.asarray(valid_BW[row])]
            np.testing.assert_allclose(kept, np.asarray(naive_BL)[row, mask_BL[row]], atol=2e-5)
        assert (np.asarray(values_BW)[~np.asarray(valid_BW)] == 0).all()


@pytest.mark.parametrize(
    ("config", "chunk_tokens", "jitted"),
    [(CONFIG, 8, False), (CONFIG, 8, True), (CONFIG, None, True), (UNTIED, 8, True)],
)
def test_gradients_equal_those_of_the_naive_form(config, chunk_tokens, jitted):
    params, tokens_BL = setup(config)
    mask_BL = jnp.asarray(some_mask())
    weights_BL = jnp.asarray(np.random.default_rng(5).normal(size=(ROWS, LENGTH)), jnp.float32) * mask_BL
    lengths_B = jnp.full(ROWS, LENGTH)

    def ours(params):
        hidden_BLD = hidden_states(config, params, tokens_BL, lengths_B)
        positions_BW, valid_BW = positions_from_mask(mask_BL, 9)
        logprobs_BW, entropy_BW = selected_logprobs(
            config, params, hidden_BLD, tokens_BL, positions_BW, valid_BW, temperature=0.8, chunk_tokens=chunk_tokens
        )
        weights_BW = jnp.take_along_axis(weights_BL, positions_BW, axis=1)
        return jnp.sum(weights_BW * (jnp.exp(logprobs_BW) + 0.1 * entropy_BW) * valid_BW)

    def naive(params):
        logprobs_BL, entropy_BL = naive_scores(config, params, tokens_BL, 0.8)
        return jnp.sum(weights_BL * (jnp.exp(logprobs_BL) + 0.1 * entropy_BL))

    wrap = jax.jit if jitted else lambda function: function
    value, gradients = wrap(jax.value_and_grad(ours))(params)
    expected_value, expected = wrap(jax.value_and_grad(naive))(params)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    # Relative to the largest entry of the whole gradient: single entries may be sums that cancel.
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for ours_leaf, naive_leaf in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours_leaf, naive_leaf, atol=1e-6 * largest)


def test_a_two_word_vocabulary_gives_numbers_that_can_be_checked_by_hand():
    config = dataclasses.replace(CONFIG, vocab_size=2, hidden_size=1)
    head = {"embed_tokens": {"embedding": jnp.array([[0.0], [1.0]])}}
    hidden_BLD = jnp.log(jnp.array([[[9.0], [3.0], [1.0]]]))
    tokens_BL = jnp.array([[0, 1, 0]])
    positions_BW, valid_BW = jnp.array([[1, 2, 0]]), jnp.array([[True, True, True]])
    # At temperature 2 the odds of token 1 are 3 after the first token and sqrt(3) after the second.
    logprobs_BW, entropy_BW = selected_logprobs(
        config, head, hidden_BLD, tokens_BL, positions_BW, valid_BW, temperature=2.0
    )
    p = np.array([3 / 4, np.sqrt(3) / (1 + np.sqrt(3))])
    np.testing.assert_allclose(logprobs_BW[0], [np.log(p[0]), np.log(1 - p[1]), 0], rtol=1e-6)
    np.testing.assert_allclose(entropy_BW[0, :2], -p * np.log(p) - (1 - p) * np.log(1 - p), rtol=1e-6)


def test_neither_pass_ever_holds_all_logits():
    config = dataclasses.replace(CONFIG, vocab_size=5_000, hidden_size=8)
    rows, length, width = 4, 512, 128
    hidden_BLD = jax.ShapeDtypeStruct((rows, length, 8), jnp.float32)
    head = {"embed_tokens": {"embedding": jax.ShapeDtypeStruct((5_000, 8), jnp.float32)}}
    tokens_BL = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    mask_BL = jax.ShapeDtypeStruct((rows, length), jnp.bool_)

    def loss(head, hidden_BLD, tokens_BL, mask_BL):
        scores = selected_logprobs(
            config, head, hidden_BLD, tokens_BL, *positions_from_mask(mask_BL, width), chunk_tokens=32
        )
        return jnp.sum(jnp.exp(scores[0])) + jnp.sum(scores[1])

    for function in (loss, jax.value_and_grad(loss, argnums=(0, 1))):
        compiled = jax.jit(function).lower(head, hidden_BLD, tokens_BL, mask_BL).compile()
        gathered_logits = rows * width * config.vocab_size * 4
        assert compiled.memory_analysis().temp_size_in_bytes < 0.4 * gathered_logits
        assert f"{rows},{width},{config.vocab_size}" not in compiled.as_text()


def test_positions_are_those_of_the_mask_in_order():
    mask_BL = jnp.array([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    positions_BW, valid_BW = jax.jit(positions_from_mask, static_argnums=1)(mask_BL, 5)
    assert positions_BW[0, :3].tolist() == [1, 3, 4]
    assert positions_BW[2].tolist() == [0, 1, 2, 3, 4]
    assert valid_BW.sum(axis=1).tolist() == [3, 0, 5]
    assert valid_BW[0].tolist() == [True, True, True, False, False]
    assert positions_BW.dtype == jnp.int32


def test_the_selection_width_leaves_nothing_out():
    mask_BL = np.zeros((3, 100), bool)
    assert selection_width(mask_BL) == 32
    mask_BL[1, :33] = True
    assert selection_width(mask_BL) == 64
    mask_BL[1] = True
    assert selection_width(mask_BL) == 100


def test_a_batch_split_over_devices_scores_as_on_one_device():
    params, tokens_BL = setup(CONFIG)
    tokens_BL = np.concatenate([tokens_BL, tokens_BL[::-1]])
    lengths_B = np.concatenate([LENGTHS_B, LENGTHS_B[::-1]])
    expected_BL = token_logprobs(CONFIG, params, tokens_BL, lengths_B)
    mesh = make_mesh("data:2,fsdp:2,tensor:2")
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    with jax.set_mesh(mesh):
        split_BL = token_logprobs(CONFIG, params, jax.device_put(tokens_BL, rows), jax.device_put(lengths_B, rows))
    np.testing.assert_allclose(split_BL, expected_BL, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_of_no_distribution_is_refused(temperature):
    params, tokens_BL = setup(CONFIG)
    with pytest.raises(ArgumentError, match="temperature"):
        token_logprobs(CONFIG, params, tokens_BL, LENGTHS_B, temperature=temperature)


def test_ids_and_lengths_that_do_not_fit_are_refused():
    params, tokens_BL = setup(CONFIG)
    foreign_BL = tokens_BL.copy()
    foreign_BL[0, 3] = CONFIG.vocab_size
    with pytest.raises(ArgumentError, match="token ids"):
        token_logprobs(CONFIG, params, foreign_BL, LENGTHS_B)
    with pytest.raises(ArgumentError, match="lengths"):
        token_logprobs(CONFIG, params, tokens_BL, LENGTHS_B + 1)
    with pytest.raises(ArgumentError, match="width"):
        positions_from_mask(jnp.zeros((1, 4), bool), 5)
    with pytest.raises(ArgumentError, match="chunk_tokens"):
        selected_logprobs(
            CONFIG,
            params,
            jnp.zeros((1, 4, 16)),
            jnp.zeros((1, 4), jnp.int32),
            jnp.zeros((1, 2), jnp.int32),
            jnp.ones((1, 2), bool),
            chunk_tokens=0,
        )
