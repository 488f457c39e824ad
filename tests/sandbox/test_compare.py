"""The rules of comparison, one by one, on hand-made answers."""

from __future__ import annotations

import json
import math

import pytest

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.sandbox.compare import (
    PYTHON_EQUALITY,
    Rules,
    canonical,
    canonical_json,
    is_wire,
    same_output,
    same_rows,
    same_value,
    same_wire,
)
from jaxrl_agent.sandbox.inside.call import MAX_DEPTH, from_wire, to_wire

# ---- printed text


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("42", "42\n"),
        ("42\r\n7\r\n", "42\n7\n"),
        ("  42  \n\n\n", "42\n"),
        ("1  2\t3", "1 2 3\n"),
        ("0.3333333", "0.33333333333\n"),
        ("0.30000000000000004", "0.3"),
        ("2.0", "2"),
        ("2", "2.0"),
        ("1e3", "1000.0"),
        ("-0.0", "0.0"),
        ("1000000.4", "1000000.0"),
        ("", "\n"),
    ],
)
def test_outputs_that_differ_in_blanks_or_rounding_are_equal(got, expected):
    assert same_output(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("", "42\n"),
        ("42\n42", "42\n"),
        ("1\n2 3", "1 2\n3"),
        ("12", "1 2"),
        ("YES", "Yes"),
        ("10000001", "10000000"),
        ("0.3334", "0.3333"),
        ("nan", "0.5"),
        ("inf", "1e999"),
        ("1e999", "2e999"),
        ("1_0.0", "10.0"),
        ("007", "7"),
        ("\u0661", "1"),
        ("\N{NO-BREAK SPACE}42", "42"),
        ("42\0", "42"),
        ("True", "1"),
        ("0x10", "16"),
    ],
)
def test_outputs_of_other_lines_tokens_or_numbers_are_not_equal(got, expected):
    assert not same_output(got, expected)
    assert not same_output(expected, got)


def test_an_integer_that_is_expected_has_no_tolerance_that_grows():
    assert not same_output("10000001.0", "10000000")
    assert same_output("10000001.0", "10000000.0")


def test_a_very_long_number_is_compared_as_text():
    assert same_output("1" * 100_000, "1" * 100_000)
    assert not same_output("1" * 100_000 + ".5", "1" * 100_000 + ".4")


# ---- values


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -7, 2**200, -(2**63), 1.5, math.inf, -math.inf, "é\n\ud800", b"\x00\xff", 1 + 2j),
        *(
            [],
            (),
            {},
            set(),
            [1, (2, {3: {4}})],
            {(1, 2): "x", None: [b"y"]},
            {frozenset({1}), 2},
            {"dict": [["a", 1]]},
        ),
    ],
    ids=repr,
)
def test_a_value_survives_the_wire_with_its_type(value):
    wire = json.loads(json.dumps(to_wire(value), allow_nan=False))
    assert is_wire(wire)
    back = from_wire(wire)
    assert type(back) is type(value)
    assert back == value
    assert same_wire(wire, to_wire(value), rules=PYTHON_EQUALITY)


class Seven(int):
    pass


class Named(tuple):
    pass


@pytest.mark.parametrize("value", [Seven(7), Named((1, 2)), [Seven(7)], object(), range(3), len, {1: Seven(7)}])
def test_a_value_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="builtin type"):
        to_wire(value)


def test_a_value_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="deeper"):
        to_wire(loop)


