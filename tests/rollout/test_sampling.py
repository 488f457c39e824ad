from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.rollout.sampling import row_keys, sample_tokens, uniforms

WIDTHS = (1, 5, 62, 128, 129, 700)
EDGES = np.array([0.0, 1e-30, 2.0**-23, 0.5, 1 - 2.0**-24, 1.0], np.float32)

jitted_sample = jax.jit(sample_tokens, static_argnames=("temperature", "top_k", "top_p"))


def draw(logits_V, u, **settings):
    """Tokens and log-probabilities of one row of logits for many uniforms."""
    u = jnp.asarray(u, jnp.float32)
    logits_BV = jnp.broadcast_to(jnp.asarray(logits_V, jnp.float32), (len(u), len(logits_V)))
    tokens_B, logprobs_B = jitted_sample(logits_BV, u, **settings)
    return np.asarray(tokens_B), np.asarray(logprobs_B)


def random_logits(width, scale=2.0):
    return np.random.default_rng(width).normal(size=width).astype(np.float32) * scale


def filtered_probabilities(logits_V, temperature, top_k=0, top_p=1.0):
    """The distribution by definition: sort, cut, renormalise, in float64."""
    scaled_V = logits_V.astype(np.float64) / temperature
    order_V = np.argsort(-scaled_V, kind="stable")
    p_V = np.exp(scaled_V - scaled_V.max())
    if top_k:
        p_V[order_V[top_k:]] = 0
    p_V /= p_V.sum()
    below_V = np.concatenate([[0], np.cumsum(p_V[order_V])[:-1]])
    p_V[order_V[below_V >= top_p]] = 0
    return p_V / p_V.sum()


def test_a_uniform_lands_on_the_token_whose_stretch_of_the_cumulative_sum_holds_it():
    logits_V = np.log([0.1, 0.2, 0.3, 0.4])
    tokens_B, logprobs_B = draw(logits_V, [0.05, 0.15, 0.29, 0.31, 0.59, 0.61, 0.99], temperature=1.0)
    assert tokens_B.tolist() == [0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(logprobs_B, logits_V[tokens_B], rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.7}])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_even_grid_of_uniforms_reproduces_the_exact_probabilities(width, settings):
    logits_V = random_logits(width)
    n = 20_000
    tokens_B, _ = draw(logits_V, (np.arange(n) + 0.5) / n, temperature=0.7, **settings)
    counts_V = np.bincount(tokens_B, minlength=width)
    expected_V = n * filtered_probabilities(logits_V, 0.7, **settings)
    # A stretch of length p holds n p grid points give or take one at either end.
    assert np.abs(counts_V - expected_V).max() <= 2
    assert not counts_V[expected_V == 0].any()


