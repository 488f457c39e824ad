"""Rollouts for tests, and the same rollouts played again in plain Python from nothing but the sampled tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.assemble import Game
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.models.qwen3 import Qwen3Config
from jaxrl_agent.rollout.device_collect import DeviceTask, SamplingSettings, collect
from jaxrl_agent.types import Rollout, StopReason, TokenBatch, TurnRecord

Read = Callable[[Sequence[int]], tuple[bool, int]]  # ids of a reply so far -> (it is over, action or -1)


@functools.cache
def compiled_collect(config: Qwen3Config, task: DeviceTask, settings: SamplingSettings) -> Callable[..., Rollout]:
    """`collect` with its static arguments, jitted once a process."""
    return jax.jit(functools.partial(collect, config, task, settings))


def play(
    game: Game,
    config: Qwen3Config,
    params: Any,
    *,
    instances: Sequence[int],
    budgets: Sequence[int],
    rows: Sequence[int],
    seed: int = 0,
    **sampling: Any,
) -> Rollout:
    """Collect a rollout, as numpy arrays.

    Args:
        game: the game.
        config: the model.
        params: its parameters.
        instances: one for each group.
        budgets: one for each group, in turns.
        rows: identities of the rows, group by group.
        seed: of the rollout's key.
        sampling: fields of SamplingSettings.
    """
    rollout = compiled_collect(config, game.task, SamplingSettings(**sampling))(
        params,
        game.data,
        instances_P=np.array(instances, np.int32),
        budgets_P=np.array(budgets, np.int32),
        row_ids_B=np.array(rows, np.uint32),
        key=jax.random.key(seed),
    )
    return jax.tree.map(np.asarray, rollout)


def sampled_tokens(rollout: Rollout) -> list[list[int]]:
    """Ids that the policy wrote, row by row."""
    batch = rollout.batch
    return [tokens[mask].tolist() for tokens, mask in zip(batch.tokens_BL, batch.loss_mask_BL, strict=True)]


def replay(
    game: Game,
    read: Read,
    sampled: Sequence[Sequence[int]],
    *,
    instances: Sequence[int],
    budgets: Sequence[int],
    rows: Sequence[int],
    seed: int = 0,
    width: int,
) -> Rollout:
    """Play the episodes in which the policy's tokens were `sampled`, row by row.

    Args:
        game: the game.
        read: reads replies, see `testing.replies`.
        sampled: ids that the policy sampled, for each row in order.
        instances, budgets, rows, seed: as in `play`.
        width: tokens that a row has room for.

    Returns:
        What `collect` should have returned, as numpy arrays, with log-probabilities of 0.

    Raises:
        ArgumentError: a row has fewer or more tokens than its episode needs.
    """
    size = len(rows) // len(instances)
    player = _Player(game, read, width, jax.random.key(seed))
    episodes = [
        player.play(instances[place // size], budgets[place // size], row, tokens) | {"group": place // size}
        for place, (row, tokens) in enumerate(zip(rows, sampled, strict=True))
    ]

    def column(name, dtype=np.int32):
        return np.array([episode[name] for episode in episodes], dtype)

    return Rollout(
        batch=TokenBatch(
            tokens_BL=column("tokens"),
            lengths_B=column("length"),
            loss_mask_BL=column("sampled", bool),
            sampler_logprobs_BL=np.zeros((len(episodes), width), np.float32),
            turn_BL=column("turn"),
        ),
        turns=TurnRecord(
            state_BT=column("states"),
            action_BT=column("actions"),
            reward_BT=column("rewards", np.float32),
            step_quality_BT=column("qualities", np.float32),
            best_quality_BT=column("bests", np.float32),
            process_BT=column("processes", np.float32),
            key_BTK=column("keys"),
        ),
        instance_B=column("instance"),
        group_B=column("group"),
        budget_B=column("budget"),
        n_turns_B=column("n_turns"),
        prompt_lengths_B=column("prompt_length"),
        stop_B=column("stop"),
        return_B=column("return", np.float32),
        success_B=column("success", bool),
    )


class _Player:
    def __init__(self, game: Game, read: Read, width: int, key: jax.Array):
        task = game.task
        self.task, self.read, self.width, self.key = task, read, width, key
        for name in ("prompt", "observe", "reset", "step", "quality", "process", "state_code", "state_key"):
            function = jax.jit(getattr(task, name))
            of_state = name.startswith("state_")
            setattr(self, f"_{name}", function if of_state else functools.partial(function, game.data))

    def play(self, instance: int, budget: int, row: int, sampled: Sequence[int]) -> dict[str, Any]:
        world_key = jax.random.split(jax.random.fold_in(self.key, np.uint32(row)))[1]
        tokens = _used(self._prompt(instance, budget))
        prompt_length, left = len(tokens), list(map(int, sampled))
        turn_of, records = [-1] * prompt_length, []
        state, stop = self._reset(instance), StopReason.BUDGET
        for turn in range(budget):
            seen = _used(self._observe(instance, state, turn, budget))
            if len(tokens) + len(seen) + self.task.max_tokens > self.width:
                stop = StopReason.CONTEXT_LIMIT
                break
            reply, over, action = self._reply(left)
            tokens += seen + reply
            turn_of += [-1] * len(seen) + [turn] * len(reply)
            worth = map(float, self._quality(instance, state, action))
            process = float(self._process(instance, state, action, budget - turn))
            key = self._state_key(state).tolist()
            before, reward, terminated = int(self._state_code(state)), 0.0, False
            if over:
                state, reward, terminated = self._step(instance, state, action, jax.random.fold_in(world_key, turn))
            records.append((before, action, float(reward), *worth, process, key))
            if terminated:
                stop = StopReason.SUCCESS if reward > 0 else StopReason.FAILURE
            if not over:
                stop = StopReason.TOKEN_LIMIT
            if terminated or not over:
                break
        if left:
            raise ArgumentError("the policy must not have sampled after the end of its episode", value=left)
        return self._pad(tokens, turn_of, records) | {
            "prompt_length": prompt_length,
            "instance": instance,
            "budget": budget,
            "stop": stop.code,
            "success": stop is StopReason.SUCCESS,
        }

    def _reply(self, left: list[int]) -> tuple[list[int], bool, int]:
        """Take one reply off the tokens that are left."""
        reply, over, action = [], False, -1
        while not over and len(reply) < self.task.max_tokens:
            if not left:
                raise ArgumentError("the policy must have sampled to the end of its episode", value=reply)
            reply.append(left.pop(0))
            over, action = self.read(reply)
        return reply, over, action

    def _pad(self, tokens: list[int], turn_of: list[int], records: list[tuple]) -> dict[str, Any]:
        gap, turns = self.width - len(tokens), self.task.t_max - len(records)
        blank = [0] * len(self._state_key(self._reset(0)))
        columns = zip(*records, *[(0, 0, 0, 0, 0, 0, blank)] * turns, strict=True)
        states, actions, rewards, qualities, bests, processes, keys = map(list, columns)
        return {
            "tokens": tokens + [0] * gap,
            "length": len(tokens),
            "sampled": [turn >= 0 for turn in turn_of] + [False] * gap,
            "turn": turn_of + [-1] * gap,
            "n_turns": len(records),
            "states": states,
            "actions": actions,
            "rewards": rewards,
            "qualities": qualities,
            "bests": bests,
            "processes": processes,
            "keys": keys,
            "return": sum(rewards),
        }


def _used(tokens_and_length: tuple[jax.Array, jax.Array]) -> list[int]:
    tokens_W, length = tokens_and_length
    return np.asarray(tokens_W)[: int(length)].tolist()
