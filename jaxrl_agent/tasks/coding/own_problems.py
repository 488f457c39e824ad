"""The project's own problems: package data in `own/*.toml`, one table a problem, each with its split."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jaxrl_agent.errors import DataError
from jaxrl_agent.tasks.coding.problem import Problem, Test
from jaxrl_agent.tasks.coding.splits import SPLITS

N_EXAMPLES = 2  # public tests that the statement shows
_KEYS = {"name", "level", "split", "style", "statement", "solution", "public", "hidden"}


def own_problems(split: str) -> list[Problem]:
    """Read the problems of one split."""
    return [problem for name, problem in _all_problems() if name == split]


@functools.cache
def _all_problems() -> tuple[tuple[str, Problem], ...]:
    folder = resources.files("jaxrl_agent.tasks.coding") / "own"
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".toml")]
    tables = [table for text in texts for table in tomllib.loads(text)["problem"]]
    return tuple((table["split"], read_problem(table)) for table in sorted(tables, key=lambda table: table["name"]))


def read_problem(table: Mapping[str, Any]) -> Problem:
    """Turn one table into a problem.

    Raises:
        DataError: a missing or unknown key, split or style.
    """
    function = table.get("style") == "function"
    right = table.get("split") in SPLITS and (function or table.get("style") == "stdin")
    if not right or set(table) != _KEYS | ({"entry_point"} if function else set()):
        raise DataError("a problem must have its keys, a known split and a known style", value=dict(table))
    name = table.get("entry_point", "")
    public, hidden = (tuple(_read_test(test, name) for test in table[key]) for key in ("public", "hidden"))
    return Problem(
        problem_id=f"own/{table['name']}",
        statement=f"{table['statement'].strip()}\n\n{examples(public[:N_EXAMPLES])}",
        public=public,
        hidden=hidden,
        style=table["style"],
        entry_point=name,
        solution=table["solution"],
        level=table["level"],
    )


def _read_test(test: Mapping[str, Any], entry_point: str) -> Test:
    return {**test, "entry_point": entry_point} if entry_point else dict(test)


def examples(tests: tuple[Test, ...]) -> str:
    """Show tests in a statement."""
    return "\n\n".join(map(_example, tests))


def _example(test: Test) -> str:
    if "input" in test:
        return f"Example input:\n{test['input'].rstrip()}\nExample output:\n{test['output'].rstrip()}"
    arguments = ", ".join(map(repr, test["args"]))
    return f"Example: {test['entry_point']}({arguments}) == {test['expected']!r}"
