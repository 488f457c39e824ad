"""Tool episodes: what a call may be, what it may reach, and what a state hash sees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox.inside.tools import MAX_CALLS, MAX_TEXT_BYTES, Malformed, fit, parse_calls, state_of, text_of
from jaxrl_agent.sandbox.results import Reply, Result, Status
from jaxrl_agent.sandbox.tools import Instance, Tool, ToolSession, read_results, state_hash
from jaxrl_agent.testing.plain_workers import plain_worker

# A shop with the faults that real back ends have: class attributes and default arguments that are changed.
SHOP = b"""
import os
from shop.prices import price_of

class Shop:
    log = []

    def __init__(self):
        self.cart = {}
        self.budget = 0.0
        self._secret = 1

    def fill(self, scenario, *, scale=1):
        self.cart = scenario["cart"]
        self.budget = scenario["budget"] * scale

    def add(self, item, count=1, seen=[]):
        seen.append(item)
        self.log.append(item)
        self.cart[item] = self.cart.get(item, 0) + count
        return {"total": sum(price_of(name) * many for name, many in self.cart.items()), "seen": len(seen)}

    def history(self):
        return ", ".join(self.log)

    def spend(self, amount):
        if amount > self.budget:
            raise ValueError("too dear")
        self.budget -= amount
        return self.budget

    def long(self, size):
        return "\\N{SNOWMAN}" * size

    def here(self):
        return os.getpid()
