"""The one place that says when an answer equals the expected one: printed text, function values, rows of a query.

Everything here runs on the trusted side, on data alone: text, JSON, and values of exact builtin types. No method of
anything a model wrote is ever called.

Numbers: a boolean is never a number. Two integers must be equal; an integer and a float must be equal in value; two
floats may differ by `tolerance * max(1, |expected|)`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.sandbox.inside.call import MAX_DEPTH, to_wire

_BLANKS = " \t\r\f\v"
_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d{1,300}\.\d{0,300}|\.\d{1,300}|\d{1,300}(?=[eE]))([eE][+-]?\d{1,4})?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How exact an answer must be.

    Attributes:
        tolerance: of two floats, absolute up to 1 and relative above; dimensionless.
        tuple_is_list: whether a tuple and a list of the same items are equal; JSON tests cannot tell them apart.
    """

    tolerance: float = 1e-6
    tuple_is_list: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0.0):
            raise ArgumentError("tolerance must be a finite number, at least 0", value=self.tolerance)


DEFAULT_RULES = Rules()
PYTHON_EQUALITY = Rules(tolerance=0.0, tuple_is_list=False)


# ---- numbers


def same_number(got: float, expected: float, *, tolerance: float = DEFAULT_RULES.tolerance) -> bool:
    """Compare two numbers, neither of them a boolean; NaN equals NaN."""
    if type(got) is not float or type(expected) is not float:
        return got == expected  # exact in Python, however large the integer
    if math.isnan(got) or math.isnan(expected):
        return math.isnan(got) and math.isnan(expected)
    if math.isinf(got) or math.isinf(expected):
        return got == expected
    return abs(got - expected) <= tolerance * max(1.0, abs(expected))


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


# ---- printed text


def same_output(got: str, expected: str, *, tolerance: float = DEFAULT_RULES.tolerance) -> bool:
    """Compare what a program printed with what it should have printed.

    Both must have the same lines that are not blank, made of the same tokens; CRLF, blanks around and between tokens,
    and blank lines do not matter. Tokens are equal as text, or as decimal numbers within the tolerance if at least one
    has a point or an exponent. If the expected one is written as an integer, the tolerance is not scaled by its size.

    Args:
        got: standard output of the program.
        expected: standard output of a right program.
        tolerance: of decimal numbers, absolute up to 1 and relative above.
    """
    got_lines, expected_lines = _token_lines(got), _token_lines(expected)
    return len(got_lines) == len(expected_lines) and all(
        len(left) == len(right) and all(_same_token(a, b, tolerance) for a, b in zip(left, right, strict=True))
        for left, right in zip(got_lines, expected_lines, strict=True)
    )


def _token_lines(text: str) -> list[list[str]]:
    lines = (re.split(f"[{_BLANKS}]+", line.strip(_BLANKS)) for line in text.split("\n"))
    return [tokens for tokens in lines if tokens != [""]]


def _same_token(got: str, expected: str, tolerance: float) -> bool:
    if got == expected:
        return True
    decimals = [_DECIMAL.fullmatch(token) is not None for token in (got, expected)]
    integers = [_INTEGER.fullmatch(token) is not None for token in (got, expected)]
    if not any(decimals) or not all(d or i for d, i in zip(decimals, integers, strict=True)):
        return False
    left, right = float(got), float(expected)
    if not (math.isfinite(left) and math.isfinite(right)):
        return False
    return abs(left - right) <= tolerance * (1.0 if integers[1] else max(1.0, abs(right)))


# ---- values of functions


def same_value(got: object, expected: object, *, rules: Rules = DEFAULT_RULES) -> bool:
    """Compare two trusted Python values of exact builtin types; see `same_wire`."""
    return same_wire(to_wire(got), to_wire(expected), rules=rules)


def same_wire(got: object, expected: object, *, rules: Rules = DEFAULT_RULES) -> bool:
    """Compare two values in the JSON form of `to_wire`.

    Types must be the same, except as the module's docstring and the rules say. Keys of dicts and members of sets are
    compared without tolerance, in any order.

    Args:
        got: wire form that has passed `is_wire`.
        expected: wire form.
        rules: what may differ.
    """
    left, right = _split(got), _split(expected)
    if rules.tuple_is_list:
        left, right = (("list" if tag == "tuple" else tag, body) for tag, body in (left, right))
    (tag, mine), (other_tag, other) = left, right
    if tag != other_tag:
        return False
    if tag == "number":
        return same_number(mine, other, tolerance=rules.tolerance)
    if tag in ("list", "tuple", "complex"):
        return len(mine) == len(other) and all(same_wire(a, b, rules=rules) for a, b in zip(mine, other, strict=True))
    if tag == "set":
        return sorted({canonical(item) for item in mine}) == sorted({canonical(item) for item in other})
    if tag == "dict":
        mine_by_key, other_by_key = ({canonical(key): item for key, item in body} for body in (mine, other))
        return mine_by_key.keys() == other_by_key.keys() and all(
            same_wire(mine_by_key[key], item, rules=rules) for key, item in other_by_key.items()
        )
    return mine == other


