"""Host trajectories as arrays and as records: masks, filler, names of states, what was put in and what failed."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.rollout.host_records import spelled, state_columns, to_host_trajectories, to_rollout
from jaxrl_agent.rollout.seats import Played, Request, Said
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.types import StopReason, TokenRow

WORDS = load_tokenizer("lake_words")
SPARE = WORDS.vocab_size + 1  # an id of the model that no word has
PROMPT = WORDS.encode("up down")
FIRST, SEEN, SECOND = WORDS.encode("left ."), WORDS.encode("right"), [WORDS.encode("up")[0], SPARE]
GOAL = StopReason.SUCCESS
ANSWERS = [
    Answer(SEEN, 0.0, False, None, "left", state_key="a", quality=0.25, best_quality=0.5, process=0.125),
    Answer([], 1.0, True, GOAL, None, text="up?", state_key="b", call_ok=False, info={"tests": 3}),
]


def two_turns(*, said: tuple[Said, ...] = (), instance: int = 4) -> Played:
    """Prompt, reply, observation, reply."""
    row = TokenRow()
    for ids, turn in ((PROMPT, -1), (FIRST, 0), (SEEN, -1), (SECOND, 1)):
        row.append(ids, turn=turn)
    logprobs = [-float(place) if turn >= 0 else 0.0 for place, turn in enumerate(row.turns)]
    return Played(Request(instance, 6, 9, said), row, logprobs, len(PROMPT), ANSWERS, GOAL)


def never_opened(message: str = "no such file") -> Played:
    """A trajectory whose episode could not be made."""
    return Played(Request(2, 3, 1), TokenRow(), [], 0, [], StopReason.ENVIRONMENT_ERROR, message)


class Instances:
    """Names of instances."""

    def instance_id(self, index: int) -> str:
        return f"game/{index}"

    def instance_info(self, index: int) -> dict:
        return {"level": index}


def records_of(*played: Played):
    about = {"t_max": 6, "policy_version": 12, "groups": [7 + place for place in range(len(played))]}
    return list(to_host_trajectories(played, Instances(), WORDS, **about))


def test_a_trajectory_becomes_a_row_of_tokens_with_its_replies_marked():
    rollout = to_rollout([two_turns()], t_max=3, groups_B=np.array([5]), width=16)
    batch = rollout.batch
    ids = PROMPT + FIRST + SEEN + SECOND
    turns = [-1] * len(PROMPT) + [0] * len(FIRST) + [-1] * len(SEEN) + [1] * len(SECOND)
    assert batch.lengths_B.tolist() == [len(ids)]
    assert batch.tokens_BL[0].tolist() == ids + [0] * (16 - len(ids))
    assert batch.turn_BL[0].tolist() == turns + [-1] * (16 - len(ids))
    assert batch.loss_mask_BL[0].tolist() == [turn >= 0 for turn in turns] + [False] * (16 - len(ids))
    sampled = np.flatnonzero(batch.loss_mask_BL[0])
    np.testing.assert_array_equal(batch.sampler_logprobs_BL[0, sampled], -sampled.astype(np.float32))
    assert (rollout.prompt_lengths_B[0], rollout.group_B[0], rollout.budget_B[0]) == (len(PROMPT), 5, 6)
    assert (rollout.instance_B[0], rollout.n_turns_B[0], rollout.stop_B[0]) == (4, 2, GOAL.code)
    assert (rollout.return_B[0], rollout.success_B[0]) == (1.0, True)


def test_what_answers_say_stands_at_their_turns_and_nothing_behind_them():
    turns = to_rollout([two_turns()], t_max=3, groups_B=np.array([0])).turns
    assert turns.reward_BT.tolist() == [[0.0, 1.0, 0.0]]
    assert turns.step_quality_BT.tolist() == [[0.25, 0.0, 0.0]]
    assert turns.best_quality_BT.tolist() == [[0.5, 0.0, 0.0]]
    assert turns.process_BT.tolist() == [[0.125, 0.0, 0.0]]
    assert turns.action_BT.tolist() == [[0, -1, 0]]
    assert [tuple(key) for key in turns.key_BTK[0]] == [state_columns("a"), state_columns("b"), (0, 0)]


def test_a_row_is_as_wide_as_the_smallest_size_that_holds_the_longest():
    long = two_turns()
    long.row.append([1] * 70)
    long.logprobs.extend([0.0] * 70)
    for played, width in (([two_turns()], 64), ([two_turns(), long], 128), ([never_opened()], 64)):
        assert to_rollout(played, t_max=3, groups_B=np.zeros(len(played))).batch.tokens_BL.shape[1] == width


def test_a_prompt_without_room_for_a_reply_makes_no_row_wide():
    row = TokenRow([3] * 5000, [-1] * 5000)
    full = Played(Request(1, 6, 2), row, [0.0] * 5000, 5000, [], StopReason.CONTEXT_LIMIT)
    rollout = to_rollout([two_turns(), full], t_max=3, groups_B=np.array([0, 1]))
    assert rollout.batch.tokens_BL.shape == (2, 64)
    assert rollout.batch.lengths_B[1] == rollout.prompt_lengths_B[1] == 64
    assert not rollout.batch.loss_mask_BL[1].any()
    assert rollout.stop_B[1] == StopReason.CONTEXT_LIMIT.code


def test_a_reply_that_was_put_in_keeps_its_turn_but_is_nobodys_to_train_on():
    rollout = to_rollout([two_turns(said=(Said(tuple(FIRST), sampled=False),))], t_max=3, groups_B=np.array([0]))
    turn_L, mask_L = rollout.batch.turn_BL[0], rollout.batch.loss_mask_BL[0]
    assert (turn_L == 0).sum() == len(FIRST)
    assert not mask_L[turn_L == 0].any()
    assert mask_L[turn_L == 1].all()


def test_a_reply_that_was_sampled_before_is_trained_on_like_any_other():
    rollout = to_rollout([two_turns(said=(Said(tuple(FIRST)),))], t_max=3, groups_B=np.array([0]))
    assert rollout.batch.loss_mask_BL[0].sum() == len(FIRST) + len(SECOND)


def test_an_episode_that_was_never_made_is_a_well_formed_row_without_turns():
    rollout = to_rollout([never_opened(), two_turns()], t_max=3, groups_B=np.array([0, 1]))
    assert rollout.batch.lengths_B[0] == rollout.prompt_lengths_B[0] == 1
    assert not rollout.batch.loss_mask_BL[0].any()
    assert (rollout.n_turns_B[0], rollout.stop_B[0]) == (0, StopReason.ENVIRONMENT_ERROR.code)
    assert (rollout.return_B[0], rollout.success_B[0]) == (0.0, False)


def test_names_of_states_are_two_columns_that_differ_where_names_do():
    names = [f"{index}/{cell}" for index in range(40) for cell in range(40)]
    columns = [state_columns(name) for name in names]
    assert len(set(columns)) == len(names)
    assert columns == [state_columns(name) for name in names]
    assert all(0 <= column < 2**31 for pair in columns for column in pair)


def test_people_read_what_was_said_and_seen():
    (record,) = records_of(two_turns())
    assert (record.instance_id, record.group_id, record.budget, record.t_max) == ("game/4", 7, 6, 6)
    assert (record.policy_version, record.stop_reason) == (12, GOAL)
    assert (record.return_, record.success) == (1.0, True)
    assert record.instance == {"level": 4, "prompt": WORDS.decode(PROMPT)}
    assert record.prompt_tokens == PROMPT
    first, second = record.turns
    assert (first.text, first.observation) == (WORDS.decode(FIRST), "")
    assert (second.text, second.observation) == ("up?", WORDS.decode(SEEN))
    assert (first.tokens, second.tokens) == (FIRST, SECOND)
    assert (first.parsed_action, second.parsed_action) == ("left", None)
    assert (first.state_key, second.reward) == ("a", 1.0)
    assert first.logprobs == [-2.0, -3.0]
    assert first.info == {"quality": 0.25, "best_quality": 0.5}
    assert second.info == {"quality": 0.0, "best_quality": 0.0, "call_ok": False, "tests": 3}


def test_people_see_no_log_probabilities_of_a_reply_that_was_put_in():
    (record,) = records_of(two_turns(said=(Said(tuple(FIRST), sampled=False),)))
    assert record.turns[0].logprobs == []
    assert len(record.turns[1].logprobs) == len(SECOND)


def test_people_read_why_an_episode_failed():
    whole, failed = records_of(two_turns(), never_opened("no such file"))
    assert failed.instance["failure"] == "no such file"
    assert (failed.turns, failed.prompt_tokens, failed.group_id) == ([], [], 8)
    assert "failure" not in whole.instance


def test_spare_ids_spell_nothing():
    assert spelled(WORDS, [SPARE, *FIRST, SPARE]) == WORDS.decode(FIRST)


def test_each_trajectory_has_a_group():
    with pytest.raises(ValueError, match="shorter"):
        list(to_host_trajectories([two_turns()] * 2, Instances(), WORDS, t_max=6, policy_version=0, groups=[1]))
