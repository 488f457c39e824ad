"""What host code plays, whatever the task: instances, episodes on token rows, answers that say everything.

A task that runs beside the accelerator is a `HostTask`. It makes episodes; an episode takes replies as ids and writes
down, in the same row, what the policy reads next. Answers are plain data: a process that did not play an episode can
follow it from its answers alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxrl_agent.types import StopReason, TokenRow


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the environment says to one reply."""

    observation: list[int]  # ids that the row got behind the reply; none once the episode is over
    reward: float
    terminated: bool  # the environment is done: goal reached, or lost
    stop: StopReason | None  # why the episode is over; None while it goes on
    parsed_action: str | None  # None for a reply that names none, or that was cut
    text: str = ""  # the reply, for people
    state_key: str = ""  # name of the state that the reply was given in: equal ones are one state of the instance
    quality: float = 0.0  # value of what the reply did, the task's step quality
    best_quality: float = 0.0  # value of the best reply in that state
    process: float = 0.0  # process reward of the turn; 0 where the task offers none
    call_ok: bool | None = None  # whether the turn's tool calls ran without error; None without a call
    is_error: bool = False  # a genuine error, fit to be put into another episode of the instance
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # task extras for people and analyses


class Episode(Protocol):
    """One try at one instance. The next reply is sampled behind `row.ids`; after each one comes `step`.

    The episode itself writes into `row`: the prompt at first, in each step the reply, marked with its turn, and behind
    it the ids that `Answer.observation` repeats. It also counts its turns, and stops when the budget is used up.
    """

    row: TokenRow
    stop: StopReason | None
    n_turns: int

    def step(self, reply: Sequence[int] | str, *, sampled: bool = True) -> Answer:
        """Write a reply down, play it, and write down what the policy is to read next.

        Args:
            reply: ids, end token included unless the reply was cut; or text of an outside player.
            sampled: False for a reply that was put in the agent's place: it is in the history as the agent's own, and
                nobody is ever trained on it or scored by it.
        """

    def close(self) -> None:
        """Give back what the episode holds: processes, sandboxes, files."""


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One episode of an imperfect player, for the warm start."""

    row: TokenRow  # replies marked with their turn
    success: bool


class HostInstances(Protocol):
    """The instances of one split, as evaluations and reports name them."""

    split: str

    def __len__(self) -> int: ...

    @property
    def data_hash(self) -> str:
        """SHA-256 over everything that decides how a game goes: equal hashes mean the same games."""

    def instance_id(self, index: int) -> str:
        """Stable name of an instance."""

    def instance_info(self, index: int) -> dict[str, Any]:
        """What was played, for people."""


class HostTask(Protocol):
    """One split of a task that host code plays; safe to be used from many threads."""

    t_max: int  # turns
    max_tokens: int  # tokens of one reply
    stop_ids: tuple[int, ...]  # ids that end a reply; empty where every reply has exactly `max_tokens` ids

    def __len__(self) -> int: ...

    def reset(self, instance: int, *, budget: int, key: Any, context: int | None = None) -> Episode:
        """Begin an episode.

        Args:
            instance: index of the instance.
            budget: turns allowed, 1 to `t_max`.
            key: typed random key of the world's chance.
            context: tokens that the row has room for, prompt, observations and replies together; an episode without
                room for another longest reply stops with `context_limit`. None for no limit.
        """
