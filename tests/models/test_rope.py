from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.rope import RopeScaling, frequencies, rotate, rotation


def test_frequencies_are_the_geometric_series():
    found, factor = frequencies(100.0, 4)
    np.testing.assert_allclose(found, [1.0, 0.1])
    assert factor == 1.0
    np.testing.assert_allclose(frequencies(100.0, 4, RopeScaling("linear", 2.0))[0], [0.5, 0.05])


def test_a_quarter_turn_by_hand():
    # Position 1 with frequency 1 turns the pair (x0, x1) by one radian.
    cos_sin = rotation(jnp.array([[1]]), 100.0, 2)
    turned = rotate(jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]]).swapaxes(1, 2), cos_sin)
    np.testing.assert_allclose(turned[0, 0], [[np.cos(1), np.sin(1)], [-np.sin(1), np.cos(1)]], atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_scores_depend_on_the_distance_alone(jit):
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 16))

    def score(q_position, k_position):
        turned = [rotate(x, rotation(p[None, None], 1e4, 16)) for x, p in ((q, q_position), (k, k_position))]
        return jnp.sum(turned[0] * turned[1])

    score = jax.jit(score) if jit else score
    assert float(score(jnp.array(13), jnp.array(6))) == pytest.approx(
        float(score(jnp.array(7), jnp.array(0))), abs=1e-5
    )


def test_rotation_keeps_lengths_and_dtype():
    x_BCHE = jax.random.normal(jax.random.key(0), (2, 5, 3, 8)).astype(jnp.bfloat16)
    turned_BCHE = rotate(x_BCHE, rotation(jnp.arange(5)[None], 1e4, 8))
    assert turned_BCHE.dtype == jnp.bfloat16
    lengths = [np.linalg.norm(np.asarray(x, np.float32), axis=-1) for x in (x_BCHE, turned_BCHE)]
    np.testing.assert_allclose(lengths[0], lengths[1], rtol=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 8, "beta_slow": 2},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
        {"rope_type": "yarn", "original_max_position_embeddings": 10240, "factor": None},
        {"rope_type": "linear", "factor": 3.0},
    ],
)
def test_extended_frequencies_equal_those_of_transformers(options):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    settings = {"head_dim": 128, "max_position_embeddings": 40960}
    theirs = transformers.Qwen3Config(**settings, rope_parameters=options | {"rope_theta": 1e6})
    expected, expected_factor = rope_utils.ROPE_INIT_FUNCTIONS[options["rope_type"]](theirs, "cpu")
    found, factor = frequencies(1e6, 128, RopeScaling.from_hf(options, max_position_embeddings=40960))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert factor == pytest.approx(expected_factor, rel=1e-9)


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones():
    plain, _ = frequencies(1e4, 64)
    scaled, factor = frequencies(1e4, 64, RopeScaling("yarn", 4.0, 2048))
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 4, rel=1e-6)
    assert factor == pytest.approx(0.1 * np.log(4) + 1)


@pytest.mark.parametrize(
    "options", [("dynamic", 2.0), ("yarn", 0.5, 64), ("yarn", 4.0), ("yarn", 4.0, 0), ("linear", None)]
)
def test_impossible_scalings_are_refused(options):
    with pytest.raises(ConfigError):
        RopeScaling(*options)


def test_plain_rotation_needs_no_scaling():
    assert RopeScaling.from_hf({}, max_position_embeddings=8) is None
    assert RopeScaling.from_hf({"rope_type": "default", "rope_theta": 1e6}, max_position_embeddings=8) is None
