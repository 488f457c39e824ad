"""Which tests of a problem are public, and which are kept where there are many."""

from __future__ import annotations

import json
from collections.abc import Sequence

from jaxrl_agent.tasks.coding.problem import Test

N_PUBLIC_OTHERWISE = 2


def choose_tests(statement: str, tests: Sequence[Test], *, most: int) -> tuple[tuple[Test, ...], tuple[Test, ...]]:
    """Divide tests into public and hidden ones.

    Public are those whose input occurs in the statement, white space removed, else the first two. Of the hidden ones
    those with the longest inputs are kept.

    Args:
        statement: of the problem.
        tests: repeated ones count once.
        most: tests kept, public and hidden together; at least one is left to be hidden.

    Returns:
        public and hidden tests, each in their order; no hidden ones if the rule makes all public.
    """
    by_key: dict[str, Test] = {}
    for test in tests:
        by_key.setdefault(_key(test), test)
    distinct = list(by_key.values())
    text = _bare(statement)
    shown = [number for number, test in enumerate(distinct) if (words := _bare(input_text(test))) and words in text]
    public = (shown or list(range(len(distinct)))[:N_PUBLIC_OTHERWISE])[: most - 1]
    rest = [number for number in range(len(distinct)) if number not in (shown or public)]
    longest = sorted(rest, key=lambda number: (-len(input_text(distinct[number])), number))[: most - len(public)]
    return tuple(distinct[number] for number in public), tuple(distinct[number] for number in sorted(longest))


def longest_tests(public: Sequence[Test], hidden: Sequence[Test], *, most: int) -> tuple[Test, ...]:
    """Keep hidden tests with the longest inputs, so that at most `most` are left together with the public ones."""
    order = sorted(range(len(hidden)), key=lambda number: (-len(input_text(hidden[number])), number))
    return tuple(hidden[number] for number in sorted(order[: max(1, most - len(public))]))


def input_text(test: Test) -> str:
    """What a test asks, as a text."""
    if "input" in test:
        return test["input"]
    if "call" in test:
        return test["call"]
    return "\n".join(_argument_text(item) for item in (*test["args"], *test.get("kwargs", {}).values()))


def _argument_text(value: object) -> str:
    try:
        return json.dumps(value)
    except TypeError:  # what JSON does not have, such as sets and keys that are tuples
        return repr(value)


def _key(test: Test) -> str:
    return repr(sorted((key, repr(value)) for key, value in test.items() if key != "checker"))


def _bare(text: str) -> str:
    return "".join(text.split())
