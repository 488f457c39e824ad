"""What an episode offers that host code plays, whatever the task: a row of ids in, an answer out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from jaxrl_agent.types import StopReason, TokenRow


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the environment says to one reply."""

    observation: list[int]  # ids that the row got behind the reply; none once the episode is over
    reward: float
    terminated: bool  # the environment is done: goal reached, or lost
    stop: StopReason | None  # why the episode is over; None while it goes on
    parsed_action: str | None  # None for a reply that names none, or that was cut


class Episode(Protocol):
    """One try at one instance. The next reply is sampled behind `row.ids`; after each one comes `step`."""

    row: TokenRow
    stop: StopReason | None
    n_turns: int

    def step(self, reply: Sequence[int] | str) -> Answer:
        """Write a reply down, play it, and write down what the policy is to read next."""
