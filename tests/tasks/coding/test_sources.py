"""What every source of problems keeps to."""

from __future__ import annotations

import pytest

from jaxrl_agent.config.sections import CODING_SOURCES, CodingConfig
from jaxrl_agent.errors import ConfigError, DataError
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.sources import SOURCES, data_hash, load_problems
from jaxrl_agent.tasks.coding.splits import select


def test_every_source_of_the_configuration_can_be_loaded():
    assert set(SOURCES) == set(CODING_SOURCES)


@pytest.mark.parametrize("source", ["own", "templates"])
def test_what_ships_with_the_project_loads_everywhere(source, monkeypatch):
    monkeypatch.delenv("JAXRL_DATA_DIR", raising=False)
    for split in ("train", "validation", "test"):
        problems = load_problems(CodingConfig(source=source), split, count=5)
        assert len(problems) == 5
        assert data_hash(problems) == data_hash(load_problems(CodingConfig(source=source), split, count=5))


@pytest.mark.parametrize("source", ["mbpp", "humaneval", "codecontests", "deepcoder"])
def test_missing_data_are_an_error_that_names_the_ways(source, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXRL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="JAXRL_DATA_DIR to a folder"):
        load_problems(CodingConfig(source=source), "test", count=1)


def test_wrong_splits_and_counts_are_refused():
    with pytest.raises(ConfigError, match="split"):
        load_problems(CodingConfig(), "dev", count=1)
    with pytest.raises(ConfigError, match="count"):
        load_problems(CodingConfig(), "train", count=0)


def problem(name, **more):
    return Problem(name, "Say it.", ({"input": "1", "output": "1"},), ({"input": "2", "output": "2"},), "stdin", **more)


def test_a_choice_hangs_on_names_alone():
    problems = [problem(f"p{number}") for number in range(50)]
    chosen = select(problems, 10)
    assert select(problems[::-1], 10) == chosen
    assert select(problems, 20)[:10] == chosen


def test_the_hash_sees_tests_statement_and_order():
    one, two = problem("a"), problem("b")
    assert data_hash([one, two]) != data_hash([two, one])
    changed = Problem(**{**{name: getattr(one, name) for name in Problem.__dataclass_fields__}, "statement": "Say."})
    assert data_hash([changed, two]) != data_hash([one, two])


def test_the_digest_of_sets_and_odd_keys_is_the_same_in_every_order():
    def with_value(value):
        return problem("a", entry_point="f").__class__(
            "a", "Say it.", ({"entry_point": "f", "args": [value], "expected": {(1, 2): "x"}},), (), "function"
        )

    assert with_value({"a", "b", "c"}).digest == with_value({"c", "b", "a"}).digest
    assert with_value({"a"}).digest != with_value({"b"}).digest


@pytest.mark.parametrize("source", ["own", "templates"])
@pytest.mark.parametrize("most", [2, 4, 15])
def test_no_problem_has_more_tests_than_is_said(source, most):
    whole = load_problems(CodingConfig(source=source, max_tests=1000), "train", count=60)
    fewer = load_problems(CodingConfig(source=source, max_tests=most), "train", count=60)
    for problem, cut in zip(whole, fewer, strict=True):
        assert len(cut.public) + len(cut.hidden) == min(most, len(problem.public) + len(problem.hidden))
        assert cut.hidden
        assert cut.public == problem.public[: most - 1]
        assert set(map(str, cut.hidden)) <= set(map(str, problem.hidden))


def test_a_statement_with_half_a_character_has_a_digest():
    halves = [Problem("testing/half", f"say {half}", (), (), "stdin") for half in ("\ud83d", "\ude00", "?")]
    assert len({problem.digest for problem in halves}) == 3
