"""Policies go from runs to Hugging Face folders and back without losing a bit, and take their tokenizers along."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxrl_agent import (
    assemble,
    command_line,  # noqa: F401  flags that all commands share are defined once, before the first command
)
from jaxrl_agent.checkpoint import Checkpoints, describe_policy, load_policy, policy_version
from jaxrl_agent.config import Config
from jaxrl_agent.convert import hf_to_hf, hf_to_run, run_to_hf
from jaxrl_agent.errors import CheckpointError, ConfigError, RunError, TokenizerError, WeightsError
from jaxrl_agent.evaluation.evaluator import evaluate
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import forward, init_params
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.commands import assert_one_line_error
from jaxrl_agent.testing.gguf import model_metadata, model_tensors, write_gguf
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL, one_device, small_config

TOKENS = np.array([[1, 4, 30, 5, 7, 33, 12], [1, 4, 25, 5, 9, 0, 0]], np.int32)
LENGTHS = np.array([7, 5], np.int32)


def same_bits(tree, expected) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.fixture(scope="module")
def hf_tokenizer(tmp_path_factory):
    """A byte-level BPE tokenizer of 256 bytes and the chat tokens, as transformers saves one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_tokens(["<|im_start|>", "<think>", "</think>"], special_tokens=True)
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256]}))
    return folder


@pytest.fixture(scope="module")
def wide_model():
    """A model with an id for each of that tokenizer's."""
    return dataclasses.replace(EVEN_MODEL, vocab_size=264)


# ---- from runs


def test_transformers_loads_what_a_run_exports_and_gives_the_same_logits(small_run, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    assert run_to_hf(small_run.path, tmp_path / "exported") == "lake_words"
    policy = load_policy(f"run:{small_run.path}", mesh=one_device())
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    with torch.inference_mode():
        expected_BLV = reference(torch.from_numpy(TOKENS).long()).logits.numpy()
    logits_BLV = forward(policy.model, policy.params, TOKENS, LENGTHS)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(logits_BLV[row, :length], expected_BLV[row, :length], atol=2e-5)


def test_what_is_exported_plays_as_the_run_does(small_run, tmp_path):
    run_to_hf(small_run.path, tmp_path / "exported")
    config = small_config(init=f"hf:{tmp_path / 'exported'}", evaluation__budget_fractions=(1.0,))
    exported, _ = evaluate(config, display=Display(quiet=True))
    original, _ = evaluate(
        small_config(init=f"run:{small_run.path}", evaluation__budget_fractions=(1.0,)), display=Display(quiet=True)
    )
    assert exported["runs"] == original["runs"]


def test_a_hugging_face_tokenizer_goes_along(hf_tokenizer, wide_model, tmp_path):
    transformers = pytest.importorskip("transformers")
    run = RunDir.create(tmp_path / "run", {})
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(wide_model, str(hf_tokenizer), {}, phase="reinforce", update=3)
        checkpoints.save_params(3, init_params(wide_model, jax.random.key(0)), meta)
    assert run_to_hf(run.path, tmp_path / "exported") == str(hf_tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    ours = load_tokenizer(tmp_path / "exported")
    assert theirs.encode("down left") == ours.encode("down left") == load_tokenizer(hf_tokenizer).encode("down left")
    assert ours.stop_ids == load_tokenizer(hf_tokenizer).stop_ids
    assert (tmp_path / "exported" / "generation_config.json").is_file()


def test_a_tokenizer_that_moved_can_be_named_anew_and_is_missed_before_anything_is_written(
    hf_tokenizer, wide_model, tmp_path
):
    run = RunDir.create(tmp_path / "run", {})
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(wide_model, "/gone/tokenizer", {}, phase="reinforce", update=0)
        checkpoints.save_params(0, init_params(wide_model, jax.random.key(0)), meta)
    with pytest.raises(TokenizerError, match="/gone/tokenizer"):
        run_to_hf(run.path, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    run_to_hf(run.path, tmp_path / "exported", tokenizer=str(hf_tokenizer))
    assert (tmp_path / "exported" / "tokenizer.json").is_file()


def test_a_source_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"must hold config\.json"):
        run_to_hf(tmp_path, tmp_path / "out")
    RunDir.create(tmp_path / "young", {})
    with pytest.raises(CheckpointError, match="finished checkpoint"):
        run_to_hf(tmp_path / "young", tmp_path / "out")


# ---- to runs


def test_weights_become_a_run_and_come_back_bit_by_bit(tmp_path):
    params = jax.device_get(init_params(ODD_MODEL, jax.random.key(0)))
    save_hf(tmp_path / "weights", ODD_MODEL, params)
    run = hf_to_run(tmp_path / "weights", tmp_path / "run", config=Config())
    assert same_bits(load_policy(f"run:{run.path}", mesh=one_device()).params, params)
    assert policy_version(f"run:{run.path}") == f"run:{run.path}@0"
    assert run.config()["init"] == f"hf:{tmp_path / 'weights'}"
    run_to_hf(run.path, tmp_path / "again", tokenizer="lake_words")
    assert same_bits(load_policy(f"hf:{tmp_path / 'again'}", mesh=one_device()).params, params)
    assert (tmp_path / "again" / "model.safetensors").stat().st_size == (
        tmp_path / "weights" / "model.safetensors"
    ).stat().st_size


def test_without_a_tokenizer_in_the_folder_the_settings_decide(tmp_path):
    save_hf(tmp_path / "weights", EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(0)))
    run = hf_to_run(tmp_path / "weights", tmp_path / "run", config=Config())
    policy = assemble.initial_policy(small_config(init=f"run:{run.path}"), one_device(), jax.random.key(0))
    assert policy.tokenizer == "lake_words"
    with pytest.raises(ConfigError, match=r"must name the tokenizer.*--tokenizer"):
        run_to_hf(run.path, tmp_path / "again")
    named = hf_to_run(tmp_path / "weights", tmp_path / "named", config=Config(), tokenizer="lake_words")
    assert load_policy(f"run:{named.path}", mesh=one_device()).tokenizer == "lake_words"


def test_a_run_carries_its_tokenizer_wherever_it_is_moved(hf_tokenizer, wide_model, tmp_path):
    save_hf(tmp_path / "weights", wide_model, init_params(wide_model, jax.random.key(0)))
    for file in hf_tokenizer.iterdir():
        (tmp_path / "weights" / file.name).write_bytes(file.read_bytes())
    run = hf_to_run(tmp_path / "weights", tmp_path / "run", config=Config())
    moved = run.path.rename(tmp_path / "moved")
    (tmp_path / "weights").rename(tmp_path / "gone")
    policy = load_policy(f"run:{moved}", mesh=one_device())
    assert policy.tokenizer == str(moved / "tokenizer")
    assert load_tokenizer(policy.tokenizer).encode("goal") == load_tokenizer(hf_tokenizer).encode("goal")


def test_no_run_is_overwritten_and_nothing_is_left_of_a_source_that_cannot_be_read(small_run, tmp_path):
    with pytest.raises(ConfigError, match="directory without one"):
        hf_to_run(tmp_path / "weights", small_run.path, config=Config())
    with pytest.raises(WeightsError, match=r"config\.json"):
        hf_to_run(tmp_path / "none", tmp_path / "run", config=Config())
    save_hf(tmp_path / "weights", EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(0)))
    with pytest.raises(TokenizerError, match="embedded one, a folder or a hub name"):
        hf_to_run(tmp_path / "weights", tmp_path / "run", config=Config(), tokenizer="./nowhere")
    assert not (tmp_path / "run").exists()


