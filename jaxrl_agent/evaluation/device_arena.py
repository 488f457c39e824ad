"""The arena of tasks that are played inside jit: probes in batches of one size, each compiled once.

Letters: `S` states or starts, `N` copies of each, `B` rows; random numbers as in `arena_rows`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agent.assemble import Game, Policy
from jaxrl_agent.evaluation.arena import Errors, Positions, Replies, Scores, Visits
from jaxrl_agent.evaluation.arena_rows import (
    ACT,
    CUT,
    FINISH,
    PLAY,
    VALUE,
    episode_ids,
    in_batches,
    joined,
    row_ids,
    score_rollout,
    stream_key,
)
from jaxrl_agent.parallel.distributed import to_host
from jaxrl_agent.rollout import starts as starting
from jaxrl_agent.rollout.device_collect import SamplingSettings, collect, resume
from jaxrl_agent.rollout.records import to_trajectories
from jaxrl_agent.rollout.starts import Starts
from jaxrl_agent.tasks.pieces import PieceTable
from jaxrl_agent.types import Rollout, StopReason, Trajectory


@struct.dataclass
class Episodes:
    """Finished trajectories, numpy, with the task's state before every turn."""

    rollout: Rollout
    states_BT: Any
    version: int = struct.field(pytree_node=False)  # updates that the policy had seen


@dataclasses.dataclass(frozen=True)
class _Program:
    """What compiled programs are made for."""

    model: Any
    task: Any
    sampling: SamplingSettings


