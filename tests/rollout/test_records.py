from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs.frozenlake import LOOK
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.rollout.records import to_trajectories
from jaxrl_agent.run_dir import RunDir, to_jsonable
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, SPARE_IDS, lake_game, tag_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy, successions
from jaxrl_agent.testing.replay import play
from jaxrl_agent.types import Rollout, StopReason, Trajectory

VERSION = 17  # updates that the policy is said to have seen


def trajectories_of(game, rollout: Rollout, **arguments) -> list[Trajectory]:
    return list(
        to_trajectories(
            rollout, game.instances, game.tokenizer, t_max=game.task.t_max, policy_version=VERSION, **arguments
        )
    )


@pytest.fixture(scope="module")
def game():
    return lake_game(FOUR_LAKES, t_max=8, lake={"success_rate": 0.7})


@pytest.fixture(scope="module")
def rollout(game) -> Rollout:
    config, params = leaning_policy(babbling_words(game.tokenizer, ACTION_NAMES), noise=0.06)
    return play(game, config, params, instances=(0, 1, 2, 3), budgets=(8, 5, 6, 1), rows=range(24))


@pytest.fixture(scope="module")
def trajectories(game, rollout) -> list[Trajectory]:
    return trajectories_of(game, rollout)


def test_every_row_becomes_one_trajectory_with_its_own_facts(game, rollout, trajectories):
    assert len(trajectories) == 24
    for row, trajectory in enumerate(trajectories):
        group = row // 6
        assert trajectory.instance_id == game.instances.instance_id(group)
        prompt = game.tokenizer.decode(trajectory.prompt_tokens)
        assert trajectory.instance == {"map": list(FOUR_LAKES[group]), "prompt": prompt}
        assert (trajectory.group_id, trajectory.budget, trajectory.t_max) == (group, (8, 5, 6, 1)[group], 8)
        assert trajectory.policy_version == VERSION
        assert len(trajectory.turns) == rollout.n_turns_B[row]
        assert trajectory.stop_reason is StopReason.from_code(int(rollout.stop_B[row]))
        assert trajectory.success == (trajectory.stop_reason is StopReason.SUCCESS)
        assert trajectory.return_ == sum(turn.reward for turn in trajectory.turns) == float(trajectory.success)
    reasons = {trajectory.stop_reason for trajectory in trajectories}
    assert reasons == {StopReason.SUCCESS, StopReason.FAILURE, StopReason.BUDGET}


def test_prompt_observations_and_replies_add_up_to_the_row(game, rollout, trajectories):
    batch = rollout.batch
    for row, trajectory in enumerate(trajectories):
        ids = list(trajectory.prompt_tokens)
        for turn in trajectory.turns:
            ids += game.tokenizer.encode(turn.observation) + turn.tokens
        assert ids == batch.tokens_BL[row, : batch.lengths_B[row]].tolist()
        logprobs = [logprob for turn in trajectory.turns for logprob in turn.logprobs]
        np.testing.assert_array_equal(
            np.array(logprobs, np.float32), batch.sampler_logprobs_BL[row][batch.loss_mask_BL[row]]
        )
        assert all(len(turn.tokens) == len(turn.logprobs) for turn in trajectory.turns)


def test_turns_say_what_was_read_written_and_played(game, rollout, trajectories):
    unusable = 0
    for row, trajectory in enumerate(trajectories):
        size = len(FOUR_LAKES[trajectory.group_id])
        for number, turn in enumerate(trajectory.turns):
            cell = int(rollout.turns.state_BT[row, number])
            assert turn.observation.split()[0] == f"{'abcd'[cell % size]}{cell // size + 1}"
            assert turn.text == game.tokenizer.decode(turn.tokens)
            assert turn.info["cell"] == cell
            if turn.parsed_action is None:
                assert turn.text not in {f"{name} ." for name in ACTION_NAMES}
                unusable += 1
            else:
                assert turn.text == f"{turn.parsed_action} ."
            assert turn.info["quality"] == rollout.turns.step_quality_BT[row, number]
            assert turn.info["best_quality"] == rollout.turns.best_quality_BT[row, number]
    assert unusable


