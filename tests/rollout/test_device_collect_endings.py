"""How episodes end, with policies whose every word is dictated."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_agent.envs.frozenlake import DOWN, LEFT, LOOK, RIGHT, UP
from jaxrl_agent.envs.frozenlake_maps import shortest_path
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, SPARE_IDS, lake_game, tag_game
from jaxrl_agent.testing.policies import leaning_policy, successions
from jaxrl_agent.testing.replay import play, replay, sampled_tokens
from jaxrl_agent.testing.replies import read_tagged
from jaxrl_agent.types import Rollout, StopReason

PATHS = ((DOWN, DOWN, RIGHT, RIGHT, DOWN, RIGHT), (DOWN,), (UP,), (LEFT, DOWN))  # shortest ones on FOUR_LAKES


def stops(rollout: Rollout) -> list[StopReason]:
    return [StopReason.from_code(int(code)) for code in rollout.stop_B]


# ---- words: the number of turns left tells the player which move is next


@pytest.fixture(scope="module")
def game():
    return lake_game(FOUR_LAKES, t_max=8, budget_visibility="remaining", lake={"foggy": False})


def play_moves(game, instance: int, moves: Sequence[int | None], budget: int) -> Rollout:
    """Play given moves, None an unusable reply; the last one again and again."""
    encode, follows = game.tokenizer.encode, {}
    end = encode(".")[0]
    for turn in range(budget):
        move = moves[min(turn, len(moves) - 1)]
        word = end if move is None else encode(ACTION_NAMES[move])[0]
        follows |= {encode(str(budget - turn))[0]: word, word: end}
    config, params = leaning_policy(successions(game.tokenizer.vocab_size, follows), num_hidden_layers=1)
    return play(game, config, params, instances=[instance], budgets=[budget], rows=[0, 1])


@pytest.mark.parametrize("instance", range(4))
def test_a_budget_of_the_shortest_path_is_enough_and_one_turn_less_is_not(game, instance):
    moves = PATHS[instance]
    assert shortest_path(FOUR_LAKES[instance]) == len(moves)
    for budget in range(max(1, len(moves) - 1), 9):
        rollout = play_moves(game, instance, moves, budget)
        reached = budget >= len(moves)
        assert stops(rollout) == [StopReason.SUCCESS if reached else StopReason.BUDGET] * 2
        assert rollout.success_B.tolist() == [reached] * 2
        assert rollout.return_B.tolist() == [float(reached)] * 2
        assert rollout.n_turns_B.tolist() == [min(budget, len(moves))] * 2
        played = list(moves[:budget])
        assert rollout.turns.action_BT[0, : len(played)].tolist() == played
        rewards = [0.0] * 8
        if reached:
            rewards[len(moves) - 1] = 1.0
        assert rollout.turns.reward_BT[0].tolist() == rewards


def test_a_hole_ends_the_episode_without_reward(game):
    rollout = play_moves(game, 0, (RIGHT, DOWN, LEFT), 8)
    assert stops(rollout) == [StopReason.FAILURE] * 2
    assert rollout.n_turns_B.tolist() == [2, 2]
    assert rollout.turns.state_BT[0].tolist() == [0, 1, *[0] * 6]
    assert not rollout.turns.reward_BT.any()
    assert not rollout.success_B.any()


def test_a_hole_on_the_last_allowed_turn_is_a_failure_and_not_the_budget(game):
    assert stops(play_moves(game, 0, (RIGHT, DOWN), 2)) == [StopReason.FAILURE] * 2


def test_unusable_replies_use_turns_up_and_move_nothing(game):
    rollout = play_moves(game, 0, (None, DOWN, None), 4)
    assert stops(rollout) == [StopReason.BUDGET] * 2
    assert rollout.n_turns_B.tolist() == [4, 4]
    assert rollout.turns.action_BT[0].tolist() == [-1, DOWN, -1, -1, 0, 0, 0, 0]
    assert rollout.turns.state_BT[0].tolist() == [0, 0, 4, 4, 0, 0, 0, 0]
    quality_T, best_T = rollout.turns.step_quality_BT[0, :4], rollout.turns.best_quality_BT[0, :4]
    np.testing.assert_allclose(best_T, 0.99 ** np.array([5, 5, 4, 4]), rtol=1e-5)
    np.testing.assert_allclose(quality_T, 0.99 ** np.array([6, 5, 5, 5]), rtol=1e-5)


def test_a_budget_of_one_turn_is_one_turn(game):
    rollout = play_moves(game, 0, (DOWN,), 1)
    assert rollout.n_turns_B.tolist() == [1, 1]
    assert stops(rollout) == [StopReason.BUDGET] * 2


# ---- chat: a reply is a chain of tokens behind the line break that opens it


class ChatTable:
    """The foggy lake in chat messages, with a token for each whole tag."""

    def __init__(self):
        self.game = tag_game()
        self.tokenizer = self.game.tokenizer
        self.ids = ChatIds.of(self.tokenizer)
        self.vocab_size = self.tokenizer.vocab_size + SPARE_IDS
        self.newline = self.tokenizer.encode("\n")[0]

    def tag(self, action: int) -> int:
        return self.tokenizer.tag_ids[f"<action>{ACTION_NAMES[action]}</action>"]

    def play(self, logits_VV: np.ndarray, *, noise: float = 0.0, shape: Mapping[str, int] = {}, **changes: Any):
        config, params = leaning_policy(logits_VV, noise=noise, num_hidden_layers=1, **shape)
        arguments = {"instances": [0, 2, 3], "budgets": [4, 4, 3], "rows": range(6)} | changes
        rollout = play(self.game, config, params, **arguments)
        read = functools.partial(read_tagged, self.tokenizer, ACTION_NAMES, self.tokenizer.stop_ids, self.ids.think_ids)
        width = rollout.batch.tokens_BL.shape[1]
        again = replay(self.game, read, sampled_tokens(rollout), width=width, **arguments)
        again = again.replace(batch=again.batch.replace(sampler_logprobs_BL=rollout.batch.sampler_logprobs_BL))
        jax.tree.map(np.testing.assert_array_equal, rollout, again)
        return rollout

    def say(self, *reply: int, **changes: Any) -> Rollout:
        """Play one reply again and again; its last token is repeated until the reply is cut, if it ends none."""
        chain = dict(zip((self.newline, *reply), reply, strict=False))
        return self.play(successions(self.vocab_size, {reply[-1]: reply[-1]} | chain), **changes)


@pytest.fixture(scope="module")
def chat() -> ChatTable:
    return ChatTable()


def test_a_tag_and_the_end_of_the_message_are_a_move(chat):
    rollout = chat.say(chat.tag(UP), chat.ids.end)
    assert stops(rollout) == [StopReason.BUDGET] * 2 + [StopReason.SUCCESS] * 2 + [StopReason.BUDGET] * 2
    assert rollout.turns.action_BT[0].tolist() == [UP] * 4
    assert sampled_tokens(rollout)[2] == [chat.tag(UP), chat.ids.end]


def test_every_token_that_ends_a_reply_ends_it(chat):
    for stop in chat.ids.stop_ids:
        rollout = chat.say(chat.tag(UP), stop)
        assert rollout.success_B.tolist() == [False, False, True, True, False, False]


def test_a_reply_that_runs_into_its_token_limit_ends_the_episode_and_moves_nothing(chat):
    letter = chat.tokenizer.encode("a")[0]
    rollout = chat.say(letter)
    assert stops(rollout) == [StopReason.TOKEN_LIMIT] * 6
    assert rollout.n_turns_B.tolist() == [1] * 6
    assert sampled_tokens(rollout) == [[letter] * 4] * 6
    assert not rollout.return_B.any()


def test_the_action_of_a_cut_reply_is_not_played_and_not_recorded(chat):
    """The tag is complete, but the message is not: up would reach the goal of the second lake."""
    rollout = chat.say(chat.tag(UP), chat.tag(UP))
    assert stops(rollout) == [StopReason.TOKEN_LIMIT] * 6
    assert not rollout.success_B.any()
    starts_B = np.asarray(chat.game.data.maps.start)[rollout.instance_B]
    np.testing.assert_array_equal(rollout.turns.action_BT[:, 0], [-1] * 6)
    np.testing.assert_array_equal(rollout.turns.state_BT[:, 0], starts_B)
    np.testing.assert_allclose(rollout.turns.step_quality_BT[:, 0], 0.99 * rollout.turns.best_quality_BT[:, 0])


def test_a_reply_may_end_with_its_last_allowed_token(chat):
    letter = chat.tokenizer.encode("b")[0]
    rollout = chat.say(letter, letter + 1, chat.tag(UP), chat.ids.end)
    assert rollout.success_B.tolist() == [False, False, True, True, False, False]


def test_a_tag_inside_reasoning_is_not_played(chat):
    opening, closing = chat.ids.think_ids
    rollout = chat.say(opening, chat.tag(UP), closing, chat.ids.end)
    assert stops(rollout) == [StopReason.BUDGET] * 6
    assert rollout.turns.action_BT[0].tolist() == [-1] * 4
    assert chat.say(opening, closing, chat.tag(UP), chat.ids.end).success_B[2:4].all()


def test_an_empty_reply_wastes_its_turn(chat):
    rollout = chat.say(chat.ids.end)
    assert stops(rollout) == [StopReason.BUDGET] * 6
    assert rollout.n_turns_B.tolist() == [4, 4, 4, 4, 3, 3]
    assert sampled_tokens(rollout)[5] == [chat.ids.end] * 3


def test_ids_beyond_the_tokenizer_spell_nothing_in_a_reply(chat):
    spare = chat.tokenizer.vocab_size + 1
    assert chat.say(spare, chat.tag(UP), chat.ids.end).success_B[2:4].all()


def test_a_look_shows_in_the_next_observation(chat):
    rollout = chat.say(chat.tag(LOOK), chat.ids.end)
    text = chat.tokenizer.decode(rollout.batch.tokens_BL[0, : rollout.batch.lengths_B[0]].tolist())
    assert text.count("You look: no hole around you.") == 3  # the fourth look is the last turn, and nobody reads on


def test_a_full_context_ends_the_episode_before_a_turn_that_might_not_fit(chat):
    full = chat.say(chat.tag(LOOK), chat.ids.end)
    third_turn_B = (full.batch.turn_BL == 2).argmax(axis=1)  # where the reply of the third turn begins
    # One position less than the third reply might need; that an exact fit is used shows in every other rollout.
    width = int(third_turn_B[0]) + chat.game.task.max_tokens - 1
    rollout = chat.say(chat.tag(LOOK), chat.ids.end, shape={"max_position_embeddings": width})
    assert rollout.batch.tokens_BL.shape == (6, width)
    assert stops(rollout)[:2] == [StopReason.CONTEXT_LIMIT] * 2
    assert rollout.n_turns_B[:2].tolist() == [2, 2]
    assert (rollout.batch.lengths_B <= width).all()
    assert rollout.batch.loss_mask_BL[0, rollout.batch.lengths_B[0] - 1]  # no observation stands behind it


def test_endings_of_all_kinds_in_one_batch_are_what_plain_python_plays(chat):
    """One who begins replies in ten ways and goes on as the dice fall; `play` compares with the replay."""
    rng = np.random.default_rng(0)
    openings = [chat.tag(action) for action in range(5)] + [*chat.ids.think_ids, chat.ids.end, 97, 98]
    logits_VV = np.zeros((chat.vocab_size,) * 2)
    logits_VV[:, openings] = rng.normal(8, 0.5, (chat.vocab_size, len(openings)))
    logits_VV[[chat.tag(action) for action in range(5)], chat.ids.end] = 12
    seen = set()
    for seed in range(5):
        seen |= set(stops(chat.play(logits_VV, noise=0.01, seed=seed, instances=[0, 1, 3])))
    assert seen >= {StopReason.SUCCESS, StopReason.TOKEN_LIMIT, StopReason.BUDGET, StopReason.FAILURE}
