"""Going on from an earlier place gives what playing through gave; a reply put in stands there as the own one."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.rollout.device_collect import SamplingSettings, resume
from jaxrl_agent.rollout.starts import Starts, cut, row_streams, trace_states, with_reply
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy
from jaxrl_agent.testing.replay import play
from jaxrl_agent.types import Rollout

KEY = jax.random.key(3)
IDS = np.arange(24, dtype=np.uint32) + 7
GROUP = 6


class Played(NamedTuple):
    game: object
    config: object
    params: object
    rollout: Rollout
    states_BT: object


@pytest.fixture(scope="module")
def played() -> Played:
    """Foggy slippery lakes, told budgets, a policy that plays everything and remembers what it read."""
    game = lake_game(FOUR_LAKES, t_max=8, budget_visibility="remaining", lake={"success_rate": 0.7, "foggy": True})
    config, params = leaning_policy(babbling_words(game.tokenizer, ACTION_NAMES), noise=0.06)
    rollout = play(game, config, params, instances=(0, 1, 2, 3), budgets=(8, 8, 7, 6), rows=IDS.tolist(), seed=3)
    trace = jax.jit(functools.partial(trace_states, game.task))
    states_BT = jax.device_get(trace(game.data, rollout, row_ids_B=IDS, key=KEY))
    return Played(game, config, params, rollout, states_BT)


def last_turns(played: Played, back: int) -> np.ndarray:
    """The turn that lies `back` turns before the last one of each trajectory, or its first."""
    return np.maximum(played.rollout.n_turns_B - 1 - back, 0).astype(np.int32)


def go_on(played: Played, starts: Starts, ids=IDS, **more) -> Rollout:
    program = jax.jit(
        functools.partial(resume, played.config, played.game.task, SamplingSettings()),
        static_argnames=("turns", "written"),
    )
    return jax.device_get(program(played.params, played.game.data, starts=starts, row_ids_B=ids, key=KEY, **more))


def test_traced_states_are_those_that_were_played(played):
    turns = np.arange(8) < played.rollout.n_turns_B[:, None]
    np.testing.assert_array_equal(played.states_BT.cell[turns], played.rollout.turns.state_BT[turns])
    looked = (played.rollout.turns.action_BT == 4) & turns
    after_look = np.roll(looked, 1, axis=1) & turns & (np.arange(8) > 0)
    assert (played.states_BT.last_look[after_look] >= 0).all()
    assert (played.states_BT.last_look[turns & ~after_look] == -1).all()
    assert after_look.sum() > 5


@pytest.mark.parametrize("back", [0, 2, 20])
def test_going_on_with_the_same_numbers_gives_the_same_trajectory(played, back):
    rows = np.arange(len(IDS), dtype=np.int32)
    starts = jax.jit(cut)(played.rollout, played.states_BT, rows_S=rows, turns_S=last_turns(played, back))
    again = go_on(played, starts)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(again.batch.sampler_logprobs_BL, played.rollout.batch.sampler_logprobs_BL)

    def without_logprobs(rollout):
        batch = rollout.batch.replace(sampler_logprobs_BL=0)
        return rollout.replace(batch=batch, group_B=0)

    jax.tree.map(np.testing.assert_array_equal, without_logprobs(again), without_logprobs(played.rollout))


def test_a_start_keeps_nothing_of_what_came_after_it(played):
    rows = np.arange(len(IDS), dtype=np.int32)
    turns = last_turns(played, 1)
    starts = jax.device_get(jax.jit(cut)(played.rollout, played.states_BT, rows_S=rows, turns_S=turns))
    behind = np.arange(starts.rows.tokens_BL.shape[1]) >= starts.rows.lengths_B[:, None]
    assert not starts.rows.tokens_BL[behind].any()
    assert not starts.rows.sampled_BL[behind].any()
    assert (starts.rows.turn_BL[behind] == -1).all()
    assert (starts.rows.turn_BL.max(axis=1) == turns - 1).all()
    later = np.arange(8) >= turns[:, None]
    for column_BT in jax.tree.leaves(starts.record):
        assert not column_BT[later].any()


def test_copies_of_a_start_share_its_bytes_and_differ_by_their_own_numbers(played):
    starts = jax.jit(cut)(played.rollout, played.states_BT, rows_S=np.array([0, 9]), turns_S=np.array([0, 0], np.int32))
    one_turn = go_on(played, starts, ids=np.arange(64, dtype=np.uint32), turns=1)
    first = np.asarray(starts.rows.lengths_B)
    for row in range(64):
        length = first[row // 32]
        np.testing.assert_array_equal(
            one_turn.batch.tokens_BL[row, :length], np.asarray(starts.rows.tokens_BL)[row // 32, :length]
        )
    assert (one_turn.n_turns_B == 1).all()
    assert len({tuple(row) for row in one_turn.batch.tokens_BL[:32].tolist()}) > 3


def test_a_given_reply_is_history_that_uses_a_turn_and_is_never_trained_on(played):
    game, rows = played.game, np.arange(len(IDS), dtype=np.int32)
    turns = np.maximum(last_turns(played, 2), 0)
    starts = jax.jit(cut)(played.rollout, played.states_BT, rows_S=rows, turns_S=turns)
    table = jax.device_get(game.data.text.replies)
    action = np.full(len(rows), 4, np.int32)  # a look
    after = jax.tree.map(np.asarray, starts.state)
    moved = jax.device_get(
        jax.jit(functools.partial(with_reply, game.task))(
            game.data,
            starts,
            reply_SC=table.tokens_RW[action],
            counts_S=table.lengths_R[action],
            action_S=action,
            after=after,
        )
    )
    np.testing.assert_array_equal(moved.turn_S, turns + 1)
    ended = go_on(played, moved)
    for row in range(len(rows)):
        said = ended.batch.turn_BL[row] == turns[row]
        assert ended.batch.tokens_BL[row, said].tolist() == game.tokenizer.encode("look .")
        assert not ended.batch.loss_mask_BL[row, said].any()
        assert not ended.batch.sampler_logprobs_BL[row, said].any()
        assert ended.turns.action_BT[row, turns[row]] == 4
        # The observation in front of it is the very one that was read before the reply it replaces.
        begins = int(np.asarray(starts.rows.lengths_B)[row])
        first_said = int(np.flatnonzero(said)[0])
        np.testing.assert_array_equal(
            ended.batch.tokens_BL[row, begins:first_said], played.rollout.batch.tokens_BL[row, begins:first_said]
        )
    assert (ended.n_turns_B <= ended.budget_B).all()
    assert (ended.n_turns_B >= np.minimum(turns + 1, ended.budget_B)).all()


def test_a_start_without_a_turn_left_comes_back_as_it_is(played):
    starts = jax.jit(cut)(played.rollout, played.states_BT, rows_S=np.array([0, 1]), turns_S=np.array([1, 1], np.int32))
    spent = starts.replace(budget_S=jnp.array([1, 1], jnp.int32))
    ended = go_on(played, spent, ids=np.array([5, 6], np.uint32))
    np.testing.assert_array_equal(ended.n_turns_B, [1, 1])
    np.testing.assert_array_equal(ended.batch.lengths_B, np.asarray(starts.rows.lengths_B))
    assert not ended.success_B.any()


def test_worlds_of_a_group_may_differ_and_rows_that_are_over_stay_still(played):
    starts = jax.jit(cut)(played.rollout, played.states_BT, rows_S=np.array([3]), turns_S=np.array([0], np.int32))
    states = jax.tree.map(lambda leaf: jnp.repeat(leaf, 4, axis=0), starts.state)
    states = states.replace(cell=jnp.array([0, 1, 2, 0], jnp.int32))
    alive = jnp.array([True, True, True, False])
    ended = go_on(played, starts, ids=np.arange(4, dtype=np.uint32), fresh=(states, alive))
    np.testing.assert_array_equal(ended.turns.state_BT[:3, 0], [0, 1, 2])
    assert (ended.n_turns_B[:3] >= 1).all()
    assert ended.n_turns_B[3] == 0


def test_tokens_and_worlds_draw_from_streams_of_their_own():
    tokens, worlds = row_streams(KEY, jnp.array([1, 2], jnp.uint32))
    data = np.asarray(jax.random.key_data(jnp.concatenate([tokens, worlds])))
    assert len({tuple(row) for row in data.tolist()}) == 4
