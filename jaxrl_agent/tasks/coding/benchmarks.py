"""MBPP, HumanEval and CodeContests as problems: official splits, public tests as the statements have them.

MBPP's first assert is public and shown; its other asserts, challenge tests included, are hidden. HumanEval's public
tests are the examples of the docstring that are literals, else the first test; its hidden tests are those of `check`.
Of CodeContests those problems are left in that have a hidden test.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_agent.config.sections import CodingConfig
from jaxrl_agent.data import find_data
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.row_files import read_rows, row_files
from jaxrl_agent.sandbox.asserts import from_assert, from_check, literal
from jaxrl_agent.sandbox.compare import PYTHON_EQUALITY
from jaxrl_agent.tasks.coding.choosing import choose_tests, longest_tests
from jaxrl_agent.tasks.coding.problem import Problem, Test
from jaxrl_agent.tasks.coding.splits import only_for_evaluation, select, stable_fraction

_MBPP_SPLITS = {"train": range(601, 975), "validation": range(511, 601), "test": range(11, 511)}
_MBPP_LOOSE = {414}  # its reference gives 0 and 1 where False and True are expected
# Docstrings with an example that the reference contradicts, or whose text is no literal as it stands.
_WRONG_EXAMPLES = {f"HumanEval/{number}" for number in (47, 79, 116, 130, 141, 148, 158)}


@functools.lru_cache(maxsize=4)
def _rows(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(row for file in row_files(path) for row in read_rows(file))


# ---- MBPP


def load_mbpp(config: CodingConfig, split: str, count: int) -> list[Problem]:
    """Problems of MBPP; 1 to 10, which are meant for prompts, are in no split."""
    rows = {row["task_id"]: row for row in _rows(find_data("mbpp", path=config.path))}
    held_out = {_statement_key(row) for number, row in rows.items() if number in _held_out(split)}
    chosen = [rows[number] for number in _MBPP_SPLITS[split] if number in rows]
    problems = [_mbpp_problem(row) for row in chosen if _statement_key(row) not in held_out]
    kept = select([problem for problem in problems if problem.hidden], count)
    return [_cut(problem, config) for problem in kept]


def _held_out(split: str) -> set[int]:
    """Problems that a split must not repeat: those of the splits that come after it."""
    later = {"train": ("validation", "test"), "validation": ("test",), "test": ()}[split]
    return {number for name in later for number in _MBPP_SPLITS[name]}


def _statement_key(row: Mapping[str, Any]) -> str:
    return " ".join(_first(row, "query", "text").lower().split())


def _first(row: Mapping[str, Any], *names: str) -> Any:
    """A column by any of its names: the data as re-keyed and as on the hub."""
    return next(row[name] for name in names if row.get(name) is not None)


def _mbpp_problem(row: Mapping[str, Any]) -> Problem:
    number, setup = row["task_id"], row.get("test_setup_code") or ""
    asserts = [*_first(row, "tests", "test_list"), *row.get("challenge_test_list", [])]
    asserts = list(dict.fromkeys(text.strip() for text in asserts))
    tests = [from_assert(text, setup=setup, by_checker=number in _MBPP_LOOSE) for text in asserts]
    solution = _first(row, "gold", "code").replace("\r\n", "\n")
    shown = "\n".join(filter(None, (setup.replace("\r\n", "\n").strip(), asserts[0])))
    return Problem(
        problem_id=f"mbpp/{number}",
        statement=f"{_first(row, 'query', 'text').strip()}\n\nIt must pass this test:\n{shown}",
        public=(tests[0],),
        hidden=tuple(tests[1:]),
        style="function",
        entry_point=tests[0].get("entry_point") or _called(asserts[0]),
        solution=solution,
    )


def _called(text: str) -> str:
    """The function that is called on the left side of an assert."""
    names = [node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return names[0]


def _cut(problem: Problem, config: CodingConfig) -> Problem:
    hidden = longest_tests(problem.public, problem.hidden, most=config.max_tests)
    return Problem(**{**_fields(problem), "hidden": hidden})


def _fields(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}


# ---- HumanEval


def load_humaneval(config: CodingConfig, split: str, count: int) -> list[Problem]:
    """Problems of HumanEval; some of their tests are recorded from the reference in a sandbox."""
    only_for_evaluation("humaneval", split)
    rows = sorted(_rows(find_data("humaneval", path=config.path)), key=lambda row: stable_fraction(row["task_id"]))
    return [_cut(_humaneval_problem(row["task_id"], *_humaneval_texts(row)), config) for row in rows[:count]]


def _humaneval_texts(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["prompt"], row["canonical_solution"], row["test"], row["entry_point"]


@functools.lru_cache(maxsize=256)
def _humaneval_problem(task_id: str, prompt: str, solution: str, check: str, entry_point: str) -> Problem:
    tests = from_check(check, entry_point=entry_point, reference=prompt + solution)
    public = () if task_id in _WRONG_EXAMPLES else tuple(docstring_examples(prompt, entry_point))
    return Problem(
        problem_id=f"humaneval/{task_id.rpartition('/')[2]}",
        statement=f"Complete this function.\n\n{prompt.strip()}",
        public=public or tuple(tests[:1]),
        hidden=tuple(tests if public else tests[1:]),
        style="function",
        entry_point=entry_point,
        solution=prompt + solution,
    )


_ARROW = re.compile(r"\s*(?:==>|=>|==|➞|->|=|should return|returns|#\s*=>|#|\n)\s*")


def docstring_examples(prompt: str, entry_point: str) -> list[Test]:
    """Examples of a docstring whose arguments and value are literals, such as `>>> f(1)` with `2` below it.

    Args:
        prompt: program text that ends in the function's docstring.
        entry_point: name of the function.
    """
    examples: dict[str, Test] = {}
    text = re.sub("\"\"\"|'''", "\n", prompt.split(f"def {entry_point}")[-1])
    for match in re.finditer(rf"\b{re.escape(entry_point)}\(", text):
        try:
            call, value = _call_and_value(text[match.start() :])
            args = [literal(item) for item in call.args]
            test = {"entry_point": entry_point, "args": args, "expected": literal(value), "rules": PYTHON_EQUALITY}
        except (SyntaxError, ValueError, TypeError, AttributeError):
            continue
        if not call.keywords:
            examples.setdefault(repr(args), test)
    return list(examples.values())


def _call_and_value(text: str) -> tuple[ast.Call, ast.expr]:
    """Read `f(1) == 2`, `f(1) => 2`, or `f(1)` with `2` on the next line, at the beginning of a text."""
    words = _leading(text)
    node = ast.parse(words, mode="eval").body
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        return node.left, node.comparators[0]
    arrow = _ARROW.match(text, len(words))
    value = _leading(text[arrow.end() :]) if arrow else ""
    return node, ast.parse({"true": "True", "false": "False"}.get(value, value), mode="eval").body


def _leading(text: str) -> str:
    """The longest beginning of a text, ended by a blank, a bracket or a quote, that is one Python expression."""
    line = text.split("\n")[0].rstrip(" .;,")
    for end in range(len(line), 0, -1):
        try:
            ast.parse(line[:end].strip(), mode="eval")
        except (SyntaxError, ValueError):
            continue
        return line[:end]
    return ""


# ---- CodeContests


def load_codecontests(config: CodingConfig, split: str, count: int) -> list[Problem]:
    """Problems of CodeContests' test split that have a hidden test; they come without solutions."""
    only_for_evaluation("codecontests", split)
    found = _rows(find_data("codecontests", path=config.path))
    problems = {problem.problem_id: problem for problem in (_contest_problem(row, config) for row in found)}
    return select([problem for problem in problems.values() if problem.hidden], count)


def _contest_problem(row: Mapping[str, Any], config: CodingConfig) -> Problem:
    statement, pairs = row["problem"].strip(), row["tests"]
    try:
        tests = [
            {"input": given, "output": answer} for given, answer in zip(pairs["inputs"], pairs["outputs"], strict=True)
        ]
    except ValueError as error:
        raise ArgumentError("a problem must have as many inputs as outputs", value=statement[:80]) from error
    public, hidden = choose_tests(statement, tests, most=config.max_tests)
    name = hashlib.sha256(statement.encode()).hexdigest()[:12]
    return Problem(f"codecontests/{name}", statement, public, hidden, "stdin", level="hard")
