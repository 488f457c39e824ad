from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.models.hf_weights import load_hf, save_hf
from jaxrl_agent.models.kv_cache import init_cache
from jaxrl_agent.models.qwen3 import (
    extend,
    forward,
    hidden_states,
    init_params,
    output_logits,
    param_axes,
    unstack_layers,
)
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings

# float32 on CPU, largest difference over largest value
LOGITS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("qwen3_*.npz"))
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True},
    "yarn": {"rope_parameters": YARN},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "one_query_head_a_key_head": {"num_key_value_heads": 4},
    "four_query_heads_a_key_head": {"num_key_value_heads": 1},
    "heads_narrower_than_the_model": {"head_dim": 8},
    "heads_wider_than_the_model": {"head_dim": 32},
    "qwen2": {"family": "qwen2"},
    "llama": {"family": "llama", "tie_word_embeddings": True, "head_dim": None},
    "llama_with_biases": {"family": "llama", "attention_bias": True, "head_dim": 32},
}

extend_jit = jax.jit(extend, static_argnums=0)


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def draw_tokens(rows: int, length: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, (rows, length)).astype(np.int32)


def logits_in_pieces(config, params, tokens_BL, chunk: int, *, stacked: bool, slots: int | None = None):
    """Append ragged pieces of 0 to `chunk` tokens to every row until all tokens are in; padding is -1."""
    rows, length = tokens_BL.shape
    params = params if stacked else unstack_layers(params)
    cache = init_cache(config, rows, slots or length, stacked=stacked)
    random, done_B = np.random.default_rng(1), np.zeros(rows, int)
    logits_BLV = np.zeros((rows, length, config.vocab_size), np.float32)
    while done_B.min() < length:
        counts_B = np.minimum(random.integers(0, chunk + 1, rows), length - done_B).astype(np.int32)
        tokens_BC = np.full((rows, chunk), -1, np.int32)
        for row, (start, count) in enumerate(zip(done_B, counts_B, strict=True)):
            tokens_BC[row, :count] = tokens_BL[row, start : start + count]
        hidden_BCD, cache = extend_jit(config, params, cache, tokens_BC, counts_B)
        piece_BCV = np.asarray(output_logits(config, params, hidden_BCD))
        for row, (start, count) in enumerate(zip(done_B, counts_B, strict=True)):
            logits_BLV[row, start : start + count] = piece_BCV[row, :count]
        done_B += counts_B
    assert cache.lengths_B.tolist() == [length] * rows
    return logits_BLV