"""
PRICES = b"def price_of(name):\n    return len(name)\n"
MODULES = {"shop.prices": PRICES, "shop.desk": SHOP}
TOOLS = [
    Tool(
        "add_item",
        "shop",
        {
            "type": "dict",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["item"],
        },
        method="add",
    ),
    Tool("history", "shop", {"type": "dict", "properties": {}, "required": []}),
    Tool("spend", "shop", {"type": "object", "properties": {"amount": {"type": "float"}}, "required": ["amount"]}),
    Tool("long", "shop", {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}),
    Tool("here", "shop", {"type": "object", "properties": {}}),
]
SCENARIO = {"cart": {"tea": 1}, "budget": 5}


def open_shop(**options):
    instance = Instance("shop", "shop.desk", "Shop", load="fill", scenario=SCENARIO, options={"scale": 2})
    return ToolSession(MODULES, [instance], TOOLS, open_worker=options.pop("open_worker", plain_worker), **options)


@pytest.fixture
def shop():
    with open_shop() as session:
        yield session


def calls(*pairs):
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in pairs])


# ---- calls as text


def test_calls_are_read_from_json():
    assert parse_calls(calls(("f", {"x": [1, 2.5, None]}), ("g", {}))) == [("f", {"x": [1, 2.5, None]}), ("g", {})]
    assert parse_calls('{"name": "f", "arguments": {}}') == [("f", {})]
    assert parse_calls("[]") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f(1)", "not JSON"),
        ("", "not JSON"),
        ("7", "a call must be"),
        ("[[]]", "a call must be"),
        ('{"name": "f"}', "a call must be"),
        ('{"name": "f", "arguments": {}, "more": 1}', "a call must be"),
        ('{"name": 7, "arguments": {}}', "must be a string"),
        ('{"name": "f", "arguments": "{}"}', "an object"),
        ('{"name": "f", "arguments": {"x": NaN}}', "no JSON"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "no JSON"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "range of floats"),
        ('{"name": "f", "arguments": {"x": 9223372036854775808}}', "64 bits"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 100_000 + "}}", "64 bits"),
        ('{"name": "f", "name": "g", "arguments": {}}', "occurs twice"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "Unicode"),
        ('{"name": "\ud800", "arguments": {}}', "Unicode"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 31 + "]" * 31 + "}}", "deeper"),
        ("[" * 100_000, "deeper"),
        ('{"name": "f", "arguments": {"x": "' + "y" * MAX_TEXT_BYTES + '"}}', "longer"),
        ("[" + ", ".join(['{"name": "f", "arguments": {}}'] * (MAX_CALLS + 1)) + "]", "more than"),
    ],
)
def test_what_is_no_list_of_calls_is_refused(text, words):
    with pytest.raises(Malformed, match=words):
        parse_calls(text)


def test_the_largest_allowed_numbers_and_depths_pass():
    text = (
        '{"name": "f", "arguments": {"x": [-9223372036854775808, 9223372036854775807], "y": '
        + "[" * 30
        + "]" * 30
        + "}}"
    )
    assert parse_calls(text)[0][1]["x"] == [-(2**63), 2**63 - 1]


# ---- schemas


@pytest.mark.parametrize(
    ("value", "schema", "fitted"),
    [
        (3, {"type": "integer"}, 3),
        (65.0, {"type": "integer"}, 65),
        (65, {"type": "float"}, 65),
        (2.5, {"type": "number"}, 2.5),
        ("x", {"type": "string", "enum": ["x", "y"]}, "x"),
        (None, {"type": ["string", "null"]}, None),
        ([1.0, 2], {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ([1, "a"], {"type": "tuple"}, [1, "a"]),
        ({"a": 1}, {"type": "dict"}, {"a": 1}),
        ({"a": 1}, {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"deep": {"free": 1}}, {"type": "dict", "properties": {"deep": {"type": "dict"}}}, {"deep": {"free": 1}}),
        (True, {}, True),
        (True, {"type": "any"}, True),
    ],
)  # fmt: skip
def test_values_that_fit_a_schema(value, schema, fitted):
    got = fit(value, schema, "x")
    assert got == fitted
    assert type(got) is type(fitted)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, {"type": "integer"}),
        (1, {"type": "boolean"}),
        (True, {"type": "float"}),
        (2.5, {"type": "integer"}),
        ("3", {"type": "integer"}),
        (3, {"type": "string"}),
        (None, {"type": "string"}),
        (1, {"type": "number", "enum": [True, 2]}),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}),
        ({"a": "x"}, {"type": "dict", "properties": {"a": {"type": "integer"}}}),
        ({"b": 1}, {"type": "dict", "properties": {"a": {"type": "integer"}}}),
        ({}, {"type": "dict", "properties": {"a": {}}, "required": ["a"]}),
        ([], {"type": "dict"}),
        (1, {"type": "no such type"}),
    ],
)
def test_values_that_do_not_fit(value, schema):
    with pytest.raises(ValueError, match="x"):
        fit(value, schema, "x")


def test_a_tool_without_parameters_takes_none():
    with pytest.raises(ValueError, match="must not have"):
        fit({"a": 1}, {"type": "dict", "properties": {}})


# ---- episodes


def test_calls_run_in_order_and_change_the_state(shop):
    done = shop.call(calls(("add_item", {"item": "rice", "count": 2.0}), ("spend", {"amount": 4}), ("history", {})))
    assert done.status is Status.OK
    assert [result.text for result in done.results] == ['{"total": 11, "seen": 1}', "6", "rice"]
    assert shop.state()["shop"]["attributes"]["cart"] == {"dict": [["rice", 2], ["tea", 1]]}


def test_a_failing_call_does_not_stop_the_others(shop):
    done = shop.call(calls(("spend", {"amount": 100}), ("add_item", {"count": 1}), ("spend", {"amount": 1})))
    assert [result.status for result in done.results] == [Status.RUNTIME_ERROR, Status.RUNTIME_ERROR, Status.OK]
    assert [result.text for result in done.results] == [
        "Error during execution: too dear",
        "Error during execution: arguments lacks item",
        "9",
    ]
    assert (done.status, done.alive) == (Status.RUNTIME_ERROR, True)


@pytest.mark.parametrize(
    "name",
    [
        *("add", "fill", "log", "_secret", "__class__", "__init__", "shop.add_item", "Shop.add", "add_item.__func__"),
        *(
            "__import__('os').getpid",
            "add_item()",
            "ADD_ITEM",
            " add_item",
            "add_item\0",
            "",
            "os",
            "history\n",
            "eval",
        ),
    ],
)
def test_only_declared_names_can_be_called(shop, name):
    before = shop.state_hash()
    done = shop.call(calls((name, {}), ("here", {})))
    assert (done.status, done.alive) == (Status.SECURITY_VIOLATION, True)
    assert [result.status for result in done.results] == [Status.SECURITY_VIOLATION, Status.OK]
    assert shop.state_hash() == before


def test_text_that_is_no_call_runs_nothing(shop):
    before = shop.state_hash()
    for text in ("add_item(item='x')", '{"name": "add_item", "arguments": {"item": NaN}}', "[" * 99_999):
        done = shop.call(text)
        assert (done.status, done.results) == (Status.RUNTIME_ERROR, ())
        assert done.reason.startswith("no tool calls: ")
    assert shop.state_hash() == before


def test_episodes_share_neither_a_process_nor_class_attributes():
    with open_shop() as one, open_shop() as two:
        fresh = two.state_hash()
        one.call(calls(("add_item", {"item": "rice"})))
        assert two.call(calls(("history", {}))).results[0].text == ""
        assert two.state_hash() == fresh != one.state_hash()
        pids = {session.call(calls(("here", {}))).results[0].text for session in (one, two)}
        assert len(pids | {str(os.getpid())}) == 3
    assert SCENARIO == {"cart": {"tea": 1}, "budget": 5}


def test_withheld_tools_can_be_called_once_they_are_offered():
    with open_shop(withheld=["history"]) as shop:
        assert shop.call(calls(("history", {}))).status is Status.SECURITY_VIOLATION
        shop.offer(["history", "fill"])
        assert shop.call(calls(("history", {}))).status is Status.OK
        assert shop.call(calls(("fill", {}))).status is Status.SECURITY_VIOLATION


def test_long_results_are_cut():
    with open_shop(max_result_bytes=100) as shop:
        done = shop.call(calls(("long", {"size": 50}), ("long", {"size": 3})))
        assert [result.status for result in done.results] == [Status.OUTPUT_LIMIT, Status.OK]
        assert done.results[0].text == "\N{SNOWMAN}" * 33


def test_an_episode_that_is_closed_is_over(shop):
    shop.close()
    with pytest.raises(SandboxError, match="over"):
        shop.call(calls(("here", {})))


def test_tools_and_objects_must_fit_together():
    with pytest.raises(ArgumentError, match="differ"):
        ToolSession({}, [Instance("a", "m", "A")], [Tool("f", "a", {}), Tool("f", "a", {})], open_worker=plain_worker)
    with pytest.raises(ArgumentError, match="objects"):
        ToolSession({}, [], [Tool("f", "a", {})], open_worker=plain_worker)


class Answering:
    """A worker with one answer to everything."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self, kind, **options):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def call(self, request, limits=None):
        return self.answers.pop(0)


