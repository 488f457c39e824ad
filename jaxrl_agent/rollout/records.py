"""From device rollouts to the trajectories that a run directory keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.types import Rollout, StopReason, Trajectory, Turn


def to_trajectories(
    rollout: Rollout,
    instances: Any,
    tokenizer: Any,
    *,
    t_max: int,
    policy_version: int,
    rows: Sequence[int] | None = None,
) -> Iterator[Trajectory]:
    """Yield rows of a rollout as host trajectories, turn by turn.

    Args:
        rollout: finished rollout, on device or host.
        instances: the task's host view.
        tokenizer: turns ids into text, for people to read; the ids stay the truth.
        t_max: largest budget of the task.
        policy_version: updates that the policy had seen.
        rows: which rows; all of them by default.
    """
    rollout = jax.tree.map(np.asarray, rollout)
    for row in range(len(rollout.success_B)) if rows is None else rows:
        yield _to_trajectory(
            jax.tree.map(lambda leaf, row=row: leaf[row], rollout), instances, tokenizer, t_max, policy_version
        )


def _to_trajectory(row: Rollout, instances, tokenizer, t_max: int, policy_version: int) -> Trajectory:
    instance, n_turns, prompt_length = int(row.instance_B), int(row.n_turns_B), int(row.prompt_lengths_B)
    tokens = row.batch.tokens_BL[: int(row.batch.lengths_B)]
    return Trajectory(
        instance_id=instances.instance_id(instance),
        group_id=int(row.group_B),
        budget=int(row.budget_B),
        t_max=t_max,
        success=bool(row.success_B),
        return_=float(row.return_B),
        stop_reason=StopReason.from_code(int(row.stop_B)),
        turns=_turns(row, instances, tokenizer, tokens, n_turns),
        prompt_tokens=tokens[:prompt_length].tolist(),
        policy_version=policy_version,
        instance={**instances.instance_info(instance), "prompt": _text(tokenizer, tokens[:prompt_length].tolist())},
    )


def _turns(row: Rollout, instances, tokenizer, tokens: np.ndarray, n_turns: int) -> list[Turn]:
    record = jax.tree.map(lambda column: column[:n_turns].tolist(), row.turns)
    explained = instances.explain_turns(
        int(row.instance_B), record.state_BT, record.action_BT, record.step_quality_BT, record.best_quality_BT
    )
    turn_of_token = row.batch.turn_BL[: len(tokens)]
    turns, read_from = [], int(row.prompt_lengths_B)
    for turn, (state_key, info) in enumerate(explained):
        columns = np.flatnonzero(turn_of_token == turn)
        first, end = int(columns[0]), int(columns[-1]) + 1
        ids = tokens[first:end].tolist()
        turns.append(
            Turn(
                text=_text(tokenizer, ids),
                observation=_text(tokenizer, tokens[read_from:first].tolist()),
                tokens=ids,
                logprobs=_logprobs(row, first, end),
                reward=record.reward_BT[turn],
                parsed_action=instances.action_name(record.action_BT[turn]),
                state_key=state_key,
                info=info,
            )
        )
        read_from = end
    return turns


def _logprobs(row: Rollout, first: int, end: int) -> list[float]:
    """Of the sampled tokens; none where somebody else put the reply there."""
    sampled = bool(row.batch.loss_mask_BL[first])
    return row.batch.sampler_logprobs_BL[first:end].tolist() if sampled else []


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Decode for reading; ids of an embedding's spare rows spell nothing."""
    return tokenizer.decode([token for token in ids if token < tokenizer.vocab_size])
