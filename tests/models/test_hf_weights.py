from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_agent.errors import ConfigError, JaxrlError, WeightsError
from jaxrl_agent.models import hf_weights
from jaxrl_agent.models.hf_weights import load_hf, save_hf
from jaxrl_agent.models.qwen3 import forward, init_params, param_axes
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.parallel.rules import tree_shardings

UNTIED = dataclasses.replace(get_preset("lake-tiny"), tie_word_embeddings=False, attention_bias=True)
TIED = get_preset("lake-tiny")
LLAMA = dataclasses.replace(TIED, model_type="llama")
QWEN2 = dataclasses.replace(UNTIED, model_type="qwen2")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"


def draw(config, seed: int = 0):
    """Parameters in which no two arrays, and no norm, are alike."""
    params = init_params(config, jax.random.key(seed))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return structure.unflatten(
        [leaf + jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    )


def assert_same(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def change_tensors(folder: Path, change) -> None:
    """Rewrite the single weights file after `change(tensors)` has edited the dict."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path) -> Path:
    save_hf(tmp_path / "model", UNTIED, draw(UNTIED))
    return tmp_path / "model"


@pytest.fixture
def tied_folder(tmp_path) -> Path:
    save_hf(tmp_path / "tied", TIED, draw(TIED))
    return tmp_path / "tied"


@pytest.mark.parametrize("config", [UNTIED, TIED, LLAMA, QWEN2], ids=["untied", "tied", "llama", "qwen2"])
@pytest.mark.parametrize("max_shard_bytes", [1 << 30, 60_000, 1])
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path, config, max_shard_bytes):
    params = draw(config)
    save_hf(tmp_path / "model", config, params, max_shard_bytes=max_shard_bytes)
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert (len(files) == 1) == (max_shard_bytes == 1 << 30)
    found_config, found = load_hf(tmp_path / "model")
    assert found_config == config
    assert_same(found, params)
    if max_shard_bytes == 60_000:
        assert all(sum(tensor.nbytes for tensor in load_file(file).values()) <= 60_000 for file in files)


@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
@pytest.mark.parametrize(
    ("family", "options"),
    [("qwen3", {"attention_bias": True}), ("llama", {"tie_word_embeddings": True}), ("qwen2", {})],
    ids=["qwen3", "llama", "qwen2"],
)
def test_transformers_and_we_read_each_other(make_pair, tmp_path, family, options, max_shard_size):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pair = make_pair(family=family, max_shard_size=max_shard_size, **options)
    assert len(list(pair.folder.glob("*.safetensors"))) == 1 or max_shard_size == "20KB"
    save_hf(tmp_path / "ours", pair.config, pair.params, max_shard_bytes=30_000)
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(loaded) is type(pair.reference)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == torch.float32
    tokens_BL = np.random.default_rng(0).integers(0, 97, (2, 20))
    with torch.inference_mode():
        logits_BLV = loaded(torch.from_numpy(tokens_BL)).logits.numpy()
    np.testing.assert_array_equal(logits_BLV, pair.reference_logits(tokens_BL))


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_any_float_dtype_is_read_and_cast(tmp_path, stored, wanted):
    params = jax.tree.map(lambda leaf: leaf.astype(stored), draw(TIED))
    save_hf(tmp_path / "model", TIED, params)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == stored
    assert load_file(tmp_path / "model" / "model.safetensors")[EMBEDDING].dtype == jnp.dtype(stored)
    config, found = load_hf(tmp_path / "model", dtype=wanted)
    assert config.dtype == wanted
    assert_same(found, jax.tree.map(lambda leaf: leaf.astype(wanted), params))


def test_bfloat16_weights_of_transformers_are_read(make_pair, tmp_path):
    torch = pytest.importorskip("torch")
    pair = make_pair()
    pair.reference.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    _, found = load_hf(tmp_path / "half", dtype="bfloat16")
    assert_same(found, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), pair.params))


@pytest.mark.parametrize("mesh_text", ["data:2,fsdp:2,tensor:2", "fsdp:8", "data:8"])
def test_each_array_is_built_in_its_sharding_from_the_slices_it_needs(folder, monkeypatch, mesh_text):
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    largest: dict[str, int] = {}
    read_part = hf_weights._read_part

    def record(tensor, index, transposed):
        part = read_part(tensor, index, transposed)
        shape = str(tuple(tensor.get_shape()))
        largest[shape] = max(largest.get(shape, 0), part.size)
        return part

    monkeypatch.setattr(hf_weights, "_read_part", record)
    mesh = make_mesh(mesh_text, jax.devices()[:8])
    config, found = load_hf(folder, mesh=mesh)
    expected = draw(UNTIED)
    assert_same(found, expected)
    wanted = tree_shardings(param_axes(config), expected, mesh)
    assert jax.tree.map(lambda leaf: leaf.sharding, found) == wanted
    up = found["layers"]["mlp"]["up_proj"]["kernel"]  # [2, 64, 192]: width over fsdp, MLP over tensor
    split = {"data:2,fsdp:2,tensor:2": 4, "fsdp:8": 8, "data:8": 1}[mesh_text]
    assert up.addressable_shards[0].data.size == 2 * 64 * 192 // split
    assert largest["(192, 64)"] == 64 * 192 // split


def test_sharded_parameters_are_saved_whole(tmp_path):
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    params, mesh = draw(UNTIED), make_mesh("data:2,fsdp:2,tensor:2", jax.devices()[:8])
    spread = jax.device_put(params, tree_shardings(param_axes(UNTIED), params, mesh))
    save_hf(tmp_path / "model", UNTIED, spread)
    assert_same(load_hf(tmp_path / "model")[1], params)


def test_loaded_parameters_run_with_others_that_are_on_no_device_yet(folder):
    config, params = load_hf(folder)
    logits_BLV = forward(config, params, np.zeros((2, 3), np.int32), np.array([3, 2], np.int32))
    assert logits_BLV.shape == (2, 3, config.vocab_size)


def test_every_faulty_tensor_is_named(folder):
    def spoil(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros((192, 64), np.float32)
        tensors[QUERY] = tensors[QUERY][:-1]
        tensors[HEAD] = tensors[HEAD].astype(np.int8)

    change_tensors(folder, spoil)
    with pytest.raises(WeightsError) as raised:
        load_hf(folder)
    assert raised.value.value == {
        "missing": ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"],
        "extra": ["model.layers.2.mlp.up_proj.weight"],
        "misshapen": [f"{QUERY} is [63, 64], not [64, 64]"],
        "not floating point": [HEAD],
    }
    assert all(name in str(raised.value) for name in ("model.norm.weight", QUERY, HEAD))


def test_copy_of_a_tied_head_is_accepted_if_it_is_one(tied_folder, monkeypatch):
    monkeypatch.setattr(hf_weights, "_COMPARED_ROWS", 25)  # 62 rows: the last block is short
    expected = load_hf(tied_folder)[1]
    change_tensors(tied_folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING]}))
    assert_same(load_hf(tied_folder)[1], expected)
    change_tensors(tied_folder, lambda tensors: tensors.pop(EMBEDDING))  # the head alone, as some tools store it
    assert_same(load_hf(tied_folder)[1], expected)
    change_tensors(tied_folder, lambda tensors: tensors.update({EMBEDDING: tensors[HEAD] + 1}))
    with pytest.raises(WeightsError, match="Set tie_word_embeddings to false"):
        load_hf(tied_folder)


def test_untied_head_must_be_there(folder):
    change_tensors(folder, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(WeightsError, match=r"'missing': \['lm_head.weight'\]"):
        load_hf(folder)


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def scramble(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def leave_shard_out(folder: Path) -> None:
    save_hf(folder, UNTIED, draw(UNTIED), max_shard_bytes=60_000)
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()


def index_of_nothing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")


def store_twice(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    weight_map = {EMBEDDING: "a.safetensors", QUERY: "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "must hold config.json; got .*model"),
        (lambda folder: (folder / "config.json").unlink(), "must hold config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json must be valid JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json must hold a JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), "must hold model.safetensors or"),
        (truncate, "whole and readable; got .*model.safetensors"),
        (scramble, "whole and readable; got .*model.safetensors"),
        (leave_shard_out, r"that the index names must exist; got \['model-00001-of"),
        (index_of_nothing, "must hold a weight_map"),
        (store_twice, "stored once; got .*embed_tokens"),
    ],
)
def test_damaged_folder_gives_one_clear_error(folder, damage, message):
    damage(folder)
    with pytest.raises(WeightsError, match=message):
        load_hf(folder)


def test_folder_of_another_model_is_refused(folder):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"model_type": "gemma"}))
    with pytest.raises(ConfigError, match="model_type must be one of qwen3, qwen2, llama; got 'gemma'"):
        load_hf(folder)


def test_a_family_without_norms_of_queries_has_no_tensors_for_them(tmp_path):
    save_hf(tmp_path / "llama", LLAMA, draw(LLAMA))
    assert not [name for name in load_file(tmp_path / "llama" / "model.safetensors") if "q_norm" in name]
    content = json.loads((tmp_path / "llama" / "config.json").read_text())
    (tmp_path / "llama" / "config.json").write_text(json.dumps(content | {"model_type": "qwen3"}))
    with pytest.raises(WeightsError, match=r"'missing': \['model.layers.0.self_attn.k_norm.weight'"):
        load_hf(tmp_path / "llama")


def test_interrupted_save_leaves_the_old_folder_and_nothing_else(folder, monkeypatch):
    expected = load_hf(folder)[1]

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(hf_weights, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_hf(folder, TIED, draw(TIED))
    assert os.listdir(folder.parent) == ["model"]
    assert_same(load_hf(folder)[1], expected)


def test_saving_again_replaces_weights_and_keeps_other_files(folder):
    save_hf(folder, UNTIED, draw(UNTIED), max_shard_bytes=60_000)
    (folder / "tokenizer.json").write_text("{}")
    params = draw(TIED, seed=3)
    save_hf(folder, TIED, params)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert os.listdir(folder.parent) == ["model"]
    config, found = load_hf(str(folder))
    assert config == TIED
    assert_same(found, params)


def test_empty_folder_and_new_parents_can_be_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new" / "parents" / "model"):
        save_hf(target, TIED, draw(TIED))
        assert_same(load_hf(target)[1], draw(TIED))


def test_parameters_of_another_shape_are_not_written(tmp_path):
    params = draw(TIED)
    del params["norm"]
    with pytest.raises(WeightsError, match=r"\['norm'\]\['scale'\] is None, not \(64,\)"):
        save_hf(tmp_path / "model", TIED, params)
    assert not (tmp_path / "model").exists()
    (tmp_path / "file").touch()
    with pytest.raises(JaxrlError, match="written to a folder"):
        save_hf(tmp_path / "file", TIED, draw(TIED))
