"""What one rollout says about the policy: rewards by trajectory and by step, turns, stop reasons, useful groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms.grpo import informative_rows
from jaxrl_agent.learner.experience import Experience, StepSettings, paid_rollout
from jaxrl_agent.learner.packing import MACHINERY
from jaxrl_agent.rollout.budget import N_LEVELS
from jaxrl_agent.types import StopReason


def summarise(settings: StepSettings, experience: Experience) -> dict[str, jax.Array]:
    """Compute the metrics of one rollout on device.

    They speak of all trajectories that were sampled, those on groups and their gradient of what is trained on.

    The step reward is the quality of the action taken (on a lake its Q* at gamma 0.99, of a program the share of tests
    that it passes), averaged in three ways, because long failing trajectories drag the pooled mean down without any
    change of skill ("Training dynamics").

    Args:
        settings: static settings; they say which rewards are paid and which rows count, hence in which groups
            returns differ.
        experience: from `roll_out`.

    Returns:
        float32 scalars trajectory_reward, success, turns, tokens, sampled_tokens, step_reward_pooled,
        step_reward_mean_of_means, step_reward_first_turn, regret (value of the best action minus the taken one's),
        optimal_share (steps without regret), invalid_share, zero_variance_groups (share); stop_reasons [reasons]
        (shares in the order of StopReason); effective_groups_by_budget and groups_by_budget [10] (counts).
    """
    rollout, turns = experience.sampled, experience.sampled.turns
    # The last turn of a trajectory that its environment failed has no answer: it says nothing about the policy.
    counts_B = rollout.n_turns_B - jnp.isin(rollout.stop_B, jnp.array([reason.code for reason in MACHINERY]))
    played_BT = jnp.arange(turns.action_BT.shape[1]) < counts_B[:, None]
    steps, began = jnp.maximum(played_BT.sum(), 1), jnp.maximum((counts_B > 0).sum(), 1)
    quality_BT = jnp.where(played_BT, turns.step_quality_BT, 0.0)
    regret_BT = jnp.where(played_BT, turns.best_quality_BT - turns.step_quality_BT, 0.0)
    groups = experience.fraction_P.shape[0]
    paid, counted_B = paid_rollout(settings, experience.rollout)
    useful_B = informative_rows(paid.return_B, paid.group_B, mask_B=counted_B)
    useful_P = useful_B.reshape(groups, -1).any(axis=1)
    level_PF = jax.nn.one_hot(experience.fraction_P, N_LEVELS)
    return {
        "trajectory_reward": rollout.return_B.mean(),
        "success": rollout.success_B.mean(),
        "turns": rollout.n_turns_B.mean(),
        "tokens": rollout.batch.lengths_B.sum(),
        "sampled_tokens": rollout.batch.loss_mask_BL.sum(),
        "step_reward_pooled": quality_BT.sum() / steps,
        "step_reward_mean_of_means": (quality_BT.sum(axis=1) / jnp.maximum(counts_B, 1)).sum() / began,
        "step_reward_first_turn": quality_BT[:, 0].sum() / began,
        "regret": regret_BT.sum() / steps,
        "optimal_share": (played_BT & (regret_BT < 1e-6)).sum() / steps,
        "invalid_share": (played_BT & (turns.action_BT < 0)).sum() / steps,
        "zero_variance_groups": 1.0 - useful_P.mean(),
        "stop_reasons": jax.nn.one_hot(rollout.stop_B, len(StopReason)).mean(axis=0),
        "effective_groups_by_budget": (level_PF * useful_P[:, None]).sum(axis=0),
        "groups_by_budget": level_PF.sum(axis=0),
    }
