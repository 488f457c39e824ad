from __future__ import annotations

import functools
import math

import jax
import pytest

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.models.sizes import PRESETS, get_preset

# Parameters as the tensors of the published checkpoints add up, a tied head counted once.
PUBLISHED = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "lake-tiny": 102_656,
    "code-tiny": 350_976,
    "tiny": 853_376,
}


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_counts_match_the_published_ones(name):
    shapes = jax.eval_shape(functools.partial(init_params, get_preset(name)), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == PUBLISHED[name]


def test_head_is_tied_in_the_small_published_models_only():
    tied = {name for name, config in PRESETS.items() if config.tie_word_embeddings}
    assert tied == {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "tiny", "lake-tiny", "code-tiny"}


def test_unknown_name_is_answered_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match=r"qwen3-0.6b, .*'Qwen3-4B-Base'.*Did you mean 'qwen3-4b'"):
        get_preset("Qwen3-4B-Base")