@pytest.mark.parametrize(
    ("got", "expected", "default", "python"),
    [
        (True, True, True, True),
        (1, True, False, False),
        (False, 0, False, False),
        (1.0, True, False, False),
        (65, 65.0, True, True),
        (65.0, 65, True, True),
        (65, 65.0000001, False, False),
        (2**70 + 1, float(2**70), False, False),
        (2**70, float(2**70), True, True),
        (1.0000001, 1.0, True, False),
        (1e12 + 1, 1e12, True, False),
        (1.001, 1.0, False, False),
        (math.nan, math.nan, True, True),
        (math.inf, math.inf, True, True),
        (math.inf, 1e308, False, False),
        ("1", 1, False, False),
        ("a", b"a", False, False),
        (None, False, False, False),
        ((1, 2), [1, 2], True, False),
        ([1, (2,)], [1, [2]], True, False),
        ([1, 2], [2, 1], False, False),
        ([1, 2], [1], False, False),
        ({1, 2}, {2, 1}, True, True),
        ({1, 2}, [1, 2], False, False),
        ({1: [0.1 + 0.2]}, {1: [0.3]}, True, False),
        ({1: 2}, {1.0: 2}, True, True),
        ({1: 2}, {True: 2}, False, False),
        ({"1": 2}, {1: 2}, False, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True),
        ({"a": 1}, {"a": 1, "b": None}, False, False),
        ({frozenset({1, 2}): 0}, {frozenset({2, 1}): 0}, True, True),
        ("", "", True, True),
        ([], {}, False, False),
    ],
)
def test_values_are_equal_as_the_rules_say(got, expected, default, python):
    assert same_value(got, expected) is default
    assert same_value(got, expected, rules=PYTHON_EQUALITY) is python


@pytest.mark.parametrize(
    "wire",
    [
        {"evil": [1]},
        {},
        {"tuple": [1], "list": [2]},
        {"tuple": 7},
        {"set": [[1]]},
        {"set": [{"dict": []}]},
        {"dict": [[1, 2], [1, 3]]},
        {"dict": [[1, 2], [1.0, 3]]},
        {"dict": [[[1], 2]]},
        {"dict": [1]},
        {"dict": [[1, 2, 3]]},
        {"int": "7"},
        {"int": 7},
        {"float": "0x10"},
        {"float": "1"},
        {"bytes": "0"},
        {"complex": [1]},
        {"complex": [True, 1]},
        [{"nested": 1}],
        math.inf,
    ],
    ids=str,
)
def test_a_forged_wire_value_is_not_well_formed(wire):
    assert not is_wire(wire)


def test_depth_is_bounded_the_same_on_both_sides():
    value = 1
    for _ in range(MAX_DEPTH):
        value = (value,)
    assert is_wire(to_wire(value))
    with pytest.raises(ValueError, match="deeper"):
        to_wire((value,))
    assert not is_wire({"tuple": [to_wire(value)]})


def test_canonical_text_tells_values_apart_that_print_alike():
    values = [1, True, "1", "0x1", [1], (1,), {1}, {1: 1}, None, "None", "null", b"1", 1.5, "1.5", [[1], 2], [[1, 2]]]
    assert len({canonical(to_wire(value)) for value in values}) == len(values)
    assert canonical(2.0) == canonical(2)


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_without_sense_is_refused(tolerance):
    with pytest.raises(ArgumentError, match="tolerance"):
        Rules(tolerance=tolerance)


def test_canonical_json_is_one_text_for_equal_states():
    assert canonical_json({"b": [65.0, {"y": 1, "x": None}], "a": 1}) == '{"a":1,"b":[65,{"x":null,"y":1}]}'
    assert canonical_json([True]) != canonical_json([1])
    with pytest.raises(ArgumentError, match="JSON"):
        canonical_json([math.nan])


# ---- rows


@pytest.mark.parametrize(
    ("got", "expected", "ordered", "same"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], False, True),
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], True, False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),
        ([(1,), (1,)], [(1,)], False, False),
        ([("b", 1)], [(1, "b")], False, False),
        ([(5,)], [(5.0,)], False, True),
        ([("5",)], [(5,)], False, False),
        ([(None,)], [("",)], False, False),
        ([(None,)], [(None,)], False, True),
        ([(None,)], [(0,)], False, False),
        ([(b"a",)], [("a",)], False, False),
        ([(510.333333,)], [(510.33333333,)], False, True),
        ([(0.1 + 0.2, "x"), (0.3, "y")], [(0.3, "x"), (0.1 + 0.2, "y")], False, True),
        ([(math.inf,)], [(math.inf,)], False, True),
        ([(1, 2)], [(1,)], False, False),
        ([], [], False, True),
        ([], [(None,)], False, False),
    ],
)
def test_rows_are_equal_as_multisets_or_sequences(got, expected, ordered, same):
    assert same_rows(got, expected, ordered=ordered) is same
    assert same_rows(expected, got, ordered=ordered) is same