@pytest.fixture(scope="module")
def lake():
    config = get_preset("lake-tiny")
    return config, init_params(config, jax.random.key(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(make_pair, variant):
    pair = make_pair(**VARIANTS[variant])
    tokens_BL = draw_tokens(3, 50, pair.config.vocab_size)
    expected_BLV = pair.reference_logits(tokens_BL)
    found_BLV = forward(pair.config, pair.params, tokens_BL, np.full(3, 50, np.int32))
    assert found_BLV.dtype == jnp.float32
    assert relative_error(found_BLV, expected_BLV) < LOGITS_TOLERANCE
    for stacked in (True, False):
        appended_BLV = logits_in_pieces(pair.config, pair.params, tokens_BL, 9, stacked=stacked)
        assert relative_error(appended_BLV, expected_BLV) < LOGITS_TOLERANCE


def test_padded_rows_give_the_logits_that_each_row_has_alone(make_pair):
    pair = make_pair()
    tokens_BL, lengths_B = draw_tokens(3, 20, pair.config.vocab_size), np.array([20, 7, 1], np.int32)
    found_BLV = np.asarray(forward(pair.config, pair.params, tokens_BL, lengths_B))
    for row, length in enumerate(lengths_B):
        expected_LV = pair.reference_logits(tokens_BL[row : row + 1, :length])[0]
        assert relative_error(found_BLV[row, :length], expected_LV) < LOGITS_TOLERANCE


@pytest.mark.parametrize("variant", ["plain", "tied", "biases", "llama"])
@pytest.mark.parametrize("remat", [False, True])
def test_gradients_equal_those_of_transformers(make_pair, tmp_path, variant, remat):
    torch = pytest.importorskip("torch")
    pair = make_pair(**VARIANTS[variant])
    config = dataclasses.replace(pair.config, remat=remat)
    tokens_BL, lengths_B = draw_tokens(2, 24, config.vocab_size), np.array([24, 15], np.int32)
    real_BL = np.arange(23) < lengths_B[:, None] - 1

    logits_BLV = pair.reference(torch.from_numpy(tokens_BL).long()).logits[:, :-1]
    losses_BL = torch.nn.functional.cross_entropy(
        logits_BLV.transpose(1, 2), torch.from_numpy(tokens_BL[:, 1:]).long(), reduction="none"
    )
    (losses_BL * torch.from_numpy(real_BL)).sum().backward()
    # A model whose weights are the gradients brings them under our names through the loader.
    gradients = copy.deepcopy(pair.reference)
    for holder, source in zip(gradients.parameters(), pair.reference.parameters(), strict=True):
        holder.data = source.grad
    gradients.save_pretrained(tmp_path / "gradients")
    _, expected = load_hf(tmp_path / "gradients")

    def loss(params):
        logits_BLV = forward(config, params, tokens_BL, lengths_B)[:, :-1]
        logprobs_BLV = jax.nn.log_softmax(logits_BLV)
        chosen_BL = jnp.take_along_axis(logprobs_BLV, tokens_BL[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(chosen_BL * real_BL)

    errors = jax.tree.map(relative_error, jax.jit(jax.grad(loss))(pair.params), expected)
    assert max(jax.tree.leaves(errors)) < GRADIENT_TOLERANCE, errors


def golden_folder(arrays, folder: Path) -> Path:
    """Unpack the weights of a golden file as a Hugging Face folder."""
    folder.mkdir()
    weights = {name.removeprefix("weight/"): arrays[name] for name in arrays if name.startswith("weight/")}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(str(arrays["config"]))
    return folder


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_golden_logits_and_gradients_hold_without_torch(file, tmp_path):
    arrays = np.load(file)
    config, params = load_hf(golden_folder(arrays, tmp_path / "weights"))
    tokens_BL, lengths_B = arrays["tokens_BL"], arrays["lengths_B"]
    real_BL = np.arange(tokens_BL.shape[1]) < lengths_B[:, None]

    found_BLV = np.asarray(forward(config, params, tokens_BL, lengths_B))
    assert relative_error(found_BLV[real_BL], arrays["logits_BLV"][real_BL]) < LOGITS_TOLERANCE
    appended_BLV = logits_in_pieces(config, params, tokens_BL, 5, stacked=False, slots=64)
    assert relative_error(appended_BLV[real_BL], arrays["logits_BLV"][real_BL]) < LOGITS_TOLERANCE

    def loss(params):
        logprobs_BLV = jax.nn.log_softmax(forward(config, params, tokens_BL, lengths_B)[:, :-1])
        chosen_BL = jnp.take_along_axis(logprobs_BLV, tokens_BL[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(chosen_BL * real_BL[:, 1:])

    value, gradients = jax.value_and_grad(loss)(params)
    assert value == pytest.approx(float(arrays["loss"]), rel=1e-5)
    save_hf(tmp_path / "gradients", config, gradients)
    found = load_file(tmp_path / "gradients" / "model.safetensors")
    expected = {name.removeprefix("gradient_norm/"): arrays[name] for name in arrays if "gradient_norm/" in name}
    assert found.keys() == expected.keys()
    for name, norm in expected.items():
        assert np.linalg.norm(found[name]) == pytest.approx(float(norm), rel=1e-4), name


def test_golden_files_are_there():
    assert len(GOLDEN) >= 2
    assert {"yarn", "default"} == {
        (json.loads(str(np.load(file)["config"]))["rope_parameters"])["rope_type"] for file in GOLDEN
    }


def test_any_id_may_stand_in_the_padding(lake):
    config, params = lake
    tokens_BL, lengths_B = draw_tokens(2, 12, config.vocab_size), np.array([12, 5], np.int32)
    expected_BLV = forward(config, params, tokens_BL, lengths_B)
    for filler in (-1, config.vocab_size, 2**30):
        padded_BL = np.where(np.arange(12) < lengths_B[:, None], tokens_BL, filler)
        found_BLV = forward(config, params, padded_BL, lengths_B)
        assert np.isfinite(found_BLV).all()
        np.testing.assert_array_equal(found_BLV[0], expected_BLV[0])
        np.testing.assert_array_equal(found_BLV[1, :5], expected_BLV[1, :5])


def test_empty_rows_and_padding_leave_no_trace_in_gradients(lake):
    config, params = lake
    tokens_BL = draw_tokens(2, 12, config.vocab_size)

    def total(params, lengths_B):
        real_BL = jnp.arange(12) < lengths_B[:, None]
        logits_BLV = forward(config, params, tokens_BL, lengths_B)
        return jnp.sum(jnp.where(real_BL[..., None], logits_BLV**2, 0))

    gradient = jax.grad(total)(params, jnp.array([0, 0]))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_forward_is_the_head_applied_to_hidden_states(lake):
    config, params = lake
    tokens_BL, lengths_B = draw_tokens(2, 9, config.vocab_size), np.array([9, 9], np.int32)
    hidden_BLD = hidden_states(config, params, tokens_BL, lengths_B)
    assert hidden_BLD.shape == (2, 9, config.hidden_size)
    np.testing.assert_allclose(
        output_logits(config, params, hidden_BLD[:, 3]), forward(config, params, tokens_BL, lengths_B)[:, 3], atol=1e-6
    )


@pytest.mark.parametrize("stacked", [True, False])
def test_row_with_nothing_to_append_is_unchanged(lake, stacked):
    config, params = lake
    params = params if stacked else unstack_layers(params)
    tokens_BC = draw_tokens(3, 6, config.vocab_size)
    cache = init_cache(config, 3, 16, stacked=stacked)
    _, before = extend_jit(config, params, cache, tokens_BC, jnp.array([6, 4, 2]))
    _, after = extend_jit(config, params, before, tokens_BC, jnp.array([0, 3, 0]))
    assert after.lengths_B.tolist() == [6, 7, 2]
    arrays = zip(jax.tree.leaves((before.key, before.value)), jax.tree.leaves((after.key, after.value)), strict=True)
    for pair in arrays:
        old, new = (np.moveaxis(np.asarray(array), array.ndim - 4, 0) for array in pair)
        np.testing.assert_array_equal(old[[0, 2]], new[[0, 2]])
        assert np.any(old[1] != new[1])


@pytest.mark.parametrize("stacked", [True, False])
def test_tokens_without_room_corrupt_nothing(lake, stacked):
    config, params = lake
    params = params if stacked else unstack_layers(params)
    tokens_BC = draw_tokens(3, 5, config.vocab_size)
    cache = init_cache(config, 3, 8, stacked=stacked)
    _, cache = extend_jit(config, params, cache, tokens_BC, jnp.array([5, 5, 4]))
    _, full = extend_jit(config, params, cache, tokens_BC, jnp.array([5, 3, 4]))  # room for 3, 3, 4
    hidden_BCD, fuller = extend_jit(config, params, full, tokens_BC, jnp.array([5, 1, 0]))
    assert full.lengths_B.tolist() == fuller.lengths_B.tolist() == [8, 8, 8]
    assert np.isfinite(hidden_BCD).all()
    for one, other in zip(jax.tree.leaves(full), jax.tree.leaves(fuller), strict=True):
        np.testing.assert_array_equal(one, other)
    # What did find room is what an ample cache holds at the same slots.
    ample = init_cache(config, 3, 32, stacked=stacked)
    _, ample = extend_jit(config, params, ample, tokens_BC, jnp.array([5, 5, 4]))
    _, ample = extend_jit(config, params, ample, tokens_BC, jnp.array([3, 3, 4]))
    for short, long in zip(jax.tree.leaves(full.key), jax.tree.leaves(ample.key), strict=True):
        np.testing.assert_allclose(short, long[..., :8], atol=1e-5)


def test_rows_do_not_see_one_another(lake):
    config, params = lake
    tokens_BL = draw_tokens(4, 10, config.vocab_size)
    together_BLV = logits_in_pieces(config, params, tokens_BL, 4, stacked=True)
    alone_BLV = logits_in_pieces(config, params, tokens_BL[2:3], 4, stacked=True, slots=40)
    np.testing.assert_allclose(together_BLV[2:3], alone_BLV, atol=2e-6)


def test_parameters_and_cache_of_different_layouts_are_refused(lake):
    config, params = lake
    with pytest.raises(ArgumentError, match="same layout"):
        extend(
            config, params, init_cache(config, 1, 4, stacked=False), np.zeros((1, 1), np.int32), np.ones(1, np.int32)
        )
    with pytest.raises(ArgumentError, match="unstack_layers"):
        extend(
            config, unstack_layers(params), init_cache(config, 1, 4), np.zeros((1, 1), np.int32), np.ones(1, np.int32)
        )


def test_fresh_parameters_follow_the_initialisation_of_transformers():
    config = dataclasses.replace(get_preset("tiny"), tie_word_embeddings=False, attention_bias=True)
    params = init_params(config, jax.random.key(1))
    layers = params["layers"]
    assert np.all(layers["input_layernorm"]["scale"] == 1)
    assert np.all(layers["self_attn"]["q_proj"]["bias"] == 0)
    for kernel in (
        layers["mlp"]["down_proj"]["kernel"],
        params["lm_head"]["kernel"],
        params["embed_tokens"]["embedding"],
    ):
        assert np.std(kernel) == pytest.approx(0.02, rel=0.03)
        assert abs(np.mean(kernel)) < 5e-4
    gate = layers["mlp"]["gate_proj"]["kernel"]
    assert np.any(gate[0] != gate[1])
    assert np.any(gate != layers["mlp"]["up_proj"]["kernel"])


@pytest.mark.parametrize(
    ("tied", "bias", "family"),
    [(True, False, "qwen3"), (False, True, "qwen3"), (True, False, "llama"), (False, True, "qwen2")],
)
def test_every_parameter_has_one_logical_axis_for_each_dimension(tied, bias, family):
    shape = {"tie_word_embeddings": tied, "attention_bias": bias, "model_type": family}
    config = dataclasses.replace(get_preset("lake-tiny"), **shape)
    params = init_params(config, jax.random.key(0))
    axes = param_axes(config)
    ranks = jax.tree.map(lambda leaf, names: len(names) == leaf.ndim, params, axes)
    assert all(jax.tree.leaves(ranks))
    assert len(jax.tree.leaves(params)) == len(jax.tree.leaves(axes, is_leaf=lambda node: isinstance(node, tuple)))


@pytest.mark.parametrize("stacked", [True, False])
def test_bfloat16_runs_close_to_float32(lake, stacked):
    config, params = lake
    half = dataclasses.replace(config, dtype="bfloat16")
    tokens_BL, lengths_B = draw_tokens(2, 16, config.vocab_size), np.full(2, 16, np.int32)
    expected_BLV = np.asarray(forward(config, params, tokens_BL, lengths_B))
    found_BLV = forward(half, params, tokens_BL, lengths_B)
    assert found_BLV.dtype == jnp.float32
    assert hidden_states(half, params, tokens_BL, lengths_B).dtype == jnp.bfloat16
    assert init_cache(half, 1, 4).key.dtype == jnp.bfloat16
    assert 0 < relative_error(found_BLV, expected_BLV) < 0.05
    appended_BLV = logits_in_pieces(half, params, tokens_BL, 5, stacked=stacked)
    assert relative_error(appended_BLV, expected_BLV) < 0.05


@pytest.mark.parametrize(
    ("mesh_text", "family"),
    [
        ("data:2,fsdp:2,tensor:2", "qwen3"),
        pytest.param("fsdp:2,tensor:4", "qwen3", marks=pytest.mark.slow),
        pytest.param("data:2,fsdp:2,tensor:2", "qwen2", marks=pytest.mark.slow),
    ],
)
def test_logits_and_gradients_do_not_depend_on_the_mesh(mesh_text, family):
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    shape = {"tie_word_embeddings": False, "model_type": family, "attention_bias": family == "qwen2"}
    config = dataclasses.replace(get_preset("lake-tiny"), **shape)
    params = init_params(config, jax.random.key(0))
    tokens_BL, lengths_B = draw_tokens(8, 12, config.vocab_size), np.arange(5, 13, dtype=np.int32)

    def loss(params):
        return jnp.mean(forward(config, params, tokens_BL, lengths_B) ** 2)

    expected, expected_gradient = jax.value_and_grad(loss)(params)
    mesh = make_mesh(mesh_text, jax.devices()[:8])
    spread = jax.device_put(params, tree_shardings(param_axes(config), params, mesh))
    with jax.set_mesh(mesh):
        found, gradient = jax.jit(jax.value_and_grad(loss))(spread)
        appended_BLV = logits_in_pieces(config, spread, tokens_BL, 5, stacked=True)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    errors = jax.tree.map(relative_error, gradient, jax.tree.map(np.asarray, expected_gradient))
    assert max(jax.tree.leaves(errors)) < GRADIENT_TOLERANCE
    full_BLV = np.asarray(forward(config, params, tokens_BL, np.full(8, 12, np.int32)))
    assert relative_error(appended_BLV, full_BLV) < LOGITS_TOLERANCE
