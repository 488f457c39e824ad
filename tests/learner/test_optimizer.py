from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_agent.errors import ConfigError, NonFiniteError
from jaxrl_agent.learner import optimizer


def params():
    return {
        "layers": {
            "input_layernorm": {"scale": jnp.ones((2, 3))},  # stacked over layers: rank 2, and yet a norm
            "q_proj": {"kernel": jnp.full((2, 3, 3), 0.5), "bias": jnp.full((2, 3), 0.5)},
        },
        "embed_tokens": {"embedding": jnp.full((4, 3), 0.5)},
    }


def test_warmup_learns_from_the_first_step_and_peaks_at_its_end():
    rate = optimizer.make_schedule(learning_rate=0.8, warmup=4)
    np.testing.assert_allclose([rate(step) for step in range(6)], [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1, 1]), ("linear", [1, 0.8, 0.6, 0.2]), ("cosine", [1, 0.88284271, 0.6, 0.2])],
)
def test_schedules_fall_to_the_final_fraction_and_stay(schedule, expected):
    rate = optimizer.make_schedule(learning_rate=1.0, schedule=schedule, warmup=10, total_steps=50, final_fraction=0.2)
    for function in (rate, jax.jit(rate)):
        np.testing.assert_allclose([function(step) for step in (10, 20, 30, 50)], expected, rtol=1e-6)
        np.testing.assert_allclose(function(1000), expected[-1], rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "step"},
        {"schedule": "linear"},
        {"schedule": "cosine", "warmup": 10, "total_steps": 10},
        {"warmup": -1},
        {"final_fraction": 1.5},
    ],
)
def test_impossible_schedules_are_refused(options):
    with pytest.raises(ConfigError):
        optimizer.make_optimizer(learning_rate=1e-3, **options)


def test_weight_decay_leaves_norms_and_biases_alone():
    transformation, _ = optimizer.make_optimizer(learning_rate=0.1, weight_decay=0.5)
    tree = params()
    grads = jax.tree.map(jnp.zeros_like, tree)
    updates, _ = transformation.update(grads, transformation.init(tree), tree)
    assert not updates["layers"]["input_layernorm"]["scale"].any()
    assert not updates["layers"]["q_proj"]["bias"].any()
    np.testing.assert_allclose(updates["layers"]["q_proj"]["kernel"], -0.1 * 0.5 * 0.5, rtol=1e-6)
    np.testing.assert_allclose(updates["embed_tokens"]["embedding"], -0.1 * 0.5 * 0.5, rtol=1e-6)


def test_two_adamw_steps_equal_the_formula():
    lr, b1, b2, eps, decay = 0.01, 0.8, 0.9, 1e-3, 0.1
    transformation, _ = optimizer.make_optimizer(learning_rate=lr, b1=b1, b2=b2, eps=eps, weight_decay=decay)
    tree = {"w": {"kernel": jnp.array([1.0, -2.0])}}
    state, x, m, v = transformation.init(tree), np.array([1.0, -2.0]), 0.0, 0.0
    for step, gradient in enumerate(([0.3, -0.1], [0.2, 0.4]), start=1):
        gradient = np.array(gradient)
        updates, state = transformation.update({"w": {"kernel": jnp.asarray(gradient, jnp.float32)}}, state, tree)
        tree = optax.apply_updates(tree, updates)
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        x = x - lr * (m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps) + decay * x)
        np.testing.assert_allclose(tree["w"]["kernel"], x, rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm_before_the_moments():
    tree = {"a": {"kernel": jnp.zeros(2)}, "b": {"kernel": jnp.zeros(1)}}
    grads = {"a": {"kernel": jnp.array([3.0, 0.0])}, "b": {"kernel": jnp.array([4.0])}}
    for clip_norm, factor in ((1.0, 0.2), (10.0, 1.0), (None, 1.0), (0.0, 1.0)):
        transformation, _ = optimizer.make_optimizer(learning_rate=0.1, b1=0.9, clip_norm=clip_norm)
        _, state = transformation.update(grads, transformation.init(tree), tree)
        moments = optax.tree.get(state, "mu")
        np.testing.assert_allclose(moments["a"]["kernel"], [0.3 * factor, 0], rtol=1e-5)
        np.testing.assert_allclose(moments["b"]["kernel"], [0.4 * factor], rtol=1e-5)


def test_the_learning_rate_may_be_traced():
    def first_update(learning_rate):
        transformation, _ = optimizer.make_optimizer(learning_rate=learning_rate)
        tree = {"kernel": jnp.ones(1)}
        return transformation.update(tree, transformation.init(tree), tree)[0]["kernel"][0]

    np.testing.assert_allclose(jax.vmap(first_update)(jnp.array([0.1, 0.2])), [-0.1, -0.2], rtol=1e-5)


def equal_bits(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bad", ["nan loss", "nan gradient", "infinite gradient", "overflowing norm"])
def test_a_step_that_is_not_finite_changes_no_bit_and_is_counted(compiled, bad):
    transformation, _ = optimizer.make_optimizer(learning_rate=0.1, weight_decay=0.1, clip_norm=1.0)

    def step(tree, state, grads, loss, skips):
        return optimizer.apply_if_finite(transformation, tree, state, grads, loss, skips)

    step = jax.jit(step) if compiled else step
    tree = params()
    good = jax.tree.map(jnp.ones_like, tree)
    after, state, skips, norm = step(tree, transformation.init(tree), good, 1.0, optimizer.SkipCounter.zero())
    assert not equal_bits(after, tree)
    assert (int(skips.consecutive), int(skips.total)) == (0, 0)
    np.testing.assert_allclose(norm, np.sqrt(6 + 18 + 6 + 12), rtol=1e-6)

    value = {"nan gradient": np.nan, "infinite gradient": np.inf, "overflowing norm": 1e30}.get(bad, 1.0)
    spoiled = good | {"embed_tokens": {"embedding": good["embed_tokens"]["embedding"].at[2, 1].set(value)}}
    loss = np.nan if bad == "nan loss" else 1.0
    for count in (1, 2):
        held, held_state, skips, _ = step(after, state, spoiled, loss, skips)
        assert equal_bits(held, after)
        assert equal_bits(held_state, state)
        assert (int(skips.consecutive), int(skips.total)) == (count, count)

    moved, _, skips, _ = step(held, held_state, good, 1.0, skips)
    assert not equal_bits(moved, held)
    assert (int(skips.consecutive), int(skips.total)) == (0, 2)


def test_too_many_skips_in_a_row_stop_the_run():
    skips = optimizer.SkipCounter(consecutive=jnp.int32(3), total=jnp.int32(7))
    optimizer.check_skips(skips, limit=4)
    with pytest.raises(NonFiniteError, match="in a row"):
        optimizer.check_skips(skips, limit=3)
