"""What an analysis must know of a policy besides its numbers: its name, where it started, how it was trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol


class Arm(Protocol):
    """A line of a comparison: a method, or the base that methods start from."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def base(self) -> str | None:
        """Name of the arm that a method starts from; None for a base."""

    @property
    def mixes_budgets(self) -> bool:
        """Whether it trains on a mixture of budgets."""

    @property
    def method(self) -> str:
        """How it trains apart from mixing budgets: equal ones differ in nothing but that."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """An arm of which nothing else is known."""

    name: str
    base: str | None = None
    mixes_budgets: bool = False
    process_rewards: bool = False  # whether its training was rewarded turn by turn, by exact values
    method: str = ""


def mixes(schedule: str) -> bool:
    """Whether a budget schedule draws several budgets in one update."""
    return schedule.startswith("budget_mix") or schedule == "headroom"


def method_of(algorithm: str, schedule: str) -> str:
    """How a policy was trained apart from mixing budgets."""
    return algorithm if mixes(schedule) or schedule == "fixed" else f"{algorithm}, {schedule}"


def partners(mixed: Arm, fixed: Sequence[Arm]) -> list[Arm]:
    """What a policy of mixed budgets is compared with: those trained alike but for that, or all where none was."""
    return [arm for arm in fixed if arm.method == mixed.method] or list(fixed)
