"""A programming problem: what the agent reads, the tests that it may see, and those that decide."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

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
        return hashlib.sha256("\n\n".join(parts).encode()).hexdigest()


def _text(tests: Sequence[Test]) -> str:
    return json.dumps([dict(test) for test in tests], sort_keys=True, default=repr)
