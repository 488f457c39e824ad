"""Trajectories that the host played, as the arrays that learner and probes take, and as records for people."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl_agent.rollout.buckets import bucket
from jaxrl_agent.rollout.seats import Played
from jaxrl_agent.tasks.base import Answer, HostInstances
from jaxrl_agent.types import Rollout, TokenBatch, Trajectory, Turn, TurnRecord

_SMALLEST_ROW = 64
_KEY_BITS = 31


def to_rollout(played: Sequence[Played], *, t_max: int, groups_B: np.ndarray, width: int = 0) -> Rollout:
    """Lay trajectories out as one batch of numpy arrays.

    Args:
        played: finished trajectories.
        t_max: turns of the longest budget.
        groups_B: int, group of each.
        width: tokens of a row; 0 for the smallest of a few sizes that holds the longest with a reply. Prompts that
            had no room for one teach nothing and may be of any length: they are cut.
    """
    rows = len(played)
    width = width or bucket(max((len(one.row.ids) for one in played if one.answers), default=1), _SMALLEST_ROW)
    tokens_BL, turn_BL = np.zeros((rows, width), np.int32), np.full((rows, width), -1, np.int32)
    mask_BL, logprobs_BL = np.zeros((rows, width), bool), np.zeros((rows, width), np.float32)
    lengths = [len(one.row.ids) if one.answers else min(len(one.row.ids), width) for one in played]
    for index, one in enumerate(played):
        length = lengths[index]
        tokens_BL[index, :length], turn_BL[index, :length] = one.row.ids[:length], one.row.turns[:length]
        logprobs_BL[index, :length] = one.logprobs[:length]
        mask_BL[index] = (turn_BL[index] >= 0) & ~np.isin(turn_BL[index], _given(one))
    # A trajectory whose episode could not even be made has no token; one of filler keeps its row well-formed.
    lengths_B = np.maximum(np.array(lengths, np.int32), 1)
    batch = TokenBatch(tokens_BL, lengths_B, mask_BL, logprobs_BL, turn_BL)
    return Rollout(
        batch=batch,
        turns=_record(played, t_max),
        instance_B=np.array([one.request.instance for one in played], np.int32),
        group_B=np.asarray(groups_B, np.int32),
        budget_B=np.array([one.request.budget for one in played], np.int32),
        n_turns_B=np.array([len(one.answers) for one in played], np.int32),
        prompt_lengths_B=np.clip([one.prompt_length for one in played], 1, lengths_B).astype(np.int32),
        stop_B=np.array([one.stop.code for one in played], np.int32),
        return_B=np.array([one.return_ for one in played], np.float32),
        success_B=np.array([one.success for one in played]),
    )


def to_host_trajectories(
    played: Sequence[Played],
    instances: HostInstances,
    tokenizer: Any,
    *,
    t_max: int,
    policy_version: int,
    groups: Sequence[int],
) -> Iterator[Trajectory]:
    """Trajectories for people and for `trajectories/*.jsonl`.

    Args:
        played: finished trajectories.
        instances: name what was played.
        tokenizer: decodes tokens.
        t_max: turns of the longest budget.
        policy_version: updates that the sampling policy had seen.
        groups: group of each.
    """
    for one, group in zip(played, groups, strict=True):
        info = instances.instance_info(one.request.instance)
        prompt = one.row.ids[: one.prompt_length]
        failure = {"failure": one.failure} if one.failure else {}
        yield Trajectory(
            instance_id=instances.instance_id(one.request.instance),
            group_id=int(group),
            budget=one.request.budget,
            t_max=t_max,
            success=one.success,
            return_=one.return_,
            stop_reason=one.stop,
            turns=_turns(one, tokenizer),
            prompt_tokens=prompt,
            policy_version=policy_version,
            instance={**info, "prompt": spelled(tokenizer, prompt), **failure},
        )


def spelled(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode for reading; ids of an embedding's spare rows spell nothing."""
    return tokenizer.decode([token for token in ids if token < tokenizer.vocab_size])


def state_columns(name: str) -> tuple[int, int]:
    """Two int32 columns that are equal where names of states are (SHA-256, 62 bits of it)."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return digest & (2**_KEY_BITS - 1), (digest >> _KEY_BITS) & (2**_KEY_BITS - 1)


def _given(one: Played) -> list[int]:
    """Turns that were put in the agent's place."""
    return [turn for turn, said in enumerate(one.request.said) if not said.sampled]


def _record(played: Sequence[Played], t_max: int) -> TurnRecord:
    shape = (len(played), t_max)
    action_BT, key_BTK = np.zeros(shape, np.int32), np.zeros((*shape, 2), np.int32)
    reward_BT, quality_BT, best_BT, process_BT = (np.zeros(shape, np.float32) for _ in range(4))
    for row, one in enumerate(played):
        for turn, answer in enumerate(one.answers):
            action_BT[row, turn] = 0 if answer.parsed_action is not None else -1
            reward_BT[row, turn], process_BT[row, turn] = answer.reward, answer.process
            quality_BT[row, turn], best_BT[row, turn] = answer.quality, answer.best_quality
            key_BTK[row, turn] = state_columns(answer.state_key)
    return TurnRecord(
        state_BT=np.zeros(shape, np.int32),
        action_BT=action_BT,
        reward_BT=reward_BT,
        step_quality_BT=quality_BT,
        best_quality_BT=best_BT,
        process_BT=process_BT,
        key_BTK=key_BTK,
    )


def _turns(one: Played, tokenizer: Any) -> list[Turn]:
    turn_L, ids = np.array(one.row.turns), one.row.ids
    given, turns, read_from = _given(one), [], one.prompt_length
    for number, answer in enumerate(one.answers):
        columns = np.flatnonzero(turn_L == number)
        first, end = int(columns[0]), int(columns[-1]) + 1
        turns.append(
            Turn(
                text=answer.text or spelled(tokenizer, ids[first:end]),
                observation=spelled(tokenizer, ids[read_from:first]),
                tokens=ids[first:end],
                logprobs=[] if number in given else one.logprobs[first:end],
                reward=answer.reward,
                parsed_action=answer.parsed_action,
                state_key=answer.state_key,
                info=_info(answer),
            )
        )
        read_from = end
    return turns


def _info(answer: Answer) -> dict[str, Any]:
    known = {} if answer.call_ok is None else {"call_ok": answer.call_ok}
    return {"quality": answer.quality, "best_quality": answer.best_quality, **known, **answer.info}
