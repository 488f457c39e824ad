"""What probes ask of DeepCoder-MT: what a reply is worth, and what describes a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxrl_agent.tasks.base import Answer

PASS_FRACTION = "pass_fraction"
_PERCENT = "previous_pass_percent"


class CodingProbe:
    """DeepCoder-MT as `evaluation.host_arena` asks for it.

    Attributes:
        qualities: definitions of what a reply is worth, by name.
        primary: the quality that a study is about.
        covariates: what else describes a state, by name.
        has_tools: whether turns call tools.

    Args:
        task: the game.
        instances: the host's view of its problems.
    """

    def __init__(self, task: Any, instances: Any):
        del task, instances  # every problem is asked about in the same way
        self.qualities = {
            PASS_FRACTION: "share of all tests, public and hidden, that the submitted program passes; 0 without one"
        }
        self.primary = PASS_FRACTION
        self.covariates = {
            _PERCENT: "share of all tests that the latest submission passed, in whole per cent; none before the first"
        }
        self.has_tools = False

    def values(self, answer: Answer) -> dict[str, float]:
        """What a reply is worth, by quality."""
        return {PASS_FRACTION: answer.quality}

    def describe(self, answers: Sequence[Answer]) -> dict[str, float]:
        """Covariates of the state behind these answers; NaN where there was no submission."""
        submitted = [answer.quality for answer in answers if answer.parsed_action is not None]
        return {_PERCENT: float(round(100 * submitted[-1])) if submitted else math.nan}
