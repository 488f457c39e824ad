"""DeepCoder-MT turn by turn: what is graded, what it is worth, when it ends, and what the agent gets to read."""

from __future__ import annotations

import dataclasses
import re

import pytest

from jaxrl_agent.config import CodingConfig, TaskConfig
from jaxrl_agent.errors import ArgumentError, ConfigError, SandboxError, TokenizerError
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.sandbox import Limits
from jaxrl_agent.tasks.deepcoder import make_deepcoder
from jaxrl_agent.testing.coding import (
    ROOM,
    ScriptedJudge,
    begin,
    coding_split,
    line_problem,
    number_problem,
    said,
    submit,
)
from jaxrl_agent.types import StopReason

PUBLIC_ONLY = "pass pass fail"  # of two public and three hidden tests


@pytest.fixture(params=["code_bpe", "byte", "qwen3"])
def tokenizer(request):
    name = request.param
    return load_tokenizer(request.getfixturevalue("data_dir") / "qwen3_tokenizer" if name == "qwen3" else name)


# ---- endings and rewards


def test_a_program_that_passes_all_tests_succeeds():
    answer = begin().step(submit("pass"))
    assert (answer.stop, answer.terminated, answer.reward, answer.observation) == (StopReason.SUCCESS, True, 1.0, [])
    assert not answer.is_error


def test_a_program_that_passes_the_public_tests_alone_is_final_and_fails():
    answer = begin().step(submit(PUBLIC_ONLY))
    assert (answer.stop, answer.terminated, answer.reward, answer.observation) == (StopReason.FAILURE, True, 0.0, [])
    assert not answer.is_error


def test_a_failed_public_test_goes_on():
    episode = begin()
    answer = episode.step(submit("pass fail"))
    assert (answer.stop, answer.terminated, answer.reward, answer.is_error) == (None, False, 0.0, True)
    assert answer.observation
    assert episode.step(submit("pass")).stop is StopReason.SUCCESS


def test_a_budget_of_one_turn_can_succeed():
    assert begin(1).step(submit("pass")).stop is StopReason.SUCCESS


def test_the_last_allowed_turn_is_graded():
    episode = begin(2)
    episode.step(submit("fail"))
    assert episode.step(submit("pass")).reward == 1.0
    episode = begin(2)
    episode.step(submit("fail"))
    answer = episode.step(submit("fail pass"))
    assert (answer.stop, answer.terminated, answer.reward, answer.observation) == (StopReason.BUDGET, False, 0.0, [])
    assert answer.quality == 0.8


def test_a_dense_reward_is_the_share_of_hidden_tests_of_the_final_submission():
    dense = {"coding": {"reward": "dense"}}
    assert begin(**dense).step(submit("pass pass pass fail")).reward == pytest.approx(1 / 3)
    assert begin(**dense).step(submit("pass")).reward == 1.0
    episode = begin(2, **dense)
    assert episode.step(submit("fail pass")).reward == 0.0  # not final
    assert episode.step(submit("fail fail pass pass fail")).reward == pytest.approx(2 / 3)
    assert episode.stop is StopReason.BUDGET
    assert begin(1, **dense).step("no fence").reward == 0.0


def test_partial_credit_is_never_read_as_success():
    answer = begin(1, coding={"reward": "dense"}).step(submit("fail pass"))
    assert (answer.stop, answer.reward) == (StopReason.BUDGET, 1.0)


@pytest.mark.parametrize("budget", [1, 3])
def test_what_can_not_be_checked_ends_the_episode_and_is_worth_nothing(budget):
    answer = begin(budget, coding={"reward": "dense"}).step(submit("pass fail lost pass"))
    assert (answer.stop, answer.reward, answer.terminated) == (StopReason.COULD_NOT_CHECK, 0.0, False)
    assert (answer.process, answer.is_error) == (0.0, False)
    assert "public_passed" not in answer.info


def test_a_judge_that_breaks_down_has_checked_nothing():
    def broken(program, tests, *, limits):
        raise SandboxError("gone")

    assert begin(judge=broken).step(submit("pass")).stop is StopReason.COULD_NOT_CHECK


# ---- replies that submit nothing


