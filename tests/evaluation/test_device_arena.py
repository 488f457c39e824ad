"""The arena on a game in chat messages, where replies may be unusable, cut off, or reasoned about."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.device_arena import CUT, DeviceArena
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.tasks.frozenlake_probe import LakeProbe
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import SPARE_IDS, tag_game
from jaxrl_agent.testing.policies import leaning_policy
from jaxrl_agent.testing.replies import read_tagged

REPLIES = 24


class Table:
    """One who sometimes says two tags, sometimes none, sometimes thinks, and sometimes does not stop."""

    def __init__(self):
        self.game = tag_game()
        tokenizer = self.tokenizer = self.game.tokenizer
        self.ids = ChatIds.of(tokenizer)
        rng = np.random.default_rng(0)
        tags = list(tokenizer.tag_ids.values())
        opening, closing = self.ids.think_ids
        logits_VV = np.full((tokenizer.vocab_size + SPARE_IDS,) * 2, -20.0)
        for liked, weight in ((tags, 2.0), ([opening], 0.5), ([closing], 0.5), ([self.ids.end], 2.5)):
            logits_VV[:, liked] = weight + rng.normal(size=(len(logits_VV), len(liked)))
        config, params = leaning_policy(logits_VV, num_hidden_layers=1)
        self.policy = Policy(config, params, "tags")
        self.arena = DeviceArena(
            self.game,
            LakeProbe(self.game.task, self.game.instances),
            budget=4,
            rows=64,
            think_ids=self.ids.think_ids,
        )
        self.episodes = self.arena.play(self.policy, samples=6)
        visits = self.arena.visits(self.episodes)
        few = np.arange(0, len(visits.keys), 3)
        self.positions = self.arena.positions([self.episodes], few * 0, visits.row_V[few], visits.turn_V[few])
        self.replies = self.arena.act([self.policy], self.positions, replies=REPLIES)


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


def each_reply(table: Table):
    """(state, outcome, ids) of every sampled reply."""
    rollout, starts = table.replies.rows[0], table.positions.starts
    for state, outcomes in enumerate(table.replies.outcome_SN[0]):
        for copy, outcome in enumerate(outcomes):
            row = state * REPLIES + copy
            said = rollout.batch.turn_BL[row] == starts.turn_S[state]
            yield state, table.replies.outcomes[state][outcome], rollout.batch.tokens_BL[row, said].tolist()


def test_a_reply_amounts_to_what_another_reader_says(table):
    read = functools.partial(read_tagged, table.tokenizer, ACTION_NAMES, table.tokenizer.stop_ids, table.ids.think_ids)
    met = set()
    for _, outcome, ids in each_reply(table):
        over, action = read(ids)
        expected = CUT if not over else None if action < 0 else ACTION_NAMES[action]
        assert outcome == expected
        met.add(outcome)
    assert {CUT, None, *ACTION_NAMES} == met


def test_every_copy_of_a_state_reads_the_very_bytes_of_the_episode_it_comes_from(table):
    rollout, starts = table.replies.rows[0], table.positions.starts
    known = {
        tuple(table.episodes.rollout.batch.tokens_BL[row, :length].tolist())
        for row in range(len(table.episodes.rollout.n_turns_B))
        for length in range(1, int(table.episodes.rollout.batch.lengths_B[row]) + 1)
    }
    for state in range(len(table.positions)):
        contexts = set()
        for copy in range(REPLIES):
            row = state * REPLIES + copy
            first = int(np.flatnonzero(rollout.batch.turn_BL[row] == starts.turn_S[state])[0])
            contexts.add(tuple(rollout.batch.tokens_BL[row, :first].tolist()))
        assert len(contexts) == 1
        assert contexts <= known


def test_a_reply_that_is_cut_off_is_worth_nothing_and_an_unusable_one_a_turn(table):
    values = table.arena.exact(table.positions, table.replies)
    sampled = table.arena.monte_carlo(table.policy, table.positions, table.replies, rollouts=4)
    for state, names in enumerate(table.replies.outcomes):
        cut, unusable = names.index(CUT), names.index(None)
        for quality in values.values():
            assert quality[state][cut] == 0
            assert quality[state][unusable] == quality[state][names.index("look")]
        if (table.replies.outcome_SN[0][state] == cut).any():
            assert sampled[state][cut] == 0


def test_scores_are_the_samplers_log_probabilities_and_leave_reasoning_out_of_actions(table):
    scores = table.arena.score(table.policy, table.episodes)
    batch = table.episodes.rollout.batch
    for row, n in enumerate(table.episodes.rollout.n_turns_B):
        for turn in range(n):
            said = batch.turn_BL[row] == turn
            sampled = batch.sampler_logprobs_BL[row, said].astype(np.float64)
            assert scores.turn_BT[row, turn] == pytest.approx(sampled.sum(), abs=1e-4)
            assert scores.tokens_BT[row, turn] == said.sum()
            ids, thinking, spoken = batch.tokens_BL[row, said].tolist(), False, []
            for place, token in enumerate(ids):
                thinking = thinking or token == table.ids.think_ids[0]
                if not thinking:
                    spoken.append(place)
                thinking = thinking and token != table.ids.think_ids[1]
            assert scores.action_BT[row, turn] == pytest.approx(sampled[spoken].sum(), abs=1e-4)
    assert (scores.action_BT != scores.turn_BT).any()
    assert not scores.turn_BT[np.arange(4) >= table.episodes.rollout.n_turns_B[:, None]].any()


def test_an_injected_error_is_written_as_a_whole_message_of_the_agent(table):
    errors = table.arena.inject(table.positions)
    assert errors.ok_S.any()
    starts = errors.after.starts
    for place in np.flatnonzero(errors.ok_S):
        turn = int(starts.turn_S[place]) - 1
        said = starts.rows.turn_BL[place] == turn
        expected = [*table.tokenizer.encode(f"<action>{errors.names[place]}</action>"), table.ids.end]
        assert starts.rows.tokens_BL[place, said].tolist() == expected
        assert not starts.rows.sampled_BL[place, said].any()
    few = errors.after.take(np.flatnonzero(errors.ok_S)[:4])
    success, ends = table.arena.finish(table.policy, few, continuations=3)
    assert success.shape == (len(few), 3)
    assert (ends.rollout.n_turns_B > np.repeat(few.starts.turn_S, 3) - 1).all()