# ---- from GGUF files

CHARACTERS = "\"#$%&'()*+,-./0123456789:;<=>?@[]^_`abcdefghijklmnopqrstuvwxyz{|}~ĠĊ"
CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture
def gguf_file(wide_model, tmp_path):
    """A small Llama with a tokenizer of single characters."""
    model = dataclasses.replace(wide_model, model_type="llama", bos_token_id=1, eos_token_id=2, pad_token_id=2)
    save_hf(tmp_path / "original", model, init_params(model, jax.random.key(0)))
    tokenizer = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [*CHAT_TOKENS, *CHARACTERS, "ab"],
        "token_type": [3] * len(CHAT_TOKENS) + [1] * (len(CHARACTERS) + 1),
        "merges": ["a b"],
    }
    metadata = model_metadata(model) | {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    return write_gguf(tmp_path / "model.gguf", metadata, model_tensors(model, tmp_path / "original"))


def test_a_gguf_file_becomes_a_folder_that_transformers_loads_tokenizer_included(gguf_file, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert hf_to_hf(gguf_file, tmp_path / "folder") == str(gguf_file)
    ours = load_policy(f"hf:{gguf_file}", mesh=one_device())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder")
    with torch.inference_mode():
        expected_BLV = theirs(torch.from_numpy(TOKENS).long()).logits.numpy()
    found_BLV = np.asarray(forward(ours.model, ours.params, TOKENS, np.array([7, 7], np.int32)))
    np.testing.assert_allclose(found_BLV, expected_BLV, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer.encode("goal 12") == load_tokenizer(gguf_file).encode("goal 12")
    assert same_bits(load_policy(f"hf:{tmp_path / 'folder'}", mesh=one_device()).params, ours.params)


def test_a_gguf_file_is_a_policy_with_a_tokenizer_and_a_version(gguf_file, tmp_path):
    init = f"hf:{gguf_file}"
    config = small_config(init=init)
    config = dataclasses.replace(config, task=dataclasses.replace(config.task, tokenizer=""))
    policy = assemble.initial_policy(config, one_device(), jax.random.key(0))
    assert (policy.tokenizer, policy.model.model_type, policy.update) == (str(gguf_file), "llama", 0)
    assert load_tokenizer(policy.tokenizer).control_ids["<|im_end|>"] == 2
    before = policy_version(init)
    gguf_file.write_bytes(gguf_file.read_bytes() + b"x")
    assert policy_version(init) != before


def test_a_gguf_file_becomes_a_run_that_stands_alone(gguf_file, tmp_path):
    run = hf_to_run(gguf_file, tmp_path / "run", config=Config())
    expected = load_policy(f"hf:{gguf_file}", mesh=one_device()).params
    gguf_file.unlink()
    policy = load_policy(f"run:{run.path}", mesh=one_device())
    assert same_bits(policy.params, expected)
    assert policy.tokenizer == str(run.path / "tokenizer")
    assert load_tokenizer(policy.tokenizer).encode("ab")


@pytest.mark.parametrize("flags", [(), ("--to=hf",), ("--to=run",)])
def test_the_command_makes_a_folder_of_a_gguf_file_unless_told_otherwise(gguf_file, tmp_path, launch, flags):
    result = launch("convert_checkpoint", "--from=hf", f"--source={gguf_file}", f"--out={tmp_path / 'out'}", *flags)
    assert result.code == 0
    assert RunDir(tmp_path / "out").checkpoints.is_dir() == ("--to=run" in flags)
    assert (tmp_path / "out" / "model.safetensors").is_file() == ("--to=run" not in flags)


def test_a_run_is_made_into_a_folder_only(small_run, tmp_path, launch):
    result = launch("convert_checkpoint", "--from=run", "--to=run", f"--source={small_run.path}", f"--out={tmp_path}")
    assert_one_line_error(result, "--to=run", "Leave --to out")
