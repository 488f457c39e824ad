"""Problems by source and split; the same configuration gives the same problems in the same order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from jaxrl_agent.config.sections import CodingConfig
from jaxrl_agent.errors import ConfigError, DataError
from jaxrl_agent.tasks.coding.benchmarks import load_codecontests, load_humaneval, load_mbpp
from jaxrl_agent.tasks.coding.choosing import longest_tests
from jaxrl_agent.tasks.coding.deepcoder_rows import load_deepcoder
from jaxrl_agent.tasks.coding.own_problems import own_problems
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.splits import SPLITS, select
from jaxrl_agent.tasks.coding.templates import draw_problems


def _own(config: CodingConfig, split: str, count: int) -> list[Problem]:
    return select(own_problems(split), count)


def _templates(config: CodingConfig, split: str, count: int) -> list[Problem]:
    return draw_problems(split, seed=config.pool_seed, count=count, families=config.families)


SOURCES: dict[str, Callable[[CodingConfig, str, int], list[Problem]]] = {
    "own": _own,
    "templates": _templates,
    "mbpp": load_mbpp,
    "humaneval": load_humaneval,
    "codecontests": load_codecontests,
    "deepcoder": load_deepcoder,
}


def load_problems(config: CodingConfig, split: str, *, count: int) -> list[Problem]:
    """Give the problems of one split of the source that a configuration names.

    Args:
        config: source, path, families, seed of templates, most tests of a problem.
        split: "train", "validation" or "test"; no problem is in two of them.
        count: problems, at most those there are; a smaller count gives the beginning of a larger one's list.

    Raises:
        ConfigError: an unknown split, source or family, or a split that the source does not have.
        DataError: the source's data were not found, or are not what they should be.
    """
    if split not in SPLITS or config.source not in SOURCES:
        raise ConfigError("split and source must be known", value=(split, config.source), remedy=f"Splits: {SPLITS}.")
    if count < 1:
        raise ConfigError("count must be at least 1", value=count)
    problems = SOURCES[config.source](config, split, count)
    if not problems:
        raise DataError("a source must have problems of the split", value=(config.source, split, config.path))
    return [_with_fewer_tests(problem, config.max_tests) for problem in problems]


def _with_fewer_tests(problem: Problem, most: int) -> Problem:
    """Keep at most `most` tests, one of them hidden at least; of the hidden ones those with the longest inputs."""
    if len(problem.public) + len(problem.hidden) <= most:
        return problem
    public = problem.public[: most - 1]
    return dataclasses.replace(problem, public=public, hidden=longest_tests(public, problem.hidden, most=most))


def data_hash(problems: Sequence[Problem]) -> str:
    """SHA-256 over the problems' digests in order: equal hashes mean the same problems and the same verdicts."""
    return hashlib.sha256("\n".join(problem.digest for problem in problems).encode()).hexdigest()
