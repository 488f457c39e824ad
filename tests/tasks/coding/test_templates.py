"""Small problems drawn from families: short, told apart from their neighbours, the same for the same seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sandbox.judge import judge_programs
from jaxrl_agent.tasks.coding.families import FAMILIES
from jaxrl_agent.tasks.coding.sources import data_hash
from jaxrl_agent.tasks.coding.splits import SPLITS, split_of
from jaxrl_agent.tasks.coding.templates import content_of, draw_problems, make_problem

MANY = 1_500


@pytest.fixture(scope="module")
def drawn():
    return {split: draw_problems(split, seed=0, count=MANY) for split in SPLITS}


def test_there_are_families_of_both_styles_with_hundreds_of_points():
    assert len(FAMILIES) >= 8
    assert {family.style for family in FAMILIES.values()} == {"stdin", "function"}
    assert min(sum(1 for _ in family.points()) for family in FAMILIES.values()) >= 200


def test_every_family_has_problems_in_every_split(drawn):
    for split, problems in drawn.items():
        assert {problem.family for problem in problems} == set(FAMILIES), split


def test_no_question_is_in_two_splits(drawn):
    for what in (lambda p: p.problem_id, lambda p: p.statement, lambda p: p.solution):
        told = [{what(problem) for problem in problems} for problems in drawn.values()]
        assert sum(map(len, told)) == len(set.union(*told))


def test_families_that_ask_the_same_are_divided_alike():
    affine, constant = FAMILIES["affine"], FAMILIES["find_constant"]
    assert [content_of(affine, point) for point in affine.points()] == [
        content_of(constant, point) for point in constant.points()
    ]


def test_no_test_problem_has_the_answers_of_a_problem_in_training():
    """Neither in the same words nor in others: `x<5` asks what `x<=4` asks."""
    points = {split: [(f, p) for f in FAMILIES.values() for p in points_of(f, split)] for split in ("train", "test")}
    for family, params in points["test"][::7]:
        given = inputs_of(family, params)
        right = [family.answer(params, x) for x in given]
        near = [other for kin, other in points["train"] if kin is family and agree_on(family, other, given[:9], right)]
        for other in near:
            more = [*given, *inputs_of(family, other)]
            assert not agree_on(family, other, more, [family.answer(params, x) for x in more]), (params, other)


def points_of(family, split):
    return [params for params in family.points() if split_of(content_of(family, params)) == split]


def inputs_of(family, params):
    rng = random.Random(repr(params))
    return [family.sample(rng, params) for _ in range(400)]


def agree_on(family, params, given, right):
    return all(family.answer(params, x) == y for x, y in zip(given, right, strict=False))


def test_texts_are_short(drawn):
    problems = [problem for split in drawn.values() for problem in split]
    assert max(len(problem.statement) for problem in problems) <= 120
    assert max(len(problem.solution) for problem in problems) <= 60


def test_each_problem_has_two_public_and_four_to_eight_other_hidden_tests(drawn):
    for problem in drawn["train"]:
        assert len(problem.public) == 2
        assert 4 <= len(problem.hidden) <= 8
        assert 2 <= len(problem.wrong) <= 4
        questions = [repr(test.get("input", test.get("args"))) for test in (*problem.public, *problem.hidden)]
        assert len(set(questions)) == len(questions)
        assert len({repr(test.get("output", test.get("expected"))) for test in problem.hidden}) >= 3


def test_the_same_seed_draws_the_same_in_another_process():
    code = (
        "from jaxrl_agent.tasks.coding.templates import draw_problems\n"
        "from jaxrl_agent.tasks.coding.sources import data_hash\n"
        "print(data_hash(draw_problems('train', seed=3, count=90)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == data_hash(draw_problems("train", seed=3, count=90))


def test_a_smaller_draw_begins_a_larger_one_and_another_seed_draws_others():
    ninety = draw_problems("train", seed=0, count=90)
    assert draw_problems("train", seed=0, count=30) == ninety[:30]
    assert draw_problems("train", seed=1, count=90) != ninety


def test_families_are_picked_by_name():
    assert {p.family for p in draw_problems("test", seed=0, count=20, families=("slice", "pair"))} == {"slice", "pair"}
    with pytest.raises(ConfigError, match="no_such"):
        draw_problems("test", seed=0, count=1, families=("no_such",))


def test_a_point_whose_neighbours_answer_alike_makes_no_problem():
    letters = FAMILIES["letters"]
    silent = type(letters)(**{**vars(letters), "answer": lambda params, text: 0})
    assert make_problem(silent, ("a", "+", 1, "b")) is None


def judged(problems, pick, tests):
    jobs = [(program, tests(problem)) for problem in problems for program in pick(problem)]
    return judge_programs(jobs, stop_at_first=True)


def check_in_sandbox(problems):
    right = judged(problems, lambda p: [p.solution], lambda p: [*p.public, *p.hidden])
    assert all(verdict.ok for verdict in right)
    for tests in (lambda p: p.public, lambda p: p.hidden):
        wrong = judged(problems, lambda p: p.wrong, tests)
        assert not any(verdict.ok or verdict.could_not_check for verdict in wrong)


def test_solutions_pass_and_wrong_programs_fail_a_public_and_a_hidden_test():
    check_in_sandbox(draw_problems("train", seed=0, count=len(FAMILIES)))


@pytest.mark.slow
def test_many_solutions_pass_and_many_wrong_programs_fail():
    check_in_sandbox(draw_problems("test", seed=5, count=20 * len(FAMILIES)))


def test_most_problems_have_wrong_programs_that_pass_a_public_test():
    """What the second turn is for: a program that is right in the example and wrong elsewhere."""
    problems = draw_problems("train", seed=0, count=len(FAMILIES))
    jobs = [(program, problem.public[:1]) for problem in problems for program in problem.wrong]
    passed = [verdict.ok for verdict in judge_programs(jobs)]
    assert 0.1 < sum(passed) / len(passed) < 0.9
