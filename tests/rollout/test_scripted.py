from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs.frozenlake import LOOK
from jaxrl_agent.rollout.scripted import play_script
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import CHAT, FOUR_LAKES, lake_game
from jaxrl_agent.testing.replay import replay
from jaxrl_agent.testing.replies import read_tagged, read_words

TURNS = 6
GAMES = {
    "words": {},
    "words_hidden": {"budget_visibility": "hidden"},
    "words_remaining": {"budget_visibility": "remaining"},
    "chat_total": CHAT,
    "chat_remaining": {**CHAT, "budget_visibility": "remaining"},
}


def roam(data, instance, state, memory, budget, key):
    """Act at random, but look on every third turn; the memory counts the turns."""
    action = jax.random.randint(key, (), 0, 4)
    return jnp.where(memory % 3 == 2, LOOK, action), memory + 1


def play(game, *, actor=roam, budget: int = TURNS, seed: int = 0, turns: int = TURNS):
    instances_B = np.tile(np.arange(4, dtype=np.int32), 3)
    script = jax.jit(functools.partial(play_script, game.task, actor=actor, turns=turns))
    return jax.tree.map(
        np.asarray,
        script(
            data=game.data,
            instances_B=instances_B,
            budgets_B=np.full(12, budget, np.int32),
            key=jax.random.key(seed),
        ),
    )


def texts(game, batch) -> list[str]:
    rows = zip(batch.tokens_BL.tolist(), batch.lengths_B.tolist(), strict=True)
    return [game.tokenizer.decode(tokens[:length]) for tokens, length in rows]


@pytest.mark.parametrize("name", GAMES)
def test_a_demonstration_is_written_as_a_rollout_with_the_same_actions_would_be(name):
    game = lake_game(FOUR_LAKES, t_max=TURNS, **GAMES[name])
    batch, success_B = play(game)
    if "chat" in name:
        read = functools.partial(read_tagged, game.tokenizer, ACTION_NAMES, game.tokenizer.stop_ids, None)
    else:
        read = functools.partial(read_words, game.tokenizer, ACTION_NAMES)
    width = game.task.context_width(game.data)
    # The lake does not slip, so that actions alone decide.
    expected = replay(
        game,
        read,
        [tokens[mask].tolist() for tokens, mask in zip(batch.tokens_BL, batch.loss_mask_BL, strict=True)],
        instances=[0, 1, 2, 3] * 3,
        budgets=[TURNS] * 12,
        rows=range(12),
        width=width,
    )
    for field in ("tokens_BL", "loss_mask_BL", "sampler_logprobs_BL"):
        found_BL, wanted_BL = getattr(batch, field), getattr(expected.batch, field)
        np.testing.assert_array_equal(found_BL, wanted_BL[:, : found_BL.shape[1]])
        assert not wanted_BL[:, found_BL.shape[1] :].any()
    np.testing.assert_array_equal(batch.turn_BL, expected.batch.turn_BL[:, : batch.turn_BL.shape[1]])
    np.testing.assert_array_equal(batch.lengths_B, expected.batch.lengths_B)
    np.testing.assert_array_equal(success_B, expected.success_B)
    assert 0 < success_B.sum() < 12
    assert len(set(batch.lengths_B.tolist())) > 3  # some ended early, and nothing was written behind their end


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_a_demonstration_longer_than_the_budget_it_tells_keeps_its_messages_whole(budget):
    """A later observation has its own header and never tells less than one turn left."""

    def stay_and_look(data, instance, state, memory, budget, key):
        return jnp.int32(LOOK), memory

    game = lake_game(FOUR_LAKES, t_max=TURNS, **GAMES["chat_remaining"])
    batch, success_B = play(game, actor=stay_and_look, budget=budget)
    assert not success_B.any()
    for text in texts(game, batch):
        assert text.count("<action>look</action><|im_end|>") == TURNS
        assert text.count("<|im_end|>\n<|im_start|>user\n") == TURNS  # the first one behind the system message
        left = [int(number) for number in re.findall(r"Turns left: (\d+)\.", text)]
        assert left == [max(1, budget - turn) for turn in range(TURNS)]


def test_the_told_budget_does_not_cut_a_demonstration():
    game = lake_game(FOUR_LAKES, t_max=TURNS)
    short, long = (play(game, budget=budget)[0] for budget in (1, TURNS))
    np.testing.assert_array_equal(short.loss_mask_BL, long.loss_mask_BL)
    changed_BL = short.tokens_BL != long.tokens_BL
    assert changed_BL.sum(axis=1).tolist() == [1] * 12  # the number in the prompt


def test_slips_are_drawn_for_each_row_and_turn():
    """One actor, one lake, one start: only the ice differs."""

    def insist(data, instance, state, memory, budget, key):
        return jnp.int32(2), memory

    game = lake_game([["SFFF", "FFFF", "FFFF", "FFFG"]] * 4, t_max=8, lake={"success_rate": 0.4})
    batch, _ = play(game, actor=insist, turns=8)
    assert len({tuple(row) for row in batch.tokens_BL.tolist()}) > 8
    again, _ = play(game, actor=insist, turns=8)
    np.testing.assert_array_equal(batch.tokens_BL, again.tokens_BL)
    other, _ = play(game, actor=insist, turns=8, seed=1)
    assert not np.array_equal(batch.tokens_BL, other.tokens_BL)