def test_a_reply_without_a_program_uses_up_a_turn_and_says_so():
    judge = ScriptedJudge()
    episode = begin(2, judge=judge)
    answer = episode.step("pass")
    assert (answer.stop, answer.parsed_action, answer.quality, answer.is_error) == (None, None, 0.0, False)
    assert "no program" in said(episode, answer.observation)
    answer = episode.step("```\nnever closed")
    assert (answer.stop, answer.reward, answer.observation) == (StopReason.BUDGET, 0.0, [])
    assert judge.asked == []


def test_a_reply_that_was_cut_ends_the_episode_ungraded(tokenizer):
    judge = ScriptedJudge()
    episode = begin(tokenizer=tokenizer, judge=judge)
    answer = episode.step(tokenizer.encode(submit("pass")))
    assert (answer.stop, answer.parsed_action, answer.reward) == (StopReason.TOKEN_LIMIT, None, 0.0)
    assert judge.asked == []
    assert answer.text == submit("pass")


def test_a_program_inside_reasoning_does_not_count(tokenizer):
    judge = ScriptedJudge()
    episode = begin(tokenizer=tokenizer, think="keep", judge=judge)
    opening, closing = episode.task.chat.think_ids
    words, end = tokenizer.encode(f"so\n{submit('pass')}\n"), episode.task.chat.end
    assert episode.step([opening, *words, closing, *tokenizer.encode("\n\ndone"), end]).parsed_action is None
    assert episode.step([opening, *words, end]).parsed_action is None  # never closed: it hides all
    outside = tokenizer.encode(f"\n\n{submit('fail')}")
    assert episode.step([opening, *words, closing, *outside, end]).info["program"] == "fail\n"
    assert judge.asked == ["fail\n"]


def test_the_last_block_of_a_reply_is_the_submission():
    judge = ScriptedJudge()
    assert begin(judge=judge).step(f"{submit('fail')}\nor better\n{submit('pass')}\n.").stop is StopReason.SUCCESS
    assert judge.asked == ["pass\n"]


# ---- what a turn is worth


def test_process_rewards_sum_to_the_share_that_the_last_submission_passes():
    episode = begin(6)
    replies = [submit("pass fail"), "nothing", submit("fail pass"), submit("raise"), "nothing", submit(PUBLIC_ONLY)]
    answers = [episode.step(reply) for reply in replies]
    assert [answer.process for answer in answers] == pytest.approx([0.2, 0.0, 0.6, -0.8, 0.0, 0.4])
    assert [answer.quality for answer in answers] == pytest.approx([0.2, 0.0, 0.8, 0.0, 0.0, 0.4])
    assert sum(answer.process for answer in answers) == pytest.approx(answers[-1].quality)
    assert {answer.best_quality for answer in answers} == {1.0}


def test_a_state_is_named_by_problem_and_latest_verdicts():
    episode, twin = begin(6), begin(6, problems=[number_problem(), number_problem("testing/other")], instance=1)
    replies = [submit("pass fail"), "nothing", submit("fail  # again"), submit("raise"), submit("fail")]
    keys = [episode.step(reply).state_key for reply in replies]
    assert keys[0] == "testing/double/start"
    assert keys[2] == "testing/double/unusable"
    assert len(set(keys)) == 5
    assert episode.step(submit("pass")).state_key == keys[3]  # failed everywhere, as the third submission had
    assert twin.step("nothing").state_key == "testing/other/start"


def test_actions_are_named_by_program_and_tests_passed():
    episode = begin(6)
    names = [episode.step(submit(text)).parsed_action for text in ("pass fail", "pass fail  # so", "fail pass")]
    assert names[0] == names[1] != names[2]
    assert re.fullmatch(r"[0-9a-f]{8} 1/5", names[0])


def test_the_viewer_sees_counts_statuses_and_the_program():
    info = begin().step(submit("pass raise slow pass fail")).info
    assert info == {
        "problem_id": "testing/double",
        "program": "pass raise slow pass fail\n",
        "public_passed": 1,
        "public_total": 2,
        "hidden_passed": 1,
        "hidden_total": 3,
        "statuses": ["ok", "runtime_error", "time_limit", "ok", "wrong"],
    }


# ---- room


