"""One policy update: the same on every mesh and for every micro-batch size, equal to plain autodiff, safe from NaN."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_agent.algorithms import common
from jaxrl_agent.config import AGGREGATIONS, AlgorithmConfig
from jaxrl_agent.learner.optimizer import make_optimizer
from jaxrl_agent.learner.train_state import TrainState, new_state, state_shardings
from jaxrl_agent.learner.update import UpdateSettings, micro_batch_rows, update_policy
from jaxrl_agent.models.qwen3 import forward, init_params
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL, one_device, random_rows

ONE = "one device"
THREE_AXES = "data:2,fsdp:2,tensor:2"
LENGTH, WIDTH, ROWS = 24, 8, 16
ADAMW, _ = make_optimizer(learning_rate=1e-2, weight_decay=0.01, clip_norm=1.0)
SGD = optax.sgd(1.0)  # what a parameter moves by is its gradient
PLAIN = AlgorithmConfig()
EXTRAS = AlgorithmConfig(entropy_coefficient=0.02, kl_coefficient=0.1, importance_cap=1.1)


@functools.cache
def params_of(model):
    return jax.device_get(init_params(model, jax.random.key(0)))


@functools.cache
def rows_of(model):
    return random_rows(model, params_of(model), rows=ROWS, length=LENGTH, width=WIDTH)


@functools.cache
def compiled(settings: UpdateSettings, mesh_text: str):
    """The update as one program for one mesh, and the mesh."""
    mesh = one_device() if mesh_text == ONE else make_mesh(mesh_text)
    return jax.jit(functools.partial(update_policy, settings), donate_argnums=0), mesh


def adamw_settings(model=EVEN_MODEL):
    algorithm = dataclasses.replace(EXTRAS, importance_cap=0.0)
    return UpdateSettings(model, algorithm, ADAMW, 1.0, mini_batches=2, micro_batch_tokens=2 * LENGTH)


def sgd_settings(algorithm=PLAIN, *, micro_batch_tokens=4 * LENGTH):
    return UpdateSettings(EVEN_MODEL, algorithm, SGD, 0.8, mini_batches=1, micro_batch_tokens=micro_batch_tokens)


def start(settings: UpdateSettings, mesh, params=None) -> TrainState:
    """A fresh state in its shardings, in memory of its own."""
    params = params_of(settings.model) if params is None else params
    make = functools.partial(new_state, optimizer=settings.optimizer, key=jax.random.key(1))
    shardings = state_shardings(settings.model, jax.eval_shape(make, params), mesh)
    return jax.jit(make, out_shardings=shardings)(params)


def updated(settings: UpdateSettings, rows, *, mesh_text: str = ONE, params=None):
    """State and metrics after one update, on the host."""
    update, mesh = compiled(settings, mesh_text)
    with jax.set_mesh(mesh):
        state, metrics = update(start(settings, mesh, params), rows, jax.random.key(2))
    state, metrics = jax.device_get((state.replace(key=None), metrics))
    return state, {name: float(value) for name, value in metrics.items()}


@functools.cache
def usual_update(model, mesh_text):
    return updated(adamw_settings(model), rows_of(model), mesh_text=mesh_text)


def assert_close(tree, expected, tolerance):
    """Equal leaf by leaf, relative to the largest entry of the leaf."""
    for (path, leaf), other in zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(expected), strict=True):
        scale = max(float(np.abs(other).max()), 1e-3)
        np.testing.assert_allclose(leaf, other, atol=tolerance * scale, rtol=0, err_msg=jax.tree_util.keystr(path))


def same_bits(tree, expected) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# ---- meshes


@pytest.mark.parametrize(
    ("model", "mesh_text"),
    [(EVEN_MODEL, "data:8"), (EVEN_MODEL, "fsdp:8"), (EVEN_MODEL, THREE_AXES), (ODD_MODEL, THREE_AXES)],
    ids=["data", "fsdp", "three axes", "three axes, odd widths"],
)
def test_an_update_on_eight_devices_equals_that_on_one(model, mesh_text):
    state, metrics = usual_update(model, mesh_text)
    expected_state, expected_metrics = usual_update(model, ONE)
    assert not same_bits(expected_state.params, params_of(model))
    assert_close(state.params, expected_state.params, 1e-5)
    assert_close(state.opt_state, expected_state.opt_state, 1e-5)
    assert metrics.keys() == expected_metrics.keys()
    for name, value in metrics.items():
        assert value == pytest.approx(expected_metrics[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("mesh_text", ["fsdp:8", THREE_AXES])
def test_parameters_and_moments_are_split_before_and_after(mesh_text):
    settings = adamw_settings()
    update, mesh = compiled(settings, mesh_text)
    with jax.set_mesh(mesh):
        before = start(settings, mesh)
        expected = jax.tree.map(lambda leaf: leaf.sharding, before)
        after, _ = update(before, rows_of(EVEN_MODEL), jax.random.key(2))
    kept = jax.tree.map(lambda leaf, old: leaf.sharding.is_equivalent_to(old, leaf.ndim), after, expected)
    assert all(jax.tree.leaves(kept))
    adam = next(part for part in jax.tree.leaves(after.opt_state, is_leaf=has_moments) if has_moments(part))
    for tree in (after.params, adam.mu, adam.nu):
        kernel = tree["layers"]["self_attn"]["q_proj"]["kernel"]
        parts = {8: 8, 2: 4}[mesh.shape["fsdp"]]  # fsdp splits the rows, tensor the heads
        assert kernel.addressable_shards[0].data.size * parts == kernel.size
        held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(tree))
        assert held < 1.2 / parts * sum(leaf.size for leaf in jax.tree.leaves(tree))


def has_moments(node) -> bool:
    return hasattr(node, "mu")


# ---- memory and compilation


@pytest.mark.parametrize("mesh_text", [ONE, "fsdp:8"])
def test_the_state_is_donated_without_a_copy(mesh_text):
    settings = adamw_settings()
    update, mesh = compiled(settings, mesh_text)
    with jax.set_mesh(mesh):
        state = start(settings, mesh)
        program = update.lower(state, rows_of(EVEN_MODEL), jax.random.key(2)).compile()
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
        assert program.memory_analysis().alias_size_in_bytes == held
        update(state, rows_of(EVEN_MODEL), jax.random.key(2))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("mesh_text", [ONE, THREE_AXES])
def test_later_updates_compile_nothing(mesh_text):
    settings = adamw_settings()
    update, mesh = compiled(settings, mesh_text)
    keys = [jax.random.key(seed) for seed in range(4)]
    with jax.set_mesh(mesh):
        state, _ = update(start(settings, mesh), rows_of(EVEN_MODEL), keys[0])
        programs = compiled_programs()
        for key in keys[1:]:
            state, _ = update(state, rows_of(EVEN_MODEL), key)
    assert compiled_programs() == programs


# ---- micro-batches


@pytest.mark.parametrize("tokens", [1, 10_000], ids=["row by row", "all at once"])
def test_the_size_of_micro_batches_changes_rounding_alone(tokens):
    rows = rows_of(EVEN_MODEL)
    state, metrics = updated(sgd_settings(micro_batch_tokens=tokens), rows)
    expected_state, expected_metrics = updated(sgd_settings(), rows)
    assert_close(state.params, expected_state.params, 1e-6)
    for name, value in metrics.items():
        assert value == pytest.approx(expected_metrics[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(
    ("rows", "width", "tokens", "shards", "expected"),
    [
        (64, 68, 560, 1, 8),  # 8 rows of 68 tokens are 544
        (64, 68, 67, 1, 1),  # one row is the least
        (64, 68, 10**6, 1, 64),
        (60, 100, 700, 1, 6),  # 7 does not divide 60
        (64, 68, 560, 8, 64),
        (64, 68, 68, 8, 8),  # one row a device
        (6, 68, 68, 8, 6),  # fewer rows than devices
        (12, 10, 10, 8, 6),  # no divisor within 8 rows is a multiple of 8
        (1, 10, 1, 1, 1),
    ],
)
def test_micro_batches_are_the_largest_divisor_that_fits_whole_shards_first(rows, width, tokens, shards, expected):
    assert micro_batch_rows(rows, width, tokens, shards) == expected


# ---- against plain autodiff


@functools.cache
def plain_scores():
    """Log-probabilities and entropies of all tokens from whole logits, [B, L], as a function of the parameters."""

    @jax.jit
    def scores(params, tokens_BL, lengths_B):
        logits_BLV = forward(EVEN_MODEL, params, tokens_BL, lengths_B) / 0.8
        logp_BLV = jax.nn.log_softmax(logits_BLV)[:, :-1]
        logprobs_BL = jnp.take_along_axis(logp_BLV, tokens_BL[:, 1:, None], axis=-1)[..., 0]
        entropy_BL = -jnp.sum(jnp.exp(logp_BLV) * logp_BLV, axis=-1)
        return tuple(jnp.pad(values_BL, ((0, 0), (1, 0))) for values_BL in (logprobs_BL, entropy_BL))

    rows = rows_of(EVEN_MODEL)
    return jax.vjp(lambda params: scores(params, rows.tokens_BL, rows.lengths_B), params_of(EVEN_MODEL))


def scatter(values_BW, rows):
    """Put values of sampled tokens back to their columns."""
    values_BL = np.zeros(rows.tokens_BL.shape, values_BW.dtype)
    np.put_along_axis(values_BL, rows.positions_BW, np.where(rows.mask_BW, values_BW, 0), axis=1)
    return values_BL


def plain_gradient(loss_of_scores):
    """Loss and its gradient by the chain rule over whole rows of scores."""
    scores, back = plain_scores()
    loss, score_grads = jax.value_and_grad(loss_of_scores, argnums=(0, 1))(*scores)
    return float(loss), back(score_grads)[0]


def plain_policy_loss(rows, logprobs_BL, algorithm: AlgorithmConfig, **options):
    return common.policy_loss(
        logprobs_BL,
        scatter(rows.old_logprobs_BW, rows),
        scatter(rows.advantages_BW, rows),
        scatter(rows.mask_BW, rows),
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        dual_clip=algorithm.dual_clip or None,
        aggregation=algorithm.aggregation,
        max_length=WIDTH,
        **options,
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_is_that_of_the_loss_of_the_whole_mini_batch(aggregation):
    rows = rows_of(EVEN_MODEL)
    algorithm = AlgorithmConfig(aggregation=aggregation, dual_clip=3.0 if aggregation == "token_mean" else 0.0)
    state, metrics = updated(sgd_settings(algorithm), rows)
    loss, gradient = plain_gradient(lambda logprobs_BL, _: plain_policy_loss(rows, logprobs_BL, algorithm))
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    moved = jax.tree.map(np.subtract, params_of(EVEN_MODEL), state.params)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    assert largest > 1e-4
    for leaf, expected in zip(jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-5 * largest + 1e-7)  # 1e-7: rounding of the parameter itself


def test_kl_entropy_and_importance_weights_enter_the_gradient_with_their_signs():
    rows = rows_of(EVEN_MODEL)
    drift_BW = np.where(rows.mask_BW, np.random.default_rng(1).normal(0, 0.2, rows.mask_BW.shape), 0)
    rows = rows.replace(sampler_logprobs_BW=(rows.old_logprobs_BW + drift_BW).astype(np.float32))
    state, metrics = updated(sgd_settings(EXTRAS), rows)
    mask_BL, drift_BL, ref_BL = (scatter(part, rows) for part in (rows.mask_BW, drift_BW, rows.ref_logprobs_BW))
    weight_BL = np.minimum(np.exp(-drift_BL), 1.1)
    assert (weight_BL == 1.1).any()
    assert (weight_BL < 1).any()

    def loss_of(logprobs_BL, entropy_BL):
        loss = plain_policy_loss(rows, logprobs_BL, EXTRAS, importance_weights_BL=weight_BL)
        away_BL = ref_BL - logprobs_BL
        k3_BL = jnp.exp(away_BL) - away_BL - 1
        share = functools.partial(
            common.aggregate, loss_mask_BL=mask_BL, aggregation=EXTRAS.aggregation, max_length=WIDTH
        )
        return loss + 0.1 * share(k3_BL) - 0.02 * share(entropy_BL)

    loss, gradient = plain_gradient(loss_of)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    moved = jax.tree.map(np.subtract, params_of(EVEN_MODEL), state.params)
    assert_close(moved, jax.device_get(gradient), 1e-4)


def test_metrics_are_means_over_the_tokens_in_the_loss():
    rows = rows_of(EVEN_MODEL)
    _, metrics = updated(sgd_settings(EXTRAS), rows)
    mask_BL = scatter(rows.mask_BW, rows)
    logprobs, entropy = (np.asarray(values_BL)[mask_BL] for values_BL in plain_scores()[0])
    old, ref, advantages = (
        scatter(part, rows)[mask_BL] for part in (rows.old_logprobs_BW, rows.ref_logprobs_BW, rows.advantages_BW)
    )
    ratio = np.exp(logprobs - old)
    clipped = ((advantages > 0) & (ratio > 1.28)) | ((advantages < 0) & (ratio < 0.8))
    assert 0 < clipped.mean() < 1
    expected = {
        "loss_tokens": mask_BL.sum(),
        "entropy": entropy.mean(),
        "clip_fraction": clipped.mean(),
        "kl": (np.exp(old - logprobs) - (old - logprobs) - 1).mean(),
        "reference_kl": (np.exp(ref - logprobs) - (ref - logprobs) - 1).mean(),
        "sampler_trainer_max_diff": np.abs(logprobs - old).max(),
        "sampler_trainer_mean_diff": np.abs(logprobs - old).mean(),
        "skipped_steps": 0,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


# ---- what has a gradient


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.25, 1.0, True),
        (1.3, 1.0, False),
        (0.85, -1.0, True),
        (0.75, -1.0, False),
        (1.3, -1.0, True),
        (0.7, 1.0, True),
    ],
)
def test_ratios_beyond_the_clip_give_no_gradient_and_upwards_there_is_more_room(ratio, advantage, moves):
    rows = rows_of(EVEN_MODEL)
    logprobs_BL = np.asarray(plain_scores()[0][0])
    now_BW = np.take_along_axis(logprobs_BL, rows.positions_BW, axis=1)
    rows = rows.replace(
        old_logprobs_BW=(now_BW - np.log(ratio)).astype(np.float32),
        advantages_BW=np.where(rows.mask_BW, advantage, 0).astype(np.float32),
    )
    state, metrics = updated(sgd_settings(), rows)
    assert same_bits(state.params, params_of(EVEN_MODEL)) != moves
    assert (metrics["clip_fraction"] == 0) == moves


def test_the_entropy_bonus_raises_entropy():
    settings, rows = sgd_settings(EXTRAS), rows_of(EVEN_MODEL)
    now_BW = np.take_along_axis(np.asarray(plain_scores()[0][0]), rows.positions_BW, axis=1)
    # Without advantages, and at the reference, where k3 is flat, nothing else moves the policy.
    rows = rows.replace(advantages_BW=np.zeros_like(now_BW), ref_logprobs_BW=now_BW)
    state, before = updated(settings, rows)
    _, after = updated(settings, rows, params=state.params)
    assert before["reference_kl"] == pytest.approx(0, abs=1e-9)
    assert after["entropy"] > before["entropy"]


def test_tokens_outside_the_loss_mask_have_no_say_whatever_they_hold():
    rows = rows_of(EVEN_MODEL)
    mask_BW = rows.mask_BW & (np.arange(ROWS) % 4 > 0)[:, None]  # rows that a limit cut
    expected, expected_metrics = updated(sgd_settings(), rows.replace(mask_BW=mask_BW))
    spoiled = rows.replace(
        mask_BW=mask_BW,
        advantages_BW=np.where(mask_BW, rows.advantages_BW, np.nan),
        old_logprobs_BW=np.where(mask_BW, rows.old_logprobs_BW, np.inf),
    )
    state, metrics = updated(sgd_settings(), spoiled)
    assert same_bits(state, expected)
    assert metrics == expected_metrics
    assert metrics["loss_tokens"] == mask_BW.sum()


# ---- the guard


@pytest.mark.parametrize("poison", ["advantages", "parameters"])
def test_an_update_that_is_not_finite_changes_no_bit_and_is_counted(poison):
    settings, rows, params = adamw_settings(), rows_of(EVEN_MODEL), params_of(EVEN_MODEL)
    if poison == "advantages":
        rows = rows.replace(advantages_BW=np.full_like(rows.advantages_BW, np.nan))
    else:
        scale = params["norm"]["scale"].copy()
        scale[3] = np.nan
        params = params | {"norm": {"scale": scale}}
    before = jax.device_get(start(settings, one_device(), params).replace(key=None))
    state, metrics = updated(settings, rows, params=params)
    assert same_bits((state.params, state.opt_state), (before.params, before.opt_state))
    assert metrics["skipped_steps"] == settings.mini_batches
    assert (int(state.skips.consecutive), int(state.skips.total)) == (2, 2)


def test_one_bad_row_costs_its_mini_batch_alone():
    rows = rows_of(EVEN_MODEL)
    advantages_BW = rows.advantages_BW.copy()
    advantages_BW[5, 0] = np.nan
    state, metrics = updated(adamw_settings(), rows.replace(advantages_BW=advantages_BW))
    assert metrics["skipped_steps"] == int(state.skips.total) == 1
    assert not same_bits(state.params, params_of(EVEN_MODEL))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
