from __future__ import annotations

import dataclasses
import json

import pytest

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.qwen3 import Qwen3Config
from jaxrl_agent.models.rope import RopeScaling
from jaxrl_agent.models.sizes import PRESETS, get_preset

# As published for the 0.6b model, in the form that older transformers releases write.
PUBLISHED = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# As published for SmolLM2-135M-Instruct, without what says nothing about the model.
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def test_published_file_gives_the_preset():
    assert Qwen3Config.from_hf(PUBLISHED) == get_preset("qwen3-0.6b")


def test_a_llama_file_without_head_size_gives_a_model_without_norms_and_biases():
    config = Qwen3Config.from_hf(SMOLLM2)
    assert (config.head_dim, config.rope_theta, config.rms_norm_eps) == (64, 1e5, 1e-5)
    assert (config.qk_norm, config.attention_bias, config.output_bias) == (False, False, False)
    assert Qwen3Config.from_hf(config.to_hf()) == config
    assert config.to_hf()["architectures"] == ["LlamaForCausalLM"]


def test_what_a_file_leaves_out_is_what_transformers_takes():
    transformers = pytest.importorskip("transformers")
    bare = {name: SMOLLM2[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    bare["num_attention_heads"] = 9
    for family, kind in (("llama", transformers.LlamaConfig), ("qwen2", transformers.Qwen2Config)):
        theirs = kind(**bare, num_key_value_heads=9).to_dict()
        assert Qwen3Config.from_hf(bare | {"model_type": family}) == dataclasses.replace(
            Qwen3Config.from_hf(theirs), bos_token_id=None, eos_token_id=None, pad_token_id=None
        )


def test_qwen2_has_biases_before_attention_and_none_behind_it():
    config = Qwen3Config.from_hf(SMOLLM2 | {"model_type": "qwen2"})
    assert (config.qk_norm, config.attention_bias, config.output_bias) == (False, True, False)
    assert config.to_hf()["architectures"] == ["Qwen2ForCausalLM"]
    assert Qwen3Config.from_hf(config.to_hf()) == config


def test_old_and_new_spelling_of_rope_mean_the_same():
    old = PUBLISHED | {"rope_theta": 5e5, "rope_scaling": YARN}
    new = {name: value for name, value in PUBLISHED.items() if not name.startswith("rope")}
    new["rope_parameters"] = YARN | {"rope_theta": 5e5}
    assert Qwen3Config.from_hf(old) == Qwen3Config.from_hf(new)
    assert Qwen3Config.from_hf(new).rope_theta == 5e5
    assert Qwen3Config.from_hf(new).rope_scaling == RopeScaling("yarn", 4.0, 32768)


@pytest.mark.parametrize("name", PRESETS)
def test_writing_and_reading_gives_the_same_configuration(name):
    for scaling in (None, RopeScaling("yarn", 4.0, 32768, beta_fast=16, truncate=False), RopeScaling("linear", 2.0)):
        config = dataclasses.replace(get_preset(name), rope_scaling=scaling, eos_token_id=(1, 2))
        assert Qwen3Config.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_how_to_run_is_not_written_and_can_be_given_on_reading():
    written = dataclasses.replace(get_preset("tiny"), dtype="bfloat16", remat=False).to_hf()
    assert not {"dtype", "remat", "attention"} & written.keys()
    read = Qwen3Config.from_hf(written, dtype="bfloat16", remat=False)
    assert (read.dtype, read.remat) == ("bfloat16", False)


def test_transformers_reads_what_is_written():
    transformers = pytest.importorskip("transformers")
    ours = dataclasses.replace(get_preset("tiny"), rope_scaling=RopeScaling("yarn", 4.0, 1024), attention_bias=True)
    theirs = transformers.Qwen3Config(**ours.to_hf())
    assert Qwen3Config.from_hf(theirs.to_dict()) == ours


def test_equal_configurations_hash_alike():
    assert hash(Qwen3Config.from_hf(PUBLISHED)) == hash(get_preset("qwen3-0.6b"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "model_type must be one of qwen3, qwen2, llama; got 'gemma2'"),
        ({"model_type": "qwen3_moe"}, "dense checkpoints"),
        ({"model_type": "qwen2"}, "qwen2 model has biases"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias must be false"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, "full attention"),
        ({"layer_types": ["full_attention"] * 27 + ["sliding_attention"]}, "full attention"),
        ({"model_type": "llama", "rope_scaling": LLAMA3}, "rope_type must be .* linear, yarn; got 'llama3'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "default, linear, yarn"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "speed": 1}}, "unknown keys.*speed"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "at least 1"),
        ({"rope_scaling": {"rope_type": "linear"}}, "at least 1.*None"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"vocab_size": None}, "every size.*vocab_size"),
        ({"num_key_value_heads": 3}, r"multiple of num_key_value_heads.*\(16, 3\)"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer"),
        ({"head_dim": 15}, "even"),
    ],
)
def test_what_cannot_be_run_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Qwen3Config.from_hf(PUBLISHED | change)


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28},
        {"layer_types": ["full_attention"] * 28},
    ],
)
def test_sliding_windows_that_no_layer_uses_are_accepted(change):
    assert Qwen3Config.from_hf(PUBLISHED | change) == get_preset("qwen3-0.6b")


@pytest.mark.parametrize("change", [{"dtype": "float8"}, {"attention": "flash"}, {"attention": "cudnn"}])
def test_unknown_ways_to_run_are_refused(change):
    with pytest.raises(ConfigError):
        dataclasses.replace(get_preset("tiny"), **change)
