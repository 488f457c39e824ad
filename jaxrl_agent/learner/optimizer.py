"""AdamW with warm-up, schedule and clipping, and a guard that skips an update that is not finite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl_agent.errors import ConfigError, NonFiniteError

SCHEDULES = ("constant", "linear", "cosine")
_NOT_DECAYED = ("scale", "bias")  # linen's names for the parameters of norms and for biases

Tree = Any


@struct.dataclass
class SkipCounter:
    """How many optimizer steps were skipped because something was not finite."""

    consecutive: jax.Array  # int32 scalar, optimizer steps; 0 after one that was applied
    total: jax.Array  # int32 scalar, optimizer steps since the start of the run

    @classmethod
    def zero(cls) -> SkipCounter:
        """The counter at the start of a run."""
        return cls(consecutive=jnp.zeros((), jnp.int32), total=jnp.zeros((), jnp.int32))


def make_optimizer(
    *,
    learning_rate: float,
    schedule: str = "constant",
    warmup: int = 0,
    total_steps: int | None = None,
    final_fraction: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Build AdamW (arXiv 1711.05101) behind global-norm clipping.

    Gradients are clipped first, so that the moments never see an outlier. Norm scales and biases do not decay.

    Args:
        learning_rate: peak learning rate; may be traced.
        schedule: `constant`, `linear` or `cosine`, after the warm-up.
        warmup: optimizer steps of linear warm-up.
        total_steps: optimizer steps of the run, for `linear` and `cosine`.
        final_fraction: last learning rate over the peak, for `linear` and `cosine`.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times the learning rate.
        clip_norm: largest global gradient norm; None or 0 does not clip.

    Returns:
        The gradient transformation, and the learning rate as a function of the optimizer step (from 0).

    Raises:
        ConfigError: as `make_schedule`.
    """
    rate = make_schedule(
        learning_rate=learning_rate,
        schedule=schedule,
        warmup=warmup,
        total_steps=total_steps,
        final_fraction=final_fraction,
    )
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    adamw = optax.adamw(rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decayed)
    return optax.chain(clip, adamw), rate


def with_critic(
    policy: optax.GradientTransformation,
    *,
    learning_rate: float,
    clip_norm: float | None = 1.0,
    trunk: optax.GradientTransformation | None = None,
) -> optax.GradientTransformation:
    """Train {"policy", "critic"}, each part by itself and clipped by its own norm.

    Args:
        policy: of the policy.
        learning_rate: of the critic's head, which Adam trains at a constant rate.
        clip_norm: largest gradient norm of the head; None or 0 does not clip.
        trunk: of a separate critic's trunk, which is as large as the policy and wants its rate.
    """
    clip = optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity()
    parts = {"policy": policy, "head": optax.chain(clip, optax.adam(learning_rate))}
    critic = {"head": "head"}
    if trunk is not None:
        parts["trunk"], critic["trunk"] = trunk, "trunk"
    return optax.partition(parts, {"policy": "policy", "critic": critic})


