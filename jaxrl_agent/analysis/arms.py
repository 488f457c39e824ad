"""What an analysis must know of a policy besides its numbers: its name, where it started, how it was trained."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Policy:
    """An arm of which nothing else is known."""

    name: str
    base: str | None = None
    mixes_budgets: bool = False
    process_rewards: bool = False  # whether its training was rewarded turn by turn, by exact values
