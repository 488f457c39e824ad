"""GiGPO: advantages from whole episodes plus advantages among turns that started from the same state."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms.common import played_turns, turn_advantages_to_tokens
from jaxrl_agent.algorithms.groups import EQUAL_SPREAD, Keys, dense_ids, first_rows, group_moments
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.types import Rollout

MODES = ("mean_norm", "mean_std_norm")
EPISODE_BASELINES = ("trajectories", "steps")
EPSILON = 1e-6


def advantages(
    turn_rewards: jax.Array,
    trajectory_ids: Keys,
    group_ids: Keys,
    state_keys: Keys,
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    mode: str = "mean_norm",
    episode_baseline: str = "trajectories",
    mask: jax.Array | None = None,
    invalid: jax.Array | None = None,
    invalid_penalty: float = 0.1,
) -> jax.Array:
    """Compute A = A_episode + omega * A_step for each turn.

    A_episode = R - mean over the group, R the sum of a trajectory's turn rewards. A_step = G_t - mean over the anchor
    group: all turns of the group, in any trajectory, with an equal state key; G_t = r_t + gamma G_{t+1}. The mode
    `mean_std_norm` divides both by (std, ddof 1, + 1e-6). A lone turn, and values that spread by less than 1e-6,
    get exactly 0. Source: "GiGPO"; arXiv 2505.10978, sections 4.1 and 4.2.

    Deviations: 1. the episode baseline counts each trajectory once, as the paper's equation does; the reference code
    counts it once for each of its turns (`episode_baseline="steps"`). 2. States match by exact key only.

    Args:
        turn_rewards: [N] turns, in order of (trajectory, turn).
        trajectory_ids: [N]; need only be distinct within a group.
        group_ids: [N], the instance.
        state_keys: [N] or [N, columns], the state that a turn started from.
        gamma: discount of the step return.
        omega: weight of the step advantage.
        mode: `mean_norm` or `mean_std_norm`.
        episode_baseline: `trajectories` or `steps`.
        mask: bool [N]; turns that are False (padding) enter nothing and get 0.
        invalid: bool [N], turns whose action was unusable; None for a strict reproduction.
        invalid_penalty: taken off the step return of an invalid turn, and of no earlier one.

    Returns:
        float32 [N].

    Raises:
        ArgumentError: unknown `mode` or `episode_baseline`.
    """
    if mode not in MODES or episode_baseline not in EPISODE_BASELINES:
        raise ArgumentError(
            f"mode must be one of {', '.join(MODES)} and episode_baseline one of {', '.join(EPISODE_BASELINES)}",
            value=(mode, episode_baseline),
        )
    rewards_N = jnp.asarray(turn_rewards, jnp.float32)
    chex.assert_rank(rewards_N, 1)
    mask_N = jnp.ones(rewards_N.shape, bool) if mask is None else jnp.asarray(mask, bool)
    rewards_N = jnp.where(mask_N, rewards_N, 0.0)
    group_N, trajectory_N = dense_ids(group_ids), dense_ids(group_ids, trajectory_ids)
    anchor_N = dense_ids(group_ids, state_keys)

    episode_return_N = jax.ops.segment_sum(rewards_N, trajectory_N, len(rewards_N))[trajectory_N]
    counted_N = first_rows(trajectory_N, mask_N) if episode_baseline == "trajectories" else mask_N
    step_return_N = step_returns(rewards_N, trajectory_N, gamma=gamma)
    if invalid is not None:
        step_return_N -= invalid_penalty * jnp.asarray(invalid, jnp.float32)

    divide = mode == "mean_std_norm"
    episode_N = _relative(episode_return_N, group_N, counted_N, divide=divide)
    step_N = _relative(step_return_N, anchor_N, mask_N, divide=divide)
    return jnp.where(mask_N, episode_N + omega * step_N, 0.0)


def estimate_gigpo(
    rollout: Rollout,
    *,
    counted_B: jax.Array | None = None,
    gamma: float = 0.95,
    omega: float = 1.0,
    mode: str = "mean_norm",
    episode_baseline: str = "trajectories",
    invalid_penalty: float = 0.1,
) -> jax.Array:
    """Estimate token advantages of a rollout by `advantages`; see `ALGORITHMS`. A penalty of 0 is the paper's own."""
    turns = rollout.turns
    rows, count = turns.reward_BT.shape
    played_BT = played_turns(rollout.n_turns_B, count)
    if counted_B is not None:
        played_BT &= counted_B[:, None]

    def each_turn(values_B: jax.Array) -> jax.Array:
        return jnp.repeat(values_B, count)

    per_turn_N = advantages(
        turns.reward_BT.ravel(),
        each_turn(jnp.arange(rows)),
        each_turn(rollout.group_B),
        turns.key_BTK.reshape(rows * count, -1),
        gamma=gamma,
        omega=omega,
        mode=mode,
        episode_baseline=episode_baseline,
        mask=played_BT.ravel(),
        invalid=turns.action_BT.ravel() < 0,
        invalid_penalty=invalid_penalty,
    )
    per_turn_BT = per_turn_N.reshape(rows, count)
    return turn_advantages_to_tokens(per_turn_BT, rollout.batch.turn_BL, rollout.batch.loss_mask_BL)


def step_returns(turn_rewards: jax.Array, trajectory_ids: Keys, *, gamma: float) -> jax.Array:
    """Compute G_t = r_t + gamma G_{t+1} within each trajectory.

    Args:
        turn_rewards: [N] turns, in order of (trajectory, turn).
        trajectory_ids: [N]; neighbouring turns with equal ids belong together.
        gamma: discount.

    Returns:
        float32 [N].
    """
    rewards_N, ids_N = jnp.asarray(turn_rewards, jnp.float32), dense_ids(trajectory_ids)
    continues_N = jnp.concatenate([ids_N[:-1] == ids_N[1:], jnp.zeros(1, bool)])

    def compose(later, earlier):
        """Chain x -> reward + factor * x, the later piece applied first."""
        return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]

    # A linear recurrence in log N steps: flat batches of turns are long, and a scan over them would be serial.
    factors_N = gamma * continues_N.astype(jnp.float32)
    return jax.lax.associative_scan(compose, (factors_N, rewards_N), reverse=True)[1]


def _relative(values_N: jax.Array, ids_N: jax.Array, counted_N: jax.Array, *, divide: bool) -> jax.Array:
    """Centre each value on its group's mean over the counted rows; 0 for groups without spread."""
    moments = group_moments(values_N, ids_N, counted_N)
    centred_N = values_N - moments.mean_N
    if divide:
        centred_N /= moments.std_N + EPSILON
    return jnp.where(moments.spread_N >= EQUAL_SPREAD, centred_N, 0.0)