class DeviceArena:
    """One split of a device task at one enforced budget, see `arena.Arena`.

    Args:
        game: the split.
        probe: what probes ask of the task, from `tasks.PROBES`.
        budget: turns allowed, and told where the task tells them.
        temperature: of sampling and scoring, above 0; nothing is filtered.
        rows: trajectories in one compiled batch.
        seed: of everything drawn.
        think_ids: opening and closing token of reasoning, where the policy may reason.
    """

    def __init__(
        self,
        game: Game,
        probe: Any,
        *,
        budget: int,
        temperature: float = 1.0,
        rows: int = 512,
        seed: int = 0,
        think_ids: tuple[int, int] | None = None,
    ):
        self._game, self._probe, self._budget, self._rows, self._seed = game, probe, budget, rows, seed
        self._sampling, self._think_ids = SamplingSettings(temperature), think_ids
        self.qualities, self.primary, self.covariates = probe.qualities, probe.primary, probe.covariates
        self.t_max: int = game.task.t_max
        self._names = (*probe.outcomes, CUT)

    def play(self, policy: Policy, *, samples: int) -> Episodes:
        """Play `samples` whole episodes of every instance."""
        program, key = self._program(policy), stream_key(self._seed, PLAY)

        def batch(instances_S: np.ndarray) -> Episodes:
            budgets_S = np.full(len(instances_S), self._budget, np.int32)
            arguments = instances_S.astype(np.int32), budgets_S, episode_ids(instances_S, samples).reshape(-1), key
            rollout, states_BT = _play(program)(policy.params, self._game.data, *arguments)
            return Episodes(rollout, states_BT, policy.update)

        episodes = self._in_batches(len(self._game.instances), samples, batch)
        groups_B = np.repeat(np.arange(len(self._game.instances)), samples)
        return episodes.replace(rollout=episodes.rollout.replace(group_B=groups_B))

    def visits(self, episodes: Episodes) -> Visits:
        """Every state on the way of those episodes."""
        rollout = episodes.rollout
        row_V, turn_V = np.nonzero(np.arange(self.t_max) < rollout.n_turns_B[:, None])
        task_V = rollout.instance_B[row_V]
        state_V = jax.tree.map(lambda leaf: leaf[row_V, turn_V], episodes.states_BT)
        keys = self._probe.keys(task_V, state_V)
        return Visits(row_V, turn_V, task_V, rollout.budget_B[row_V] - turn_V, keys)

    def positions(self, episodes: Sequence[Episodes], source_S, row_S, turn_S) -> Positions:
        """Take up states of `episodes[source_S]` again."""
        offsets = np.cumsum([0, *(len(played.rollout.n_turns_B) for played in episodes)])
        rollout, states_BT = joined([(played.rollout, played.states_BT) for played in episodes])
        rows_S = np.asarray(row_S) + offsets[np.asarray(source_S, int)]
        return self._describe(to_host(_cut(rollout, states_BT, rows_S=rows_S, turns_S=np.asarray(turn_S, np.int32))))

    def act(self, policies: Sequence[Policy], positions: Positions, *, replies: int) -> Replies:
        """Sample replies of every policy from the same bytes."""
        found = [self._go_on(policy, positions, replies, ACT, turns=1) for policy in policies]
        return Replies(
            outcomes=[self._names] * len(positions),
            outcome_SN=[self._outcomes(positions, rollout, replies) for rollout in found],
            rows=found,
        )

    def exact(self, positions: Positions, replies: Replies) -> dict[str, list[list[float | None]]]:
        """Exact value of every outcome, by quality and state; a reply that was cut off is worth 0."""
        del replies  # a lake has few actions, so all of them are valued
        starts = positions.starts
        values = self._probe.values(starts.instance_S, starts.state, positions.turns_left_S)
        return {name: [[*row, 0.0] for row in values_SA.tolist()] for name, values_SA in values.items()}

    def monte_carlo(
        self, reference: Policy, positions: Positions, replies: Replies, *, rollouts: int
    ) -> list[list[float | None]]:
        """Success of `reference` when it goes on behind each outcome that occurred; None for the others."""
        values: list[list[float | None]] = [[None] * len(names) for names in replies.outcomes]
        places, tokens, actions = [], [], []
        for state, outcome, ids in self._one_reply_each(positions, replies):
            if self._names[outcome] == CUT:
                values[state][outcome] = 0.0
                continue
            places.append((state, outcome))
            tokens.append(ids)
            actions.append(outcome if self._names[outcome] is not None else -1)
        if places:
            state_U = np.array([state for state, _ in places])
            reply_UC, counts_U = _padded(tokens, self._game.task.max_tokens)
            success_U = self._values(reference, positions, state_U, reply_UC, counts_U, np.array(actions), rollouts)
            for (state, outcome), value in zip(places, success_U.tolist(), strict=True):
                values[state][outcome] = value
        return values

    def optimum(self, positions: Positions) -> np.ndarray | None:
        """Best probability of success, float64 [S]; None where it is not known."""
        starts = positions.starts
        return self._probe.optimum(starts.instance_S, starts.state, positions.turns_left_S)

    def inject(self, positions: Positions) -> Errors:
        """Replace the next turn of every position by an error, in the history as the agent's own."""
        starts = positions.starts
        ok_S, action_S, after = self._probe.inject(starts.instance_S, starts.state, seed=self._seed)
        ok_S = ok_S & (positions.turns_left_S > 1)  # an error without a turn behind it cannot be recovered from
        table: PieceTable = jax.tree.map(np.asarray, self._game.data.text.replies)
        moved = to_host(
            _with_reply(self._game.task)(
                self._game.data,
                starts,
                reply_SC=table.tokens_RW[action_S],
                counts_S=table.lengths_R[action_S],
                action_S=action_S.astype(np.int32),
                after=after,
            )
        )
        names = [str(self._names[action]) for action in action_S]
        return Errors(ok_S, names, self._describe(moved))

    def finish(self, policy: Policy, positions: Positions, *, continuations: int) -> tuple[np.ndarray, Episodes]:
        """Play on to the end of the budget: success, bool [S, N], and the episodes."""
        rollout = self._go_on(policy, positions, continuations, FINISH, turns=None)
        return rollout.success_B.reshape(-1, continuations), Episodes(rollout, None, policy.update)

    def score(self, policy: Policy, episodes: Episodes | Rollout, *, last_only: bool = False) -> Scores:
        """Score what was sampled under any policy; of every turn, or of the last one alone."""
        rollout = episodes if isinstance(episodes, Rollout) else episodes.rollout
        return score_rollout(
            policy,
            rollout,
            last_only=last_only,
            n_turns=self.t_max,
            width=(1 if last_only else self.t_max) * self._game.task.max_tokens,
            rows=self._rows,
            temperature=self._sampling.temperature,
            think_ids=self._think_ids,
        )

    def columns(self, episodes: Episodes) -> dict[str, Any]:
        """Outcomes of whole episodes: task, success, stop, n_turns, quality, best_quality, call_ok."""
        rollout = episodes.rollout
        reasons = list(StopReason)

        def played(column_BT: np.ndarray) -> list[list[float]]:
            return [row[:n].tolist() for row, n in zip(column_BT, rollout.n_turns_B, strict=True)]

        return {
            "task": rollout.instance_B.tolist(),
            "success": rollout.success_B.tolist(),
            "stop": [reasons[code].value for code in rollout.stop_B],
            "n_turns": rollout.n_turns_B.tolist(),
            "quality": played(rollout.turns.step_quality_BT),
            "best_quality": played(rollout.turns.best_quality_BT),
            "call_ok": None,  # a lake has no tools
        }

    def read(self, episodes: Episodes, rows: Sequence[int]) -> list[Trajectory]:
        """Some episodes, for people."""
        game = self._game
        return list(
            to_trajectories(
                episodes.rollout,
                game.instances,
                game.tokenizer,
                t_max=self.t_max,
                policy_version=episodes.version,
                rows=rows,
            )
        )

    def _program(self, policy: Policy) -> _Program:
        return _Program(policy.model, self._game.task, self._sampling)

    def _describe(self, starts: Starts) -> Positions:
        return Positions(
            task_S=starts.instance_S,
            turns_left_S=starts.budget_S - starts.turn_S,
            keys=self._probe.keys(starts.instance_S, starts.state),
            covariates=self._probe.describe(starts.instance_S, starts.state),
            starts=starts,
        )

    def _go_on(self, policy: Policy, positions: Positions, copies: int, stream: int, *, turns: int | None) -> Rollout:
        program, key = _go_on(self._program(policy), turns), stream_key(self._seed, stream)
        ids_SN = row_ids(positions, copies)

        def batch(index_S: np.ndarray) -> Rollout:
            starts = jax.tree.map(lambda leaf: leaf[index_S], positions.starts)
            return program(policy.params, self._game.data, starts, ids_SN[index_S].reshape(-1), key)

        return self._in_batches(len(positions), copies, batch)

    def _outcomes(self, positions: Positions, rollout: Rollout, copies: int) -> np.ndarray:
        """Index of what each reply amounts to, int [S, N]."""
        turn_B = np.repeat(positions.starts.turn_S, copies)
        action_B = rollout.turns.action_BT[np.arange(len(turn_B)), turn_B]
        unusable, cut = len(self._names) - 2, len(self._names) - 1
        limits = [StopReason.TOKEN_LIMIT.code, StopReason.CONTEXT_LIMIT.code]
        outcome_B = np.where(action_B >= 0, action_B, unusable)
        return np.where(np.isin(rollout.stop_B, limits), cut, outcome_B).reshape(-1, copies)

    def _one_reply_each(self, positions: Positions, replies: Replies) -> Iterator[tuple[int, int, list[int]]]:
        """(state, outcome, ids) of every outcome that occurred: the first reply with it, the first policy's before."""
        seen = set()
        for outcome_SN, rollout in zip(replies.outcome_SN, replies.rows, strict=True):
            for state, outcomes_N in enumerate(outcome_SN.tolist()):
                for copy, outcome in enumerate(outcomes_N):
                    if (state, outcome) in seen:
                        continue
                    seen.add((state, outcome))
                    row = state * outcome_SN.shape[1] + copy
                    said_L = rollout.batch.turn_BL[row] == positions.starts.turn_S[state]
                    yield state, outcome, rollout.batch.tokens_BL[row, said_L].tolist()

    def _values(self, reference, positions, state_U, reply_UC, counts_U, action_U, copies: int) -> np.ndarray:
        program, key = _value(self._program(reference)), stream_key(self._seed, VALUE)
        starts_U = jax.tree.map(lambda leaf: leaf[state_U], positions.starts)
        ids_UN = row_ids(positions, copies)[state_U]

        def batch(index_S: np.ndarray) -> np.ndarray:
            starts, reply_SC, counts_S, action_S = jax.tree.map(
                lambda leaf: leaf[index_S], (starts_U, reply_UC, counts_U, action_U.astype(np.int32))
            )
            arguments = starts, reply_SC, counts_S, action_S, ids_UN[index_S].reshape(-1), key
            return program(reference.params, self._game.data, *arguments)

        return self._in_batches(len(state_U), copies, batch).reshape(-1, copies).mean(axis=1)

    def _in_batches(self, count: int, copies: int, call: Callable[[np.ndarray], Any]) -> Any:
        return in_batches(count, call, rows=self._rows, copies=copies)