@pytest.mark.parametrize("settings", [{}, {"top_k": 10}, {"top_p": 0.9}])
def test_random_draws_pass_a_chi_square_test(settings):
    logits_V, n = random_logits(300, scale=1.0), 50_000
    keys_B = row_keys(jax.random.key(7), jnp.arange(n))
    tokens_B, _ = draw(logits_V, uniforms(keys_B, jnp.full(n, 11)), temperature=1.0, **settings)
    expected_V = n * filtered_probabilities(logits_V, 1.0, **settings)
    kept_V = expected_V > 0
    counts_V = np.bincount(tokens_B, minlength=300)
    chi2 = np.sum((counts_V - expected_V)[kept_V] ** 2 / expected_V[kept_V])
    freedom = kept_V.sum() - 1
    assert counts_V[kept_V].sum() == n
    assert abs(chi2 - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_uniform_ever_draws_a_forbidden_or_padded_token(width):
    rng = np.random.default_rng(3)
    for _ in range(8):
        logits_V = random_logits(width, scale=30.0)
        allowed_V = rng.random(width) < 0.3
        allowed_V[rng.integers(width)] = True
        logits_V[~allowed_V] = -np.inf
        for settings in ({}, {"top_k": 4}, {"top_p": 0.99}):
            tokens_B, logprobs_B = draw(logits_V, EDGES, temperature=1.0, **settings)
            assert allowed_V[tokens_B].all()
            assert np.isfinite(logprobs_B).all()


def test_a_vocabulary_of_qwen3_size_keeps_its_edges():
    logits_V = np.full(151_936, -np.inf, np.float32)
    logits_V[[70_001, 70_002]] = 0.0
    assert draw(logits_V, EDGES, temperature=1.0)[0].tolist() == [70_001] * 3 + [70_002] * 3
    flat_V = np.zeros(151_936, np.float32)
    tokens_B, logprobs_B = draw(flat_V, [0.0, 0.5, 1.0], temperature=1.0)
    assert tokens_B[0] == 0
    assert tokens_B[1] == 75_968
    assert tokens_B[2] == 151_935
    np.testing.assert_allclose(logprobs_B, -np.log(151_936), rtol=1e-6)


def test_underflowing_tails_do_not_swallow_the_last_uniform():
    logits_V = np.full(300, -200.0, np.float32)
    logits_V[10] = 0.0
    assert draw(logits_V, EDGES, temperature=1.0)[0].tolist() == [10] * len(EDGES)


@pytest.mark.parametrize("width", WIDTHS)
def test_temperature_zero_takes_the_first_of_equal_maxima_and_scores_it_at_temperature_one(width):
    logits_V = np.zeros(width, np.float32)
    logits_V[width // 2 :] = 1.5
    tokens_B, logprobs_B = draw(logits_V, EDGES, temperature=0.0)
    assert (tokens_B == width // 2).all()
    np.testing.assert_allclose(logprobs_B, jax.nn.log_softmax(logits_V)[width // 2], rtol=1e-5)


def test_log_probabilities_are_of_the_scaled_distribution_before_the_filters():
    logits_V = random_logits(200, scale=1.0)
    u = np.linspace(0, 0.999, 50)
    reference_V = np.asarray(jax.nn.log_softmax(logits_V / 0.6))
    for settings in ({}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.5}):
        tokens_B, logprobs_B = draw(logits_V, u, temperature=0.6, **settings)
        assert len(set(tokens_B.tolist())) > 1
        np.testing.assert_allclose(logprobs_B, reference_V[tokens_B], rtol=1e-5, atol=1e-5)


def test_top_p_works_inside_top_k():
    logits_V = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    grid = (np.arange(1000) + 0.5) / 1000
    # Of the two kept, 0.4 and 0.3, the first holds 0.57 of the mass: enough for 0.5; it is not of the whole.
    assert set(draw(logits_V, grid, temperature=1.0, top_k=2, top_p=0.5)[0].tolist()) == {0}
    assert set(draw(logits_V, grid, temperature=1.0, top_p=0.5)[0].tolist()) == {0, 1}


def test_ties_at_the_cut_are_broken_by_index():
    flat_V = np.zeros(200, np.float32)
    grid = (np.arange(1000) + 0.5) / 1000
    assert set(draw(flat_V, grid, temperature=1.0, top_k=3)[0].tolist()) == {0, 1, 2}
    assert set(draw(flat_V, grid, temperature=1.0, top_p=0.02)[0].tolist()) == {0, 1, 2, 3}
    assert set(draw(flat_V, grid, temperature=1.0, top_k=10, top_p=0.5)[0].tolist()) == {0, 1, 2, 3, 4}
    assert set(draw(-flat_V, grid, temperature=1.0, top_k=1)[0].tolist()) == {0}


def test_a_tiny_temperature_is_greedy_and_stays_finite():
    logits_V = random_logits(150)
    tokens_B, logprobs_B = draw(logits_V, EDGES, temperature=1e-6)
    assert (tokens_B == logits_V.argmax()).all()
    assert (logprobs_B == 0).all()


def test_a_row_of_nan_shows_in_its_log_probability_alone():
    logits_BV = jnp.asarray(np.stack([random_logits(150), np.full(150, np.nan)]), jnp.float32)
    for settings in ({"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 1.0, "top_k": 3}):
        tokens_B, logprobs_B = sample_tokens(logits_BV, jnp.array([0.3, 0.3]), **settings)
        assert np.isnan(logprobs_B).tolist() == [False, True]
        assert ((tokens_B >= 0) & (tokens_B < 150)).all()


def test_a_row_draws_the_same_in_every_batch():
    logits_BV = jnp.asarray(np.random.default_rng(0).normal(size=(32, 300)), jnp.float32)
    ids_B, positions_B = jnp.arange(32) * 5 + 1, jnp.arange(32) % 7

    @jax.jit
    def tokens(rows):
        keys = row_keys(jax.random.key(3), ids_B[rows])
        return sample_tokens(logits_BV[rows], uniforms(keys, positions_B[rows]), temperature=1.0)[0]

    whole_B = tokens(jnp.arange(32))
    assert len(set(whole_B.tolist())) > 10
    for rows in ([4], [31, 0, 7], list(range(31, -1, -1))):
        assert (tokens(jnp.array(rows)) == whole_B[jnp.array(rows)]).all()


def test_numbers_depend_on_key_row_and_position():
    ids_B = jnp.array([1, 1, 2, 1])
    u_B = uniforms(row_keys(jax.random.key(0), ids_B), jnp.array([5, 6, 5, 5]))
    assert u_B[0] == u_B[3]
    assert len(set(u_B.tolist())) == 3
    other_B = uniforms(row_keys(jax.random.key(1), ids_B), jnp.array([5, 6, 5, 5]))
    assert not (u_B == other_B).any()


def test_jit_changes_no_token():
    logits_BV = jnp.asarray(np.random.default_rng(0).normal(size=(16, 300)), jnp.float32)
    u_B = jax.random.uniform(jax.random.key(0), (16,))
    for settings in ({}, {"top_k": 7}, {"top_p": 0.9}):
        plain_B, plain_logprobs_B = sample_tokens(logits_BV, u_B, temperature=1.3, **settings)
        jitted_B, jitted_logprobs_B = jitted_sample(logits_BV, u_B, temperature=1.3, **settings)
        assert (plain_B == jitted_B).all()
        np.testing.assert_allclose(plain_logprobs_B, jitted_logprobs_B, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": 1e-38},
        {"temperature": 1.0, "top_k": -1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_p": 1.5},
    ],
)
def test_meaningless_settings_are_refused(settings):
    with pytest.raises(ArgumentError):
        sample_tokens(jnp.zeros((1, 4)), jnp.zeros(1), **settings)