def test_a_killed_process_ends_the_episode():
    killed = Reply(Result(Status.TIME_LIMIT, reason="more than 2 s of CPU time"))
    with open_shop(open_worker=Answering(killed)) as shop:
        done = shop.call(calls(("here", {})))
        assert (done.status, done.alive, done.results) == (Status.TIME_LIMIT, False, ())
        with pytest.raises(SandboxError, match="over"):
            shop.state_hash()


@pytest.mark.parametrize(
    "value", [None, {}, {"results": []}, {"results": [{"status": "ok"}]}, {"results": [{"status": "?", "text": ""}]}]
)
def test_a_malformed_answer_is_the_sandboxs_failure(value):
    with pytest.raises(SandboxError):
        read_results(value, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\n", "a\n"),
        ({"a": None}, '{"a": null}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (None, "None"),
        ([1, "x"], "[1, 'x']"),
    ],
)
def test_results_become_text_as_bfcl_has_it(value, text):
    assert text_of(value) == text


# ---- states


class Folder:
    def __init__(self, parent=None):
        self.children, self.parent, self._modified = {}, parent, object()


def test_a_state_follows_public_attributes_and_marks_loops():
    root = Folder()
    root.children["sub"] = Folder(root)
    state = state_of(root)
    assert state["attributes"]["parent"] is None
    ((name, sub),) = state["attributes"]["children"]["dict"]
    assert (name, sub["attributes"]["parent"]) == ("sub", {"up": 3})
    assert "_modified" not in state["attributes"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 65}, {"a": 65.0}, True),
        ({"a": (1, 2)}, {"a": [1, 2]}, True),
        ({"a": {3, 1, 2}}, {"a": {2, 3, 1}}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": {1: 0}}, {"a": {"1": 0}}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": ""}, {"a": None}, False),
        ({"a": 0.1}, {"a": 0.2}, False),
        ({"a": float("nan")}, {"a": float("nan")}, True),
    ],
)
def test_hashes_are_equal_for_equal_states(one, other, same):
    assert (state_hash({"x": state_of(one)}) == state_hash({"x": state_of(other)})) is same


def test_every_function_document_of_bfcl_is_a_schema_that_is_understood(data_dir):
    found = 0
    for path in sorted(Path(data_dir, "bfcl", "multi_turn_func_doc").glob("*.json")):
        for line in path.read_text().splitlines():
            document = json.loads(line)
            sample = {key: example_of(value) for key, value in document["parameters"]["properties"].items()}
            assert fit(sample, document["parameters"]) == sample, document["name"]
            required = document["parameters"]["required"]
            if required:
                with pytest.raises(ValueError, match="lacks"):
                    fit({}, document["parameters"])
            found += 1
    assert found > 100


def example_of(schema):
    kind = schema["type"]
    if kind == "array":
        return [example_of(schema["items"])]
    if kind == "dict":
        return {key: example_of(value) for key, value in schema.get("properties", {}).items()}
    return {"string": "x", "integer": 3, "float": 2.5, "boolean": True}[kind]
