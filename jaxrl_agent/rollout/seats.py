"""The host half of rollouts with host environments: what a trajectory has, where its cache lies, what it waits for."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence

import numpy as np

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.tasks.base import Answer, Episode, HostTask
from jaxrl_agent.types import StopReason, TokenRow


@dataclasses.dataclass(frozen=True)
class Said:
    """A reply of the past, played again before the policy goes on."""

    ids: tuple[int, ...]
    sampled: bool = True  # False for one that was put in the agent's place


@dataclasses.dataclass(frozen=True)
class Request:
    """A trajectory that is wanted."""

    instance: int
    budget: int  # turns allowed to the whole trajectory
    row_id: int  # what its randomness hangs on, 0 .. 2**32 - 1
    said: tuple[Said, ...] = ()  # what it begins with
    turns: int | None = None  # turns to play at most behind that; None to the end of the budget


@dataclasses.dataclass(frozen=True)
class Played:
    """A finished trajectory."""

    request: Request
    row: TokenRow  # everything read and written; replies are marked with their turn, injected ones too
    logprobs: list[float]  # of each id that this rollout sampled, nats; 0 elsewhere
    prompt_length: int  # ids before the first reply
    answers: list[Answer]
    stop: StopReason
    failure: str = ""  # what the machinery said, where it failed

    @property
    def success(self) -> bool:
        """Whether the goal was reached."""
        return self.stop is StopReason.SUCCESS

    @property
    def return_(self) -> float:
        """Sum of the rewards."""
        return sum(answer.reward for answer in self.answers)


@dataclasses.dataclass(frozen=True)
class Opening:
    """An episode as it stands when the policy's turn has come."""

    ids: list[int]
    turns: list[int]
    prompt_length: int
    answers: list[Answer]
    stop: StopReason | None


def open_episode(task: HostTask, request: Request, *, key, context: int | None) -> tuple[Episode, Opening]:
    """Begin an episode and play what was said before; one in which that fails is closed."""
    episode = task.reset(request.instance, budget=request.budget, key=key, context=context)
    try:
        return episode, _said_again(episode, request.said)
    except BaseException:
        episode.close()
        raise


def _said_again(episode: Episode, past: Sequence[Said]) -> Opening:
    prompt_length, answers = len(episode.row.ids), []
    turns = [-1] * prompt_length
    for number, said in enumerate(past):
        answers.append(checked(episode.step(said.ids, sampled=said.sampled)))
        turns += [number] * len(said.ids)
        turns += [-1] * (len(episode.row.ids) - len(turns))
        if episode.stop is not None:
            break
    return Opening(list(episode.row.ids), turns, prompt_length, answers, episode.stop)


def checked(answer: Answer) -> Answer:
    """Refuse what is no answer, or pays what is no number: it would reach every trajectory of the update.

    Raises:
        ArgumentError: it is something else, its observation is no list of ids, or a reward or quality is not finite.
    """
    if not isinstance(answer, Answer):
        raise ArgumentError("an environment must give an Answer", value=type(answer).__name__)
    if not all(isinstance(token, int | np.integer) and token >= 0 for token in answer.observation):
        raise ArgumentError(
            "an observation must be token ids", value=repr(answer.observation)[:80], remedy="Encode it first."
        )
    paid = answer.reward, answer.process, answer.quality, answer.best_quality
    if not all(map(math.isfinite, paid)):
        raise ArgumentError("reward, process, quality and best_quality must be finite", value=paid)
    return answer


class State(enum.Enum):
    """What a seat is up to."""

    OPENING = enum.auto()  # its episode is being made
    NEW = enum.auto()  # opened, nothing of it is in a cache
    LIVE = enum.auto()  # its reply is being decoded
    WAITING = enum.auto()  # its environment is at work
    READY = enum.auto()  # answered; the policy may reply again
    DONE = enum.auto()


@dataclasses.dataclass
class Seat:
    """One trajectory under way."""

    number: int
    request: Request
    key_2: np.ndarray  # uint32, key data of its tokens
    state: State = State.OPENING
    row: TokenRow = dataclasses.field(default_factory=TokenRow)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    prompt_length: int = 0
    answers: list[Answer] = dataclasses.field(default_factory=list)
    lane: int | None = None
    shelf: int | None = None
    unread: list[int] = dataclasses.field(default_factory=list)  # ids that its cache lacks, but the last one
    reply: list[int] = dataclasses.field(default_factory=list)
    allowed: int = 0  # ids that the reply may still gain
    due: int = 0  # decode step at which its answer is taken up

    @property
    def length(self) -> int:
        """Ids in the row."""
        return len(self.row.ids)

    @property
    def turns_left(self) -> int:
        """Replies that it may still give."""
        request = self.request
        last = request.budget if request.turns is None else min(request.budget, len(request.said) + request.turns)
        return last - len(self.answers)

    def open(self, opening: Opening) -> None:
        """Take up an episode that has been made."""
        self.row = TokenRow(list(opening.ids), list(opening.turns))
        self.logprobs = [0.0] * len(opening.ids)
        self.prompt_length, self.answers = opening.prompt_length, list(opening.answers)
        self.state = State.NEW

    def begin_reply(self, allowed: int) -> None:
        """From now on the row is decoded."""
        self.reply, self.unread, self.allowed, self.state = [], [], allowed, State.LIVE

    def gain(self, tokens: Sequence[int], logprobs: Sequence[float], stop_ids: frozenset[int]) -> None:
        """Add what a window sampled; a reply that is over waits for its environment."""
        self.row.append(tokens, turn=len(self.answers))
        self.logprobs += logprobs
        self.reply += tokens
        self.allowed -= len(tokens)
        if tokens and (tokens[-1] in stop_ids or not self.allowed):
            self.state = State.WAITING

    def read(self, observation: Sequence[int]) -> None:
        """Add what the environment answered."""
        self.unread = [self.row.ids[-1], *observation][:-1] if observation else []
        self.row.append(observation)
        self.logprobs += [0.0] * len(observation)
        self.state = State.READY

    def finish(self, stop: StopReason, failure: str = "") -> Played:
        """The trajectory as it ended."""
        self.state = State.DONE
        return Played(self.request, self.row, self.logprobs, self.prompt_length, self.answers, stop, failure)


def unanswered(stop: StopReason, message: str) -> Answer:
    """Stand in for the answer that an environment failed to give to a reply."""
    return Answer([], 0.0, False, stop, None, info={"failure": message})
