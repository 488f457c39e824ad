"""Episodes of host code taken up again: their past is played once more, and must leave the very bytes that it left.

An environment on the host cannot be copied amid an episode. A `History` holds what was said so far; who goes on from it
begins a fresh episode, says it again, and finds what stood there the first time. Where that fails, or where the
machinery fails later, nothing is known of what the policy would have achieved: such a trajectory is left out, and never
counted as a failure of the policy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agent.learner.packing import MACHINERY
from jaxrl_agent.parallel.distributed import exchange
from jaxrl_agent.rollout.collect import CollectSettings
from jaxrl_agent.rollout.environment_pool import EnvironmentPool, Failure
from jaxrl_agent.rollout.seats import Opening, Played, Request, Said, open_episode
from jaxrl_agent.tasks.base import Answer, HostTask
from jaxrl_agent.types import StopReason, TokenRow

_LOST = "what was said before could not be said again with the same answers"


@dataclasses.dataclass(frozen=True)
class History:
    """An episode up to where a policy is to reply."""

    instance: int
    said: tuple[Said, ...]
    ids: list[int]  # all that the policy has read and written
    logprobs: list[float]  # of its own ids, nats; 0 elsewhere
    answers: list[Answer]  # to what was said
    state_key: str  # name of the state it stands in

    def request(self, budget: int, row_id: int, turns: int | None = None) -> Request:
        """Ask for a trajectory that goes on from here, see `rollout.seats.Request`."""
        return Request(self.instance, budget, row_id, self.said, turns)

    def behind(self, reply: Played) -> History:
        """Go on behind a trajectory of one turn that began here and did not end the episode."""
        answer = reply.answers[-1]
        said = Said(tuple(reply.row.ids[len(self.ids) :]))
        ids = [*reply.row.ids, *answer.observation]
        logprobs = [*reply.logprobs, *[0.0] * len(answer.observation)]
        return History(self.instance, (*self.said, said), ids, logprobs, list(reply.answers), "")


def history_before(played: Played, turn: int) -> History:
    """Take a trajectory up again before one of its turns."""
    turn_L, ids_L = np.array(played.row.turns), np.array(played.row.ids)
    end, given = int(np.flatnonzero(turn_L == turn)[0]), played.request.said
    said = tuple(
        Said(tuple(ids_L[turn_L == number].tolist()), sampled=number >= len(given) or given[number].sampled)
        for number in range(turn)
    )
    return History(
        played.request.instance,
        said,
        played.row.ids[:end],
        played.logprobs[:end],
        played.answers[:turn],
        played.answers[turn].state_key,
    )


def gone_on(history: History, played: Played) -> Played:
    """Complete a trajectory that went on from a history: with the log-probabilities of what was said before.

    One that did not find the bytes of its past is emptied: nobody replied to that state.
    """
    if played.row.ids[: len(history.ids)] != history.ids or len(played.answers) <= len(history.said):
        stop = played.stop if played.stop in MACHINERY else StopReason.COULD_NOT_CHECK
        nothing = {"row": TokenRow(), "logprobs": [], "prompt_length": 0, "answers": []}
        return dataclasses.replace(played, **nothing, stop=stop, failure=played.failure or _LOST)
    return dataclasses.replace(played, logprobs=[*history.logprobs, *played.logprobs[len(history.ids) :]])


def is_known(played: Played) -> bool:
    """Whether the machinery held, so that the outcome says something of the policy."""
    return played.stop not in MACHINERY


def put_errors(
    task: HostTask,
    settings: CollectSettings,
    histories: Sequence[History],
    errors: Sequence[Said | None],
    *,
    budget: int,
    context: int,
    key: jax.Array,
) -> list[History | None]:
    """Play an error behind each history, with its real answer.

    Args:
        task: the game.
        settings: how many environments run at one time, and for how long.
        histories: where the errors are put.
        errors: what is said there in the agent's place; None for nothing.
        budget: turns allowed to the whole episode.
        context: tokens of a trajectory.
        key: of the worlds' chance.

    Returns:
        The history behind each error; None where there is no error, where what was said before did not come out as it
        did, or where the reply is no error there or ends the episode.
    """
    put = functools.partial(_put_error, task, budget=budget, key=key, context=context)
    calls = [
        functools.partial(put, history, error) if error else None
        for history, error in zip(histories, errors, strict=True)
    ]
    found = _run_all(calls, settings)
    return [one if isinstance(one, History) else None for one in found]


def _put_error(task: HostTask, history: History, error: Said, *, budget: int, key, context) -> History | None:
    said = (*history.said, error)
    request = Request(history.instance, budget, 0, said)
    episode, opening = open_episode(task, request, key=key, context=context)
    try:
        if not _is_error_behind(history, opening):
            return None
        # A state's name comes with the next answer; whatever is said there asks for it, and the error is known to run.
        state_key = episode.step(error.ids, sampled=False).state_key
    finally:
        episode.close()
    logprobs = [*history.logprobs, *[0.0] * (len(opening.ids) - len(history.ids))]
    return History(history.instance, said, opening.ids, logprobs, opening.answers, state_key)


def _is_error_behind(history: History, opening: Opening) -> bool:
    same = opening.ids[: len(history.ids)] == history.ids
    return same and opening.stop is None and opening.answers[-1].is_error


def _run_all(calls: Sequence[Callable[[], Any] | None], settings: CollectSettings) -> list[Any]:
    """Run calls beside each other, each process its share of them: values, `Failure`s, None where there is no call."""
    mine = [number for number, call in enumerate(calls) if call and number % jax.process_count() == jax.process_index()]
    answers: list[tuple[int, Any]] = []
    with EnvironmentPool(settings.environments, settings.environment_seconds) as pool:
        for number in mine:
            pool.submit(number, calls[number])
        while pool.busy:
            answers += [(number, value) for number, value, _ in pool.results(wait_s=1.0)]
    found: list[Any | Failure] = [None] * len(calls)
    for number, value in exchange(answers):
        found[number] = value
    return found