def hold_policy(held: jax.Array, old: tuple[Tree, Tree], new: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Undo what a step of `with_critic` did to the policy, if `held` (bool scalar): (trained, opt_state) each."""

    def keep(new_part, old_part):
        return jax.tree.map(lambda new_leaf, old_leaf: jnp.where(held, old_leaf, new_leaf), new_part, old_part)

    (old_trained, old_state), (trained, state) = old, new
    inner = {**state.inner_states, "policy": keep(state.inner_states["policy"], old_state.inner_states["policy"])}
    trained = {**trained, "policy": keep(trained["policy"], old_trained["policy"])}
    return trained, state._replace(inner_states=inner)


def make_schedule(
    *,
    learning_rate: float,
    schedule: str = "constant",
    warmup: int = 0,
    total_steps: int | None = None,
    final_fraction: float = 0.0,
) -> optax.Schedule:
    """Build the learning rate as a function of the optimizer step.

    Warm-up: peak * (step + 1) / warmup, so that the first step already learns. Afterwards, with x from 0 at the end
    of the warm-up to 1 at `total_steps` and f = final_fraction:
        constant  peak
        linear    peak * (1 - (1 - f) x)
        cosine    peak * (f + (1 - f) (1 + cos(pi x)) / 2)

    Args:
        learning_rate: peak learning rate; may be traced.
        schedule: `constant`, `linear` or `cosine`.
        warmup: optimizer steps of warm-up, 0 or more.
        total_steps: optimizer steps of the run; afterwards the last rate stays.
        final_fraction: f, within 0..1.

    Returns:
        A function from the step (int, or int32 array) to a float32 scalar.

    Raises:
        ConfigError: unknown schedule, `linear` or `cosine` without `total_steps` beyond the warm-up, or
            `final_fraction` or `warmup` out of range.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"a schedule must be one of {', '.join(SCHEDULES)}", value=schedule)
    if warmup < 0 or not 0 <= final_fraction <= 1:
        raise ConfigError("warmup must be 0 or more and final_fraction within 0..1", value=(warmup, final_fraction))
    if schedule != "constant" and (total_steps is None or total_steps <= warmup):
        raise ConfigError(
            f"schedule {schedule} needs more total_steps than warm-up steps",
            value={"total_steps": total_steps, "warmup": warmup},
            remedy="Lower warmup (of config.optimizer, or config.warm_start.optimizer), lengthen the run, or use "
            "schedule=constant.",
        )

    def rate(step: jax.Array | int) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        shape = jnp.ones_like(step)
        if schedule != "constant":
            x = jnp.clip((step - warmup) / (total_steps - warmup), 0.0, 1.0)
            fall = x if schedule == "linear" else (1 - jnp.cos(jnp.pi * x)) / 2
            shape = 1 - (1 - final_fraction) * fall
        return learning_rate * shape * jnp.minimum((step + 1) / max(warmup, 1), 1.0)

    return rate


def decayed(params: Tree) -> Tree:
    """Mark the parameters that weight decay applies to: all but norm scales and biases.

    By name, because the parameters of stacked layers have one axis more than those of a single one.

    Args:
        params: nested dict of arrays.

    Returns:
        Tree of bool, same structure.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in _NOT_DECAYED, params)


def apply_if_finite(
    optimizer: optax.GradientTransformation,
    params: Tree,
    opt_state: Tree,
    grads: Tree,
    loss: jax.Array,
    skips: SkipCounter,
) -> tuple[Tree, Tree, SkipCounter, jax.Array]:
    """Take one optimizer step, or none at all if the loss or a gradient is not finite.

    A skipped step leaves parameters and optimizer state (moments, step count) bit for bit as they were. A gradient
    norm that overflows counts as not finite: clipping by it would turn every gradient into 0.

    Args:
        optimizer: gradient transformation.
        params: parameters.
        opt_state: the optimizer's state.
        grads: gradients, same structure as `params`.
        loss: scalar.
        skips: counter so far.

    Returns:
        params, opt_state, skips, and the global gradient norm before clipping (float32 scalar).
    """
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, new_state = optimizer.update(grads, opt_state, params)
    new_params = optax.apply_updates(params, updates)
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old), (new_params, new_state), (params, opt_state)
    )
    skipped = 1 - finite.astype(jnp.int32)
    skips = SkipCounter(consecutive=(skips.consecutive + 1) * skipped, total=skips.total + skipped)
    return params, opt_state, skips, grad_norm


def check_skips(skips: SkipCounter, *, limit: int) -> None:
    """Stop a run that no longer learns; called on the host between updates.

    Args:
        skips: counter after the latest update.
        limit: consecutive skipped optimizer steps that end the run.

    Raises:
        NonFiniteError: the limit is reached.
    """
    if int(skips.consecutive) >= limit:
        raise NonFiniteError(
            f"fewer than {limit} optimizer steps in a row may have a loss or a gradient that is not finite",
            value=int(skips.consecutive),
            remedy="Lower the learning rate or the clip norm, or look for a row with broken log-probabilities.",
        )