def test_the_state_key_is_task_place_and_what_looks_have_told(game, trajectories):
    """Followed with the environment itself, from the actions alone; where it slipped is read off the next turn."""
    step = jax.jit(game.task.step)
    looked = 0
    for trajectory in trajectories:
        state = game.task.reset(game.data, trajectory.group_id)
        for turn in trajectory.turns:
            known = np.flatnonzero(state.seen_X).tolist()
            assert turn.state_key == f"{trajectory.instance_id}/{turn.info['cell']}/{','.join(map(str, known))}"
            assert turn.info["cells_seen"] == known
            action = -1 if turn.parsed_action is None else ACTION_NAMES.index(turn.parsed_action)
            looked += action == LOOK
            state = state.replace(cell=jnp.int32(turn.info["cell"]))
            state, _, _ = step(game.data, trajectory.group_id, state, jnp.int32(action), jax.random.key(0))
    assert looked


def test_equal_situations_share_a_key_across_trajectories_and_others_do_not(trajectories):
    firsts = [trajectory.turns[0].state_key for trajectory in trajectories]
    for group in range(4):
        assert len(set(firsts[group * 6 : group * 6 + 6])) == 1
    assert len(set(firsts)) == 4


def test_chosen_rows_come_in_the_order_asked_for(game, rollout, trajectories):
    assert trajectories_of(game, rollout, rows=[7, 0]) == [trajectories[7], trajectories[0]]
    assert trajectories_of(game, rollout, rows=[]) == []


def test_a_rollout_on_device_gives_the_same(game, rollout, trajectories):
    assert trajectories_of(game, jax.tree.map(jnp.asarray, rollout)) == trajectories


def test_trajectories_survive_json_and_a_run_directory(trajectories, tmp_path):
    plain = json.loads(json.dumps([to_jsonable(trajectory) for trajectory in trajectories], allow_nan=False))
    keys = "instance_id group_id budget t_max success return stop_reason turns prompt_tokens policy_version"
    assert set(keys.split()) <= plain[0].keys()
    turn_keys = "text observation tokens logprobs reward parsed_action state_key"
    assert set(turn_keys.split()) <= plain[0]["turns"][0].keys()
    assert plain[0]["stop_reason"] in {reason.value for reason in StopReason}
    assert plain[3]["turns"][0]["logprobs"] == trajectories[3].turns[0].logprobs
    run = RunDir.create(tmp_path / "run", {})
    run.write_trajectories("update_000001", trajectories)
    assert list(run.trajectories("update_000001")) == plain


# ---- replies that were cut, contexts that were full


@pytest.fixture(scope="module")
def chat():
    return tag_game()


def say(chat, *reply: int, **shape) -> tuple[list[Trajectory], Rollout]:
    """Say one thing again and again on three lakes; a reply without an end repeats its last token."""
    newline = chat.tokenizer.encode("\n")[0]
    chain = {reply[-1]: reply[-1]} | dict(zip((newline, *reply), reply, strict=False))
    logits_VV = successions(chat.tokenizer.vocab_size + SPARE_IDS, chain)
    config, params = leaning_policy(logits_VV, num_hidden_layers=1, **shape)
    rollout = play(chat, config, params, instances=[0, 1, 2], budgets=[4, 4, 3], rows=range(6))
    return trajectories_of(chat, rollout), rollout


def test_the_turn_of_a_cut_reply_is_there_with_its_place_and_without_an_action(chat):
    tag = chat.tokenizer.tag_ids["<action>down</action>"]
    trajectory = say(chat, tag)[0][2]
    (turn,) = trajectory.turns
    assert trajectory.stop_reason is StopReason.TOKEN_LIMIT
    assert turn.tokens == [tag] * 4
    assert turn.parsed_action is None
    assert turn.reward == 0
    assert turn.state_key == f"{trajectory.instance_id}/4/"  # where the second lake starts
    assert turn.info["quality"] == pytest.approx(0.99 * turn.info["best_quality"])


def test_a_turn_that_found_no_room_is_not_there(chat):
    tag, end = chat.tokenizer.tag_ids["<action>look</action>"], ChatIds.of(chat.tokenizer).end
    (whole, *_), rollout = say(chat, tag, end)
    assert [turn.text for turn in whole.turns] == ["<action>look</action><|im_end|>"] * 4
    third = int((rollout.batch.turn_BL[0] == 2).argmax())  # where the reply of the third turn begins
    (short, *_), _ = say(chat, tag, end, max_position_embeddings=third + chat.task.max_tokens - 1)
    assert short.stop_reason is StopReason.CONTEXT_LIMIT
    assert short.turns == whole.turns[:2]


def test_ids_without_a_spelling_are_kept_as_ids_and_left_out_of_the_text(chat):
    spare, end = chat.tokenizer.vocab_size + 1, ChatIds.of(chat.tokenizer).end
    (trajectory, *_), _ = say(chat, spare, end)
    assert trajectory.turns[0].tokens == [spare, end]
    assert trajectory.turns[0].text == "<|im_end|>"
