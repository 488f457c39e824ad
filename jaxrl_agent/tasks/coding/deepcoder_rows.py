"""DeepCoder's dataset as problems: rows of Parquet, JSON or JSON Lines, with tests in any of its shapes.

Shapes that are read: a list of {"input", "output", "testtype"}, where functional ones have arguments as lines of JSON
and their name in metadata; {"inputs", "outputs"} with "fn_name" or without, values being texts or lists of lines;
LeetCode's {"functional": "def check(candidate): ..."} where every assert compares one call of literals; LiveCodeBench's
private tests (base64, zlib, pickle) where the caller trusts the file. A row that is none of these is left out, and the
log says how many were and why.

Split: files with "test" or "train" in their path are what they say, and a twentieth of train becomes validation. Other
files are divided by statement. No statement is in two splits.
"""

from __future__ import annotations

import ast
import base64
import binascii
import collections
import hashlib
import io
import json
import logging
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl_agent.config.sections import CodingConfig
from jaxrl_agent.data import find_data
from jaxrl_agent.errors import ArgumentError, DataError
from jaxrl_agent.row_files import read_rows, row_files
from jaxrl_agent.sandbox.asserts import from_assert
from jaxrl_agent.tasks.coding.choosing import choose_tests
from jaxrl_agent.tasks.coding.problem import Problem, Test
from jaxrl_agent.tasks.coding.splits import split_of, stable_fraction

Row = Mapping[str, Any]
_OF_TRAIN = {"train": 0.95, "validation": 0.05}
_OF_ANY = {"train": 0.9, "validation": 0.05, "test": 0.05}
MOST_UNPACKED = 1 << 30  # bytes of private tests


class RefusedRow(Exception):
    """A row that no problem can be made of; its text says why."""


def load_deepcoder(config: CodingConfig, split: str, count: int) -> list[Problem]:
    """Read problems of one split; duplicates count once, and what is in a later split is in no earlier one.

    Args:
        config: its path names a file or folder; "" for the usual places.
        split: "train", "validation" or "test".
        count: most problems.
    """
    found = find_data("deepcoder", path=config.path)
    ordered = sorted(_rows_of(found, split).items(), key=lambda item: (stable_fraction(item[0]), item[0]))
    problems, refused = [], collections.Counter()
    for name, row in ordered:
        if len(problems) == count:
            break
        try:
            problems.append(read_row(name, row, most=config.max_tests, trusted=config.trusted))
        except RefusedRow as error:
            refused[str(error)] += 1
    if refused:
        reasons = "; ".join(f"{number} x {reason}" for reason, number in sorted(refused.items()))
        logging.getLogger(__name__).warning("deepcoder, %s: left out %d rows: %s", split, refused.total(), reasons)
    return problems


def _rows_of(path: Path, split: str) -> dict[str, Row]:
    """Rows of a split by the hash of their statement; of equal statements the row with the smallest hash."""
    found: dict[str, dict[str, tuple[str, Row]]] = collections.defaultdict(dict)
    for file in row_files(path):
        for row in read_rows(file):
            name, content = _names(row, file)
            where = _split_of_row(file.relative_to(path) if file != path else Path(file.name), name)
            found[where][name] = min(found[where].get(name, (content, row)), (content, row), key=lambda pair: pair[0])
    later = {"train": ("validation", "test"), "validation": ("test",), "test": ()}[split]
    held_out = {name for other in later for name in found[other]}
    return {name: row for name, (_, row) in found[split].items() if name not in held_out}


def _names(row: Row, file: Path) -> tuple[str, str]:
    if not isinstance(row, Mapping) or not isinstance(row.get("problem"), str) or row.get("tests") is None:
        raise DataError("a row of DeepCoder must have problem and tests", value=f"{file}: {str(row)[:80]}")
    statement = "".join(row["problem"].lower().split())
    content = json.dumps(dict(row), sort_keys=True, default=repr)
    return tuple(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() for text in (statement, content))


def _split_of_row(file: Path, name: str) -> str:
    words = set(re.findall(r"[a-z]+", str(file).lower()))
    if "test" in words:
        return "test"
    return split_of(name, _OF_TRAIN if "train" in words else _OF_ANY)


# ---- one row


def read_row(name: str, row: Row, *, most: int, trusted: bool = False) -> Problem:
    """Turn a row into a problem.

    Args:
        name: hash of its statement.
        row: with problem and tests; maybe solutions, starter_code and metadata.
        most: tests kept.
        trusted: whether pickled tests may be read.

    Raises:
        RefusedRow: no tests in a known shape, no hidden test, or values of other types than their columns have.
    """
    try:
        return _problem_of(name, row, most=most, trusted=trusted)
    except (TypeError, AttributeError, KeyError, UnicodeError, RecursionError) as error:  # one odd row among thousands
        raise RefusedRow(f"a value of an unexpected type ({type(error).__name__})") from None


def _problem_of(name: str, row: Row, *, most: int, trusted: bool) -> Problem:
    metadata = _loaded(row.get("metadata")) or {}
    function = metadata.get("func_name") or metadata.get("fn_name") or "" if isinstance(metadata, Mapping) else ""
    tests = list(read_tests(_loaded(row["tests"]), function=function, trusted=trusted))
    if len({"input" in test for test in tests}) != 1:
        raise RefusedRow("no tests" if not tests else "tests of two styles")
    starter = (row.get("starter_code") or "").strip()
    statement = row["problem"].strip() + (f"\n\nStart from this code:\n{starter}" if starter else "")
    public, hidden = choose_tests(row["problem"], tests, most=most)
    if not hidden:
        raise RefusedRow("no test is hidden")
    return Problem(
        problem_id=f"deepcoder/{name[:16]}",
        statement=statement,
        public=public,
        hidden=hidden,
        style="stdin" if "input" in tests[0] else "function",
        entry_point=tests[0].get("entry_point", ""),
        solution=_solution(row.get("solutions")),
    )