def test_an_episode_without_room_for_another_reply_stops():
    prompt = len(begin().row.ids)
    assert begin(context=prompt + ROOM - 1).stop is StopReason.CONTEXT_LIMIT
    assert begin(context=prompt + ROOM).stop is None
    probe = begin()
    probe.step(submit("fail"))
    needed = len(probe.row.ids) + ROOM
    for context, stop in ((needed, None), (needed - 1, StopReason.CONTEXT_LIMIT)):
        episode = begin(context=context)
        answer = episode.step(submit("fail"))
        assert answer.stop is episode.stop is stop
        assert len(answer.observation) == (0 if stop else len(probe.row.ids) + ROOM - context + len(answer.observation))
        assert episode.row.loss_mask[-1] == bool(stop)  # nothing stands behind the last reply
        assert answer.quality == 0.0
        assert answer.is_error


def test_the_last_turn_needs_no_room_behind_it():
    episode = begin(1)
    tight = begin(1, context=len(episode.row.ids) + ROOM)
    assert tight.step(submit("fail")).stop is StopReason.BUDGET


# ---- misuse, and what a split is


def test_replies_out_of_order_or_shape_are_refused():
    episode = begin(1)
    end = episode.task.chat.end
    for ids in ([], [1] * (ROOM + 1)):
        with pytest.raises(ArgumentError, match="1 to 300 ids"):
            episode.step(ids)
    with pytest.raises(ArgumentError, match="end token"):
        episode.step([end, 5])
    episode.step([end])
    with pytest.raises(ArgumentError, match="over takes no reply"):
        episode.step([end])


@pytest.mark.parametrize(("instance", "budget"), [(-1, 1), (1, 1), (0, 0), (0, 17)])
def test_instances_and_budgets_out_of_range_are_refused(instance, budget):
    task, _ = coding_split()
    with pytest.raises(ArgumentError, match="must lie in"):
        task.reset(instance, budget=budget)


def test_settings_that_can_not_be_played_are_refused():
    with pytest.raises(ConfigError, match="one row"):
        coding_split(think="strip_by_rows")
    with pytest.raises(TokenizerError, match="im_end"):
        coding_split("lake_words")
    words = load_tokenizer("code_bpe")
    with pytest.raises(ConfigError, match="a row for each"):
        make_deepcoder(TaskConfig(), words, "train", vocab_size=500, problems=[number_problem()])
    for problems in ([], [number_problem(), number_problem()], [number_problem(hidden=0)], [number_problem(public=0)]):
        with pytest.raises(ArgumentError, match="must"):
            coding_split(problems=problems)


def test_the_limits_of_a_test_are_those_of_the_settings():
    judge = ScriptedJudge()
    begin(judge=judge, coding={"cpu_seconds": 1.5, "memory_mb": 99}).step(submit("pass"))
    assert judge.limits == Limits(cpu_s=1.5, memory_mb=99)


def test_instances_are_named_explained_and_hashed():
    problems = [number_problem(level="easy", family="twice"), line_problem()]
    _, instances = coding_split(problems=problems)
    assert [instances.instance_id(index) for index in range(len(instances))] == ["testing/double", "testing/sum"]
    info = instances.instance_info(0)
    assert (info["source"], info["level"], info["family"]) == ("testing", "easy", "twice")
    assert info["statement"] == "f(x) is twice x."
    hashes = {
        coding_split(problems=problems, **settings)[1].data_hash
        for settings in (
            {},
            {"text": "chat"},
            {"think": "keep"},
            {"max_tokens": 301},
            *({"coding": {name: value}} for name, value in (("reward", "dense"), ("cpu_seconds", 1.0))),
            *({"coding": {name: value}} for name, value in (("memory_mb", 99), ("shown_failures", 1))),
            {"coding": {"shown_characters": 20}},
        )
    }
    assert len(hashes) == 9
    assert coding_split(problems=problems)[1].data_hash == instances.data_hash
    assert coding_split(problems=problems[::-1])[1].data_hash != instances.data_hash
    harder = [dataclasses.replace(problems[0], hidden=problems[0].hidden[:2]), problems[1]]
    assert coding_split(problems=harder)[1].data_hash != instances.data_hash


def test_problems_come_from_the_source_that_the_settings_name():
    tokenizer = load_tokenizer("code_bpe")
    config = TaskConfig(n_train=30, n_test=7, coding=CodingConfig(source="templates"), text="words")
    names = []
    for split, count in (("train", 30), ("test", 7)):
        task, instances = make_deepcoder(config, tokenizer, split, vocab_size=576)
        assert len(task) == len(instances) == count
        names.append({instances.instance_id(index) for index in range(count)})
    assert not names[0] & names[1]