def _split(wire: object) -> tuple[str, object]:
    """Type name and body of a wire value; numbers of all spellings become Python numbers."""
    if isinstance(wire, list):
        return "list", wire
    if not isinstance(wire, dict):
        return ("number" if _is_number(wire) else type(wire).__name__), wire
    ((tag, body),) = wire.items()
    if tag in ("int", "float"):
        return "number", (int(body, 16) if tag == "int" else float(body))
    return tag, body


def canonical(wire: object) -> str:
    """Text that is equal for equal values: numbers by value, sets and dicts in one order."""
    tag, body = _split(wire)
    if tag == "number":
        whole = type(body) is int or body.is_integer()
        return f"{int(body):#x}" if whole else repr(body)
    if tag in ("set", "dict"):
        parts = {":".join(map(canonical, item)) if tag == "dict" else canonical(item) for item in body}
        return f"{tag}({','.join(sorted(parts))})"
    if isinstance(body, list):
        return f"{tag}({','.join(map(canonical, body))})"
    return f"{tag}:{json.dumps(body)}"


def is_wire(value: object, depth: int = 0) -> bool:
    """Say whether a value that JSON gave is a well-formed wire value: known tags, right shapes, bounded depth."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, list):
        return all(is_wire(item, depth + 1) for item in value)
    if type(value) is float:
        return math.isfinite(value)
    if not isinstance(value, dict):
        return True
    if len(value) != 1:
        return False
    ((tag, body),) = value.items()
    if tag == "float":
        return body in ("nan", "inf", "-inf")
    if tag in ("int", "bytes"):
        digits = r"-?0x[0-9a-f]+" if tag == "int" else r"([0-9a-f]{2})*"
        return isinstance(body, str) and re.fullmatch(digits, body) is not None
    if not isinstance(body, list):
        return False
    if tag == "dict":
        return _are_pairs(body, depth)
    if not all(is_wire(item, depth + 1) for item in body):
        return False
    if tag == "complex":
        return len(body) == 2 and all(_split(part)[0] == "number" for part in body)
    return tag == "tuple" or (tag == "set" and all(map(_is_key, body)))


def _are_pairs(body: list, depth: int) -> bool:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        return False
    if not all(is_wire(item, depth + 1) for pair in body for item in pair):
        return False
    return all(_is_key(key) for key, _ in body) and len({canonical(key) for key, _ in body}) == len(body)


def _is_key(wire: object) -> bool:
    """Whether Python could hash the value."""
    tag, body = _split(wire)
    return tag not in ("list", "dict") and (not isinstance(body, list) or all(map(_is_key, body)))


def canonical_json(value: object) -> str:
    """Write trusted JSON data so that equal data give equal text: keys in order, 65.0 as 65, no NaN.

    Raises:
        ArgumentError: a value that strict JSON does not have.
    """
    try:
        return json.dumps(_whole_floats(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError("a state must be made of strict JSON", value=str(error)) from error


def _whole_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _whole_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_floats(item) for item in value]
    return int(value) if type(value) is float and value.is_integer() else value


# ---- rows of a query

Row = Sequence[object]


def same_rows(got: Sequence[Row], expected: Sequence[Row], *, ordered: bool, rules: Rules = DEFAULT_RULES) -> bool:
    """Compare the rows of two queries: as sequences if ordered, else as multisets.

    Duplicates and the order of columns count; names of columns do not. Values are None, int, float, str or bytes; text
    never equals a number, NULL equals NULL.

    Args:
        got: rows of the candidate.
        expected: rows of the reference.
        ordered: whether the order of rows counts.
        rules: tolerance of floats.
    """
    if len(got) != len(expected):
        return False
    if not ordered:
        # Rows are grouped by all that must be equal exactly, and lined up by their numbers within a group.
        got, expected = sorted(got, key=_row_key), sorted(expected, key=_row_key)
    return all(_same_row(left, right, rules) for left, right in zip(got, expected, strict=True))


def _same_row(got: Row, expected: Row, rules: Rules) -> bool:
    return len(got) == len(expected) and all(
        same_number(a, b, tolerance=rules.tolerance)
        if _is_number(a) and _is_number(b)
        else type(a) is type(b) and a == b
        for a, b in zip(got, expected, strict=True)
    )


def _row_key(row: Row) -> tuple:
    kinds = tuple("number" if _is_number(value) else f"{type(value).__name__}:{value!r}" for value in row)
    return kinds, tuple(value for value in row if _is_number(value))
