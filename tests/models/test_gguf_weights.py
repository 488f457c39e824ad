"""Weights of GGUF files are the weights that were put in, whatever llama.cpp does to them on the way."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ConfigError, WeightsError
from jaxrl_agent.models.gguf_file import read_gguf
from jaxrl_agent.models.gguf_weights import hf_tensors
from jaxrl_agent.models.hf_weights import load_hf, save_hf
from jaxrl_agent.models.qwen3 import init_params, param_axes
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.testing.gguf import KINDS, model_metadata, model_tensors

SPECIAL = {"initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
LLAMA = dataclasses.replace(get_preset("lake-tiny"), model_type="llama", rms_norm_eps=1e-5, **SPECIAL)
FAMILIES = {
    "llama": LLAMA,
    "llama_untied_with_biases": dataclasses.replace(LLAMA, tie_word_embeddings=False, attention_bias=True),
    "qwen2": dataclasses.replace(LLAMA, model_type="qwen2", attention_bias=True),
    "qwen3_with_wide_heads": dataclasses.replace(LLAMA, model_type="qwen3", head_dim=32),
}


def draw(config):
    """Parameters that survive 16 bits."""
    keys = iter(jax.random.split(jax.random.key(0), 99))
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return jax.tree.map(lambda leaf: jax.random.randint(next(keys), leaf.shape, -99, 99) / 64, shapes)


@pytest.fixture
def write_model(write_gguf, tmp_path):
    """Give a function that writes a model as a GGUF file."""

    def write(config, dtype: str = "float32", **metadata) -> Path:
        save_hf(tmp_path / "folder", config, draw(config))
        changed = {key: value for key, value in (model_metadata(config) | metadata).items() if value is not None}
        return write_gguf(changed, model_tensors(config, tmp_path / "folder", dtype))

    return write


def assert_same(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", KINDS)
def test_every_family_is_loaded_bit_for_bit(write_model, family, dtype):
    config = FAMILIES[family]
    found_config, found = load_hf(write_model(config, dtype))
    assert found_config == config
    assert_same(found, draw(config))


def test_each_device_gets_its_slices(write_model):
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    mesh = make_mesh("data:2,fsdp:2,tensor:2", jax.devices()[:8])
    config, found = load_hf(write_model(LLAMA), mesh=mesh)
    assert_same(found, draw(LLAMA))
    assert jax.tree.map(lambda leaf: leaf.sharding, found) == tree_shardings(param_axes(config), found, mesh)


def test_sixteen_bits_can_be_asked_for(write_model):
    config, found = load_hf(write_model(LLAMA), dtype="bfloat16")
    assert config.dtype == "bfloat16"
    assert_same(found, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), draw(LLAMA)))


def test_what_is_loaded_does_not_change_with_the_file(write_model):
    path = write_model(LLAMA)
    _, found = load_hf(path)
    with path.open("r+b") as file:
        file.seek(-64_000, 2)
        file.write(bytes(64_000))
    assert_same(found, draw(LLAMA))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general.architecture": "gemma"}, ConfigError, "one of llama, qwen2, qwen3; got 'gemma'"),
        ({"llama.expert_count": 8}, ConfigError, r"llama\.expert_count must be 0"),
        ({"llama.rope.scaling.type": "linear"}, ConfigError, r"llama\.rope\.scaling\.type must be none"),
        ({"llama.rope.dimension_count": 8}, ConfigError, r"rope\.dimension_count must be the size of a head, 16"),
        ({"llama.attention.value_length": 8}, ConfigError, r"attention\.value_length"),
        ({"llama.block_count": None}, WeightsError, r"must state llama\.block_count"),
        ({"llama.block_count": 3}, WeightsError, r"'missing': \['model\.layers\.2\."),
        ({"llama.attention.head_count_kv": 1}, WeightsError, r"misshapen.*k_proj.weight is \[32, 64\], not \[16, 64\]"),
        ({"llama.attention.head_count": 3}, ConfigError, "multiple of num_key_value_heads"),
    ],
)
def test_a_model_that_is_not_ported_is_refused(write_model, change, error, message):
    with pytest.raises(error, match=message):
        load_hf(write_model(LLAMA, **change))


def test_tensors_with_names_of_their_own_are_named(write_gguf, tmp_path):
    save_hf(tmp_path / "folder", LLAMA, draw(LLAMA))
    tensors = model_tensors(LLAMA, tmp_path / "folder") | {"rope_freqs.weight": (0, (8,), bytes(32))}
    with pytest.raises(WeightsError, match=r"'extra': \['rope_freqs\.weight'\].*model\.gguf"):
        load_hf(write_gguf(model_metadata(LLAMA), tensors))
    del tensors["token_embd.weight"]
    with pytest.raises(WeightsError, match=r"must hold token_embd\.weight"):
        load_hf(write_gguf(model_metadata(LLAMA), tensors))


def test_a_file_that_ends_in_its_tensors_is_refused(write_model):
    path = write_model(LLAMA)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match="must be whole"):
        load_hf(path)


def test_quantised_weights_without_the_package_are_refused_with_the_remedy(write_gguf, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    path = write_gguf(
        {"general.architecture": "qwen3", "qwen3.attention.head_count": 1}, {"a.w": (8, (1, 32), bytes(34))}
    )
    with pytest.raises(WeightsError, match=r"need the package gguf.*got 'a\.w'.*pip install gguf"):
        hf_tensors(read_gguf(path))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0"])
def test_quantised_rows_are_dequantised_where_they_are_read(write_gguf, kind):
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    quantisation = gguf.GGMLQuantizationType[kind]
    rows = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    raw = gguf.quantize(rows, quantisation)
    metadata = {"general.architecture": "llama", "llama.attention.head_count": 2}
    path = write_gguf(
        metadata, {f"blk.0.{part}.weight": (quantisation, (8, 64), raw.tobytes()) for part in ("attn_q", "x")}
    )
    tensors, whole = hf_tensors(read_gguf(path)), gguf.dequantize(raw, quantisation)
    assert np.abs(whole - rows).max() < 0.2
    np.testing.assert_array_equal(tensors["blk.0.x.weight"][2:5, 8:], whole[2:5, 8:])
    # Pairs of neighbours become halves of a head.
    np.testing.assert_array_equal(
        tensors["model.layers.0.self_attn.q_proj.weight"][1:6, :], whole[[0, 2, 1, 3, 4, 6, 5, 7]][1:6]
    )


def test_a_format_that_the_package_does_not_know_is_refused(write_gguf):
    pytest.importorskip("gguf", reason="needs the package gguf")
    metadata = {"general.architecture": "llama", "llama.attention.head_count": 2}
    with pytest.raises(WeightsError, match=r"must know the format of every tensor; got 'a\.w: 999"):
        hf_tensors(read_gguf(write_gguf(metadata, {"a.w": (999, (1, 32), bytes(34))})))