def _solution(solutions: Any) -> str:
    loaded = _loaded(solutions)
    first = next((text for text in loaded if isinstance(text, str)), "") if isinstance(loaded, list) else loaded
    fenced = re.search(r"```\w*\n(.*?)```", first or "", re.DOTALL)
    return fenced[1] if fenced else first or ""


def _loaded(value: Any) -> Any:
    """JSON text as its value; any other text, and what is no text, as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


# ---- shapes of tests


def read_tests(tests: Any, *, function: str = "", trusted: bool = False) -> Iterator[Test]:
    """Read tests in any of the dataset's shapes.

    Args:
        tests: JSON value, or the text of packed private tests.
        function: name of the function, for functional tests.
        trusted: whether packed tests may be unpickled.

    Raises:
        RefusedRow: another shape, or packed tests that are not trusted.
    """
    if isinstance(tests, str):
        tests = unpack_private(tests, trusted=trusted)
    if isinstance(tests, Mapping) and "functional" in tests:
        yield from _check_tests(tests["functional"])
    elif isinstance(tests, Mapping) and {"inputs", "outputs"} <= set(tests):
        yield from _paired_tests(tests, tests.get("fn_name") or function)
    elif isinstance(tests, list) and all(isinstance(test, Mapping) for test in tests):
        for test in tests:
            yield _listed_test(test, function)
    else:
        raise RefusedRow("tests of an unknown shape")


def _listed_test(test: Mapping[str, Any], function: str) -> Test:
    if not {"input", "output"} <= set(test):
        raise RefusedRow("a test without input and output")
    metadata = _loaded(test.get("metadata")) or {}
    name = metadata.get("func_name") or function if isinstance(metadata, Mapping) else function
    if test.get("testtype") == "functional":
        return _function_test(name, _arguments(test["input"]), _loaded(test["output"]))
    if test.get("testtype", "stdin") not in ("stdin", "stdin_stdout"):
        raise RefusedRow(f"testtype {test['testtype']!r}")
    return {"input": _lines(test["input"]), "output": _lines(test["output"])}


def _paired_tests(tests: Mapping[str, Any], function: str) -> Iterator[Test]:
    inputs, outputs = tests["inputs"], tests["outputs"]
    if len(inputs) != len(outputs):
        raise RefusedRow("as many inputs as outputs are needed")
    # TACO wraps the value of a function into a list of one.
    wrapped = bool(function) and all(isinstance(value, list) and len(value) == 1 for value in outputs)
    for given, answer in zip(inputs, outputs, strict=True):
        if function:
            yield _function_test(function, _arguments(given), answer[0] if wrapped else _loaded(answer))
        else:
            yield {"input": _lines(given), "output": _lines(answer)}


def _function_test(name: str, args: list[Any], expected: Any) -> Test:
    if not isinstance(name, str) or not name:
        raise RefusedRow("functional tests without a function's name")
    return {"entry_point": name, "args": args, "expected": expected}


def _arguments(value: Any) -> list[Any]:
    """Arguments of a call: a list of them, or lines of JSON."""
    if isinstance(value, list):
        return value
    try:
        return [json.loads(line) for line in str(value).split("\n") if line.strip()]
    except ValueError:
        raise RefusedRow("arguments that are no JSON") from None


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_tests(source: str) -> Iterator[Test]:
    """LeetCode's `check(candidate)` with asserts on literals, called as `check(Solution().f)`."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        raise RefusedRow("a check that is no Python") from None
    called = re.search(r"check\(\s*Solution\(\)\.(\w+)\s*\)", source)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    if not called or not asserts:
        raise RefusedRow("a check that never calls check(Solution().f)")
    for node in asserts:
        try:
            test = from_assert(ast.unparse(node), entry_point="candidate")
        except ArgumentError:
            raise RefusedRow("a check with an assert that is not about one call") from None
        if not {"args", "expected"} <= set(test):
            raise RefusedRow("a check with an assert that is no comparison of a call of literals with a literal")
        yield {"entry_point": called[1], **{key: test[key] for key in ("args", "kwargs", "expected")}}


class _PlainUnpickler(pickle.Unpickler):
    """Reads builtin values; whatever would import a name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a name may not be imported: {module}.{name}")


def unpack_private(text: str, *, trusted: bool) -> Any:
    """Unpack LiveCodeBench's private tests: JSON text, pickled, compressed, in base64.

    Args:
        text: as in the file.
        trusted: whether the file may be unpickled; even then nothing is imported.

    Raises:
        RefusedRow: it is not trusted, or is something else.
    """
    if not trusted:
        raise RefusedRow("packed private tests, which are only read from trusted files (config.task.coding.trusted)")
    try:
        packed = base64.b64decode(text, validate=True)
        reader = zlib.decompressobj()
        data = reader.decompress(packed, MOST_UNPACKED)
        return json.loads(_PlainUnpickler(io.BytesIO(data)).load())
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, TypeError) as error:
        raise RefusedRow(f"packed private tests that cannot be read ({type(error).__name__})") from None
