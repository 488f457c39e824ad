"""Demonstrations: rows of real episodes, with real mistakes, that depend on the seed alone."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re

import pytest

from jaxrl_agent.config import CodingConfig, TaskConfig, WarmStartConfig
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.sandbox.judge import judge_program
from jaxrl_agent.tasks.coding.mistakes import mutants
from jaxrl_agent.tasks.deepcoder import make_deepcoder
from jaxrl_agent.tasks.deepcoder_demos import demonstrations
from jaxrl_agent.testing.coding import ScriptedJudge, coding_split, number_problem
from jaxrl_agent.testing.plain_workers import plain_sessions

SCRIPTED = number_problem(solution="pass", wrong=("pass fail", "fail", "raise"))
COUNT = 400


def demos(*, problems=(SCRIPTED,), judge=None, count=COUNT, seed=0, warm=None, context=None, **settings):
    task, _ = coding_split(problems=problems, judge=judge, **{"t_max": 10} | settings)
    config = WarmStartConfig(**{"random_move": 0.5, "repeat_mistake": 0.5} | (warm or {}))
    return task, demonstrations(task, count, seed=seed, config=config, context=context)


def replies(task, row) -> list[str]:
    """What was said in each turn, without the end token."""
    turns = collections.defaultdict(list)
    for token, turn in zip(row.ids, row.turns, strict=True):
        turns[turn].append(token)
    return [task.chat.tokenizer.decode(turns[turn][:-1]) for turn in range(max(turns) + 1)]


def test_without_mistakes_every_demonstration_is_the_reference():
    task, found = demos(warm={"random_move": 0.0})
    assert all(demo.success for demo in found)
    assert {tuple(replies(task, demo.row)) for demo in found} == {("```\npass\n```",)}


def test_budgets_are_those_of_the_ten_levels():
    task, found = demos(warm={"random_move": 0.0}, budget_visibility="total")
    told = [int(re.search(r"turns (\d+)", task.chat.tokenizer.decode(demo.row.ids))[1]) for demo in found]
    assert set(told) == set(range(1, 11))
    assert max(collections.Counter(told).values()) < 2 * COUNT / 10


def test_mistakes_are_as_frequent_as_the_settings_say():
    task, found = demos(warm={"random_move": 0.25, "repeat_mistake": 0.75}, t_max=100, count=1000)
    first = after = second = 0
    for demo in found:
        said = replies(task, demo.row)
        wrong = [reply != "```\npass\n```" for reply in said]
        first += wrong[0]
        after += wrong[0] and len(said) > 1
        second += wrong[0] and len(said) > 1 and wrong[1]
    assert 200 < first < 300
    assert 0.65 < second / after < 0.85


def test_fences_are_forgotten_as_often_as_the_settings_say():
    warm = {"random_move": 0.0, "unfenced": 0.25, "repeat_unfenced": 0.75, "turns": 4}
    task, found = demos(warm=warm, t_max=100, count=1000)
    said = [replies(task, demo.row) for demo in found]
    assert {reply for turns in said for reply in turns} == {"pass", "```\npass\n```"}
    first = [turns for turns in said if turns[0] == "pass"]
    again = [turns[1] == "pass" for turns in first if len(turns) > 1]
    assert 200 < len(first) < 300
    assert 0.65 < sum(again) / len(again) < 0.85
    assert all(turns.index("```\npass\n```") <= 3 for turns in said if "```\npass\n```" in turns)
    assert max(map(len, said)) == 4


def test_some_mistakes_forget_the_fence_and_are_told_so():
    task, found = demos(t_max=100)
    said = [reply for demo in found for reply in replies(task, demo.row)]
    assert {"pass", "```\npass\n```", *(f"```\n{wrong}\n```" for wrong in SCRIPTED.wrong)} == set(said)
    assert 0 < said.count("pass") < 0.1 * len(said)
    row = next(demo.row for demo in found if replies(task, demo.row)[0] == "pass")
    assert "no program" in task.chat.tokenizer.decode(row.ids)


def test_rows_are_those_of_an_episode_played_with_the_same_replies():
    task, found = demos(budget_visibility="hidden", count=50)
    for demo in found:
        said = replies(task, demo.row)
        episode = task.reset(0, budget=len(said))
        for reply in said:
            episode.step(reply)
        assert (episode.row.ids, episode.row.turns) == (demo.row.ids, demo.row.turns)
        assert demo.row.loss_mask[-1]


def test_a_small_budget_ends_in_failure_when_a_mistake_is_made():
    _, found = demos(t_max=1, warm={"random_move": 1.0})
    assert not any(demo.success for demo in found)


def test_the_longest_demonstration_ends_with_the_reference():
    task, found = demos(warm={"random_move": 1.0, "repeat_mistake": 1.0, "turns": 3}, t_max=100, count=40)
    for demo in found:
        if demo.success:
            assert len(replies(task, demo.row)) == 3
    assert sum(demo.success for demo in found) > 30


def test_programs_that_pass_are_no_mistakes():
    problem = number_problem(solution="pass", wrong=("pass pass fail", "pass pass pass", "lost", "fail pass"))
    task, found = demos(problems=[problem], warm={"random_move": 1.0, "repeat_mistake": 0.0}, t_max=100)
    said = {replies(task, demo.row)[0] for demo in found}
    assert said == {"```\nfail pass\n```", "pass"}


def test_the_seed_decides_and_the_threads_do_not():
    judge = ScriptedJudge()
    one, again, other = (demos(seed=seed, count=60, judge=judge)[1] for seed in (3, 3, 4))
    assert [demo.row.ids for demo in one] == [demo.row.ids for demo in again]
    assert [demo.row.ids for demo in one] != [demo.row.ids for demo in other]
    assert [demo.row.ids for demo in demos(seed=3, count=20)[1]] == [demo.row.ids for demo in one[:20]]


def test_problems_without_a_usable_reference_are_left_out():
    problems = [
        SCRIPTED,
        number_problem("testing/none", statement="No reference.", solution=""),
        number_problem("testing/long", statement="A long one.", solution="x" * 999),
    ]
    task, found = demos(problems=problems, count=100)
    assert all(SCRIPTED.statement in task.chat.tokenizer.decode(demo.row.ids) for demo in found)
    with pytest.raises(ArgumentError, match="fits into a reply"):
        demos(problems=problems[1:])


def test_rows_keep_to_the_room_that_there_is():
    _, found = demos(context=700, warm={"random_move": 1.0, "repeat_mistake": 1.0}, t_max=100, count=40)
    assert max(len(demo.row.ids) for demo in found) <= 700


def test_a_sandbox_that_fails_once_is_asked_again_and_one_that_is_gone_is_an_error():
    class Flaky(ScriptedJudge):
        def __call__(self, program, tests, *, limits):
            return super().__call__("lost" if not self.asked else program, tests, limits=limits)

    assert all(demo.success for demo in demos(judge=Flaky(), warm={"random_move": 0.0}, count=5)[1])
    gone = number_problem(solution="lost")
    with pytest.raises(SandboxError, match="graded"):
        demos(problems=[gone], warm={"random_move": 0.0}, count=3)


@pytest.mark.parametrize("text", ["words", "chat"])
def test_references_without_wrong_programs_are_changed_in_place(text):
    judge = functools.partial(judge_program, sessions=plain_sessions)
    task, found = demos(
        problems=[number_problem()], judge=judge, text=text, count=12, warm={"random_move": 1.0, "repeat_mistake": 0.0}
    )
    fence = "```python" if text == "chat" else "```"
    first = {replies(task, demo.row)[0] for demo in found}
    assert first & {f"{fence}\n{mutant}\n```" for mutant in mutants("f=lambda x:2*x")}
    assert first <= {"f=lambda x:2*x", *(f"{fence}\n{mutant}\n```" for mutant in mutants("f=lambda x:2*x"))}


def test_demonstrations_of_small_problems_in_the_real_sandbox():
    config = TaskConfig(name="deepcoder", t_max=10, max_tokens=64, n_train=6, coding=CodingConfig(source="templates"))
    task, _ = make_deepcoder(config, load_tokenizer("code_bpe"), "train", vocab_size=576)
    found = demonstrations(task, 24, seed=1, config=WarmStartConfig(random_move=0.5, repeat_mistake=0.5))
    assert sum(demo.success for demo in found) > 12
    references = {f"```\n{problem.solution}\n```" for problem in task.problems}
    assert all(replies(task, demo.row)[-1] in references for demo in found if demo.success)
    assert any("want" in task.chat.tokenizer.decode(demo.row.ids) for demo in found)


def test_problems_whose_statement_leaves_no_room_for_a_reply_are_not_demonstrated():
    long = dataclasses.replace(SCRIPTED, problem_id="testing/long", statement="say it " * 200)
    _, found = demos(problems=(SCRIPTED, long), count=40, context=500)
    assert all(max(demo.row.turns) >= 0 for demo in found)
    assert max(len(demo.row.ids) for demo in found) <= 500
    with pytest.raises(ArgumentError, match="leave it room"):
        demos(problems=(long,), count=1, context=500)
