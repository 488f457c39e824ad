"""A programming problem: what the agent reads, the tests that it may see, and those that decide."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agent.sandbox.compare import Rules, canonical
from jaxrl_agent.sandbox.inside.call import to_wire

Test = Mapping[str, Any]  # a test of `sandbox.judge`


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem; its tests have the forms of `sandbox.judge`."""

    problem_id: str  # source and name: "mbpp/601"
    statement: str  # what the agent reads, examples included
    public: tuple[Test, ...]  # shown in feedback when they fail
    hidden: tuple[Test, ...]  # they decide; never shown
    style: str  # "stdin": reads standard input and prints; "function": defines `entry_point`
    entry_point: str = ""  # name of the function, for style "function"
    solution: str = ""  # reference solution; "" where none is known
    wrong: tuple[str, ...] = ()  # plausible programs that fail a test
    family: str = ""  # template that it was made from
    level: str = ""  # "easy", "medium", "hard" where known

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over everything that decides a verdict or what the agent reads."""
        parts = [self.problem_id, self.statement, self.style, self.entry_point, _text(self.public), _text(self.hidden)]
        return hashlib.sha256("\n\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _text(tests: Sequence[Test]) -> str:
    """The same text for the same tests in every process: sets and dicts are written in order."""
    return "\n".join(f"{key}={_value_text(test[key])}" for test in tests for key in sorted(test))


def _value_text(value: object) -> str:
    return repr(value) if isinstance(value, Rules) else canonical(to_wire(value))