def _padded(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    tokens_RC = np.zeros((len(rows), width), np.int32)
    for index, row in enumerate(rows):
        tokens_RC[index, : len(row)] = row
    return tokens_RC, np.array([len(row) for row in rows], np.int32)


_cut = jax.jit(starting.cut)


@functools.cache
def _with_reply(task: Any) -> Callable[..., Starts]:
    return jax.jit(functools.partial(starting.with_reply, task))


@functools.cache  # policies of one shape share the compiled programs
def _play(program: _Program) -> Callable[..., tuple[Rollout, Any]]:
    def play(params, data, instances_S, budgets_S, row_ids_B, key):
        rollout = collect(
            program.model,
            program.task,
            program.sampling,
            params,
            data,
            instances_P=instances_S,
            budgets_P=budgets_S,
            row_ids_B=row_ids_B,
            key=key,
        )
        return rollout, starting.trace_states(program.task, data, rollout, row_ids_B=row_ids_B, key=key)

    return jax.jit(play)


@functools.cache
def _go_on(program: _Program, turns: int | None) -> Callable[..., Rollout]:
    def go_on(params, data, starts, row_ids_B, key):
        fixed = program.model, program.task, program.sampling
        return resume(*fixed, params, data, starts=starts, row_ids_B=row_ids_B, key=key, turns=turns)

    return jax.jit(go_on)


@functools.cache
def _value(program: _Program) -> Callable[..., jax.Array]:
    """Success of going on behind given replies, float32 [S * N]; every copy meets a chance of its own."""
    task = program.task

    def value(params, data, starts, reply_SC, counts_S, action_S, row_ids_B, key):
        copies = len(row_ids_B) // len(action_S)
        instance_B, state_B, action_B, turn_B = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, copies, axis=0), (starts.instance_S, starts.state, action_S, starts.turn_S)
        )
        keys_B = jax.vmap(jax.random.fold_in)(starting.row_streams(key, row_ids_B)[1], turn_B)
        move = jax.vmap(task.step, in_axes=(None, 0, 0, 0, 0))
        after_B, reward_B, ended_B = move(data, instance_B, state_B, action_B, keys_B)
        said = starting.with_reply(
            task, data, starts, reply_SC=reply_SC, counts_S=counts_S, action_S=action_S, after=starts.state
        )
        fixed = program.model, task, program.sampling
        going_on = (after_B, ~ended_B)
        rollout = resume(*fixed, params, data, starts=said, row_ids_B=row_ids_B, key=key, fresh=going_on)
        return jnp.where(ended_B, reward_B > 0, rollout.success_B).astype(jnp.float32)

    return jax.jit(value)
