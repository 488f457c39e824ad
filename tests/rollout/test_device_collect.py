"""What a rollout holds, whatever the policy does: checked on one who plays every action and often misspells it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.learner.logprobs import token_logprobs
from jaxrl_agent.models.qwen3 import forward
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.rollout.sampling import row_keys, sample_tokens, uniforms
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy
from jaxrl_agent.testing.replay import play, replay, sampled_tokens
from jaxrl_agent.testing.replies import read_words
from jaxrl_agent.types import Rollout, StopReason

LOGPROB_TOLERANCE = 1e-4  # float32 on CPU
GROUP = 6
# The programs of this shape are compiled once for all tests of rollouts, the next two files' included.
WIDE = {
    "instances": (0, 1, 2, 3),
    "budgets": (8, 5, 6, 1),
    "rows": (*range(100, 122), 2**31, 2**32 - 1),
}
SAMPLING = ({}, {"temperature": 0.7, "top_k": 3}, {"temperature": 0})


class Table:
    """A slippery game and a policy to play it."""

    def __init__(self, **task: Any):
        self.game = lake_game(FOUR_LAKES, t_max=8, lake={"success_rate": 0.7}, **task)
        self.config, self.params = leaning_policy(babbling_words(self.game.tokenizer, ACTION_NAMES), noise=0.06)

    def play(self, **arguments: Any) -> Rollout:
        return play(self.game, self.config, self.params, **WIDE | arguments)

    def replay(self, rollout: Rollout, **arguments: Any) -> Rollout:
        read = functools.partial(read_words, self.game.tokenizer, ACTION_NAMES)
        width = rollout.batch.tokens_BL.shape[1]
        played = replay(self.game, read, sampled_tokens(rollout), width=width, **WIDE | arguments)
        logprobs_BL = rollout.batch.sampler_logprobs_BL  # the one thing that a replay cannot know
        return played.replace(batch=played.batch.replace(sampler_logprobs_BL=logprobs_BL))


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


@pytest.fixture(scope="module")
def rollout(table) -> Rollout:
    return table.play()


def assert_equal(found: Rollout, expected: Rollout, rows: Any = slice(None)) -> None:
    """Every array of two rollouts is the same, bit by bit; `rows` picks rows of the second."""
    for (path, left), right in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert left.dtype == right.dtype, jax.tree_util.keystr(path)
        np.testing.assert_array_equal(left, right[rows], err_msg=jax.tree_util.keystr(path))


def used_actions(rollout: Rollout) -> list[int]:
    turns = zip(rollout.turns.action_BT, rollout.n_turns_B, strict=True)
    return [int(action) for actions, count in turns for action in actions[:count]]


def assert_rows_agree(found: Rollout, expected: Rollout) -> None:
    """Rows that were computed in batches of other shapes: all equal but the last bits of their log-probabilities."""
    logprobs_BL = expected.batch.sampler_logprobs_BL
    np.testing.assert_allclose(found.batch.sampler_logprobs_BL, logprobs_BL, atol=LOGPROB_TOLERANCE)
    same = found.replace(
        batch=found.batch.replace(sampler_logprobs_BL=logprobs_BL), group_B=expected.group_B
    )  # a group's number is its place in the batch
    assert_equal(same, expected)


def take(rollout: Rollout, rows: Any) -> Rollout:
    return jax.tree.map(lambda column: column[rows], rollout)


# ---- the protocol


@pytest.mark.parametrize("seed", range(3))
def test_a_rollout_is_what_plain_python_plays_with_the_same_tokens_and_keys(table, seed):
    rollout = table.play(seed=seed)
    assert_equal(rollout, table.replay(rollout, seed=seed))
    assert set(used_actions(rollout)) == {-1, 0, 1, 2, 3, 4}
    assert set(rollout.stop_B.tolist()) == {
        reason.code for reason in (StopReason.SUCCESS, StopReason.FAILURE, StopReason.BUDGET)
    }


def test_groups_share_instance_budget_and_prompt(rollout):
    np.testing.assert_array_equal(rollout.instance_B, np.repeat(WIDE["instances"], GROUP))
    np.testing.assert_array_equal(rollout.budget_B, np.repeat(WIDE["budgets"], GROUP))
    np.testing.assert_array_equal(rollout.group_B, np.repeat(np.arange(4), GROUP))
    for group in range(4):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        length = rollout.prompt_lengths_B[rows.start]
        assert len({tuple(row[:length]) for row in rollout.batch.tokens_BL[rows].tolist()}) == 1


def test_no_more_turns_are_played_than_the_budget_allows(rollout):
    assert (rollout.n_turns_B <= rollout.budget_B).all()
    cut_B = rollout.stop_B == StopReason.BUDGET.code
    np.testing.assert_array_equal(rollout.n_turns_B[cut_B], rollout.budget_B[cut_B])
    assert not rollout.return_B[cut_B].any()


def test_the_loss_mask_marks_exactly_the_replies_and_nothing_follows_the_last_one(table, rollout):
    batch = rollout.batch
    np.testing.assert_array_equal(batch.loss_mask_BL, batch.turn_BL >= 0)
    assert not batch.sampler_logprobs_BL[~batch.loss_mask_BL].any()
    assert (batch.sampler_logprobs_BL[batch.loss_mask_BL] < 0).all()
    for row, length in enumerate(batch.lengths_B):
        assert batch.loss_mask_BL[row, length - 1]
        assert not batch.tokens_BL[row, length:].any()
        expected = np.repeat(np.arange(rollout.n_turns_B[row]), table.game.task.max_tokens)
        np.testing.assert_array_equal(batch.turn_BL[row][batch.loss_mask_BL[row]], expected)
        assert not batch.loss_mask_BL[row, : rollout.prompt_lengths_B[row]].any()


# ---- sampling


@pytest.mark.parametrize("sampling", SAMPLING)
def test_the_learner_gives_sampled_tokens_the_sampler_s_log_probabilities(table, sampling):
    batch = table.play(**sampling).batch
    temperature = sampling.get("temperature", 1.0) or 1.0  # greedy rows are scored at 1
    scores_BL = token_logprobs(table.config, table.params, batch.tokens_BL, batch.lengths_B, temperature=temperature)
    difference_BL = np.where(batch.loss_mask_BL, scores_BL - batch.sampler_logprobs_BL, 0)
    assert np.abs(difference_BL).max() < LOGPROB_TOLERANCE


@pytest.mark.parametrize("sampling", SAMPLING)
def test_every_token_is_the_draw_that_the_whole_row_and_the_rows_own_key_give(table, sampling):
    """No cache, no turns: one pass of the model over the finished rows, and a number for each position."""
    batch = table.play(seed=5, **sampling).batch
    rows, length = batch.tokens_BL.shape
    logits_BLV = np.asarray(forward(table.config, table.params, batch.tokens_BL, batch.lengths_B))
    keys_B2 = jax.vmap(jax.random.split)(row_keys(jax.random.key(5), jnp.array(WIDE["rows"], jnp.uint32)))
    places = np.tile(np.arange(1, length), rows)
    numbers = uniforms(jnp.repeat(keys_B2[:, 0], length - 1), jnp.asarray(places, jnp.int32))
    draws, _ = sample_tokens(logits_BLV[:, :-1].reshape(len(places), -1), numbers, **{"temperature": 1.0} | sampling)
    sampled = batch.loss_mask_BL[:, 1:].reshape(-1)
    tokens = batch.tokens_BL[:, 1:].reshape(-1)[sampled]
    np.testing.assert_array_equal(tokens, draws[sampled])
    assert len(set(tokens.tolist())) > 2


def test_greedy_replies_depend_on_no_key(table):
    first, second = (table.play(seed=seed, temperature=0) for seed in (0, 1))
    assert not np.array_equal(first.turns.state_BT, second.turns.state_BT)  # the ice still slips
    for rollout in (first, second):
        opening = [tokens[:2] for tokens in sampled_tokens(rollout)]
        assert opening == [tokens[:2] for tokens in sampled_tokens(first)]
        assert all(opening[row] == opening[row - row % GROUP] for row in range(len(opening)))


def test_rows_of_a_group_draw_their_own_tokens(rollout):
    openings = [tuple(tokens[:2]) for tokens in sampled_tokens(rollout)]
    assert len(set(openings[:GROUP])) > 1


# ---- rows do not know one another


def test_a_row_is_the_same_alone_as_in_a_batch(table, rollout):
    for row in (0, 7, 15, 22, 23):
        group = row // GROUP
        alone = table.play(
            instances=WIDE["instances"][group : group + 1],
            budgets=WIDE["budgets"][group : group + 1],
            rows=WIDE["rows"][row : row + 1],
        )
        assert_rows_agree(alone, take(rollout, [row]))


def test_a_row_is_the_same_in_another_place_and_beside_others(table, rollout):
    first, second = WIDE["rows"][:GROUP], WIDE["rows"][GROUP : 2 * GROUP]
    moved = table.play(
        instances=(3, 0, 2, 1),
        budgets=(8, 8, 1, 5),
        rows=(*range(GROUP), *reversed(first), *range(GROUP), *second),
    )
    assert_rows_agree(take(moved, slice(2 * GROUP - 1, GROUP - 1, -1)), take(rollout, slice(0, GROUP)))
    assert_rows_agree(take(moved, slice(3 * GROUP, None)), take(rollout, slice(GROUP, 2 * GROUP)))
    assert len(set(np.concatenate(sampled_tokens(rollout)).tolist())) > 5


def test_equal_identities_of_one_task_play_alike_and_other_keys_do_not(table):
    twins = table.play(instances=(0, 0, 0, 0), budgets=(6, 6, 6, 6), rows=(*range(GROUP),) * 4)
    for group in range(1, 4):
        assert_rows_agree(take(twins, slice(group * GROUP, (group + 1) * GROUP)), take(twins, slice(0, GROUP)))
    other = table.play(instances=(0, 0, 0, 0), budgets=(6, 6, 6, 6), rows=(*range(GROUP),) * 4, seed=1)
    assert sampled_tokens(twins) != sampled_tokens(other)


def test_a_finished_row_is_not_touched_by_the_turns_of_others(table, rollout):
    """The fourth group is over after one turn; whether the batch goes on for eight turns or stops must not show."""
    short = table.play(budgets=(1, 1, 1, 1))
    assert short.n_turns_B.max() == 1
    assert rollout.n_turns_B.max() == 8
    assert_rows_agree(take(rollout, slice(3 * GROUP, None)), take(short, slice(3 * GROUP, None)))


# ---- budgets


def test_a_budget_that_is_not_told_only_cuts_a_trajectory_off():
    table = Table(budget_visibility="hidden")
    full = table.play(budgets=(8, 8, 8, 8))
    for budget in (1, 4, 7):
        cut = table.play(budgets=(budget,) * 4)
        np.testing.assert_array_equal(cut.n_turns_B, np.minimum(full.n_turns_B, budget))
        for name in ("state_BT", "action_BT", "reward_BT"):
            found, whole = getattr(cut.turns, name), getattr(full.turns, name)
            np.testing.assert_array_equal(found, np.where(np.arange(8) < budget, whole, 0))
        kept_BL = np.arange(full.batch.tokens_BL.shape[1]) < cut.batch.lengths_B[:, None]
        np.testing.assert_array_equal(cut.batch.tokens_BL, np.where(kept_BL, full.batch.tokens_BL, 0))
        within_B = full.success_B & (full.n_turns_B <= budget)
        np.testing.assert_array_equal(cut.success_B, within_B)
        over_B = full.n_turns_B <= budget
        np.testing.assert_array_equal(cut.stop_B, np.where(over_B, full.stop_B, StopReason.BUDGET.code))


def test_a_told_budget_changes_its_number_and_no_lake_and_no_place(table):
    decode = table.game.tokenizer.decode
    texts = {}
    for budget in (1, 3, 8):
        rollout = table.play(budgets=(budget,) * 4)
        np.testing.assert_array_equal(rollout.instance_B, np.repeat(WIDE["instances"], GROUP))
        first_B = rollout.batch.loss_mask_BL.argmax(axis=1)
        rows = zip(rollout.batch.tokens_BL.tolist(), first_B, strict=True)
        texts[budget] = [decode(tokens[:end]).replace(f"turns {budget} :", "turns N :") for tokens, end in rows]
        np.testing.assert_array_equal(
            rollout.turns.state_BT[:, 0], np.asarray(table.game.data.maps.start)[rollout.instance_B]
        )
    assert texts[1] == texts[3] == texts[8]
    assert all("turns N :" in text for text in texts[1])


# ---- programs


def test_one_program_serves_all_instances_budgets_identities_and_keys(table, rollout):
    arguments = {"instances": (2, 2, 1, 0), "budgets": (1, 2, 3, 4), "rows": range(40, 64)}
    before = compiled_programs()
    table.play(**arguments, seed=9)
    table.play(seed=10)
    assert compiled_programs() == before


def test_rows_that_are_no_whole_number_of_groups_are_refused(table):
    with pytest.raises(ArgumentError, match="same number of rows"):
        table.play(rows=range(22))
    with pytest.raises(ArgumentError, match="budgets_P one entry each"):
        table.play(budgets=(8,))


def test_a_model_without_room_for_one_turn_is_refused(table):
    game = table.game
    needed = game.task.prompt_width(game.data) + game.task.observation_width(game.data) + game.task.max_tokens
    config = dataclasses.replace(table.config, max_position_embeddings=needed - 1)
    with pytest.raises(ConfigError, match=f"{needed} tokens"):
        play(game, config, table.params, **WIDE)
