"""Environments that break the rules: what they answer, ignore or leave open costs their own trajectories alone."""

from __future__ import annotations

import math
import threading
import time

import jax
import pytest

from jaxrl_agent.errors import NonFiniteError
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.rollout.collect import CollectSettings, collect
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.seats import Request, Said
from jaxrl_agent.tasks.base import Answer
from jaxrl_agent.testing.small import EVEN_MODEL
from jaxrl_agent.types import StopReason, TokenRow

PARAMS = init_params(EVEN_MODEL, jax.random.key(0))
GOES_ON = Answer([5, 6], 0.0, False, None, "a")


class Chatter:
    """A game without end or rules: every reply has two tokens, and what it answers is up to the test."""

    t_max, max_tokens, stop_ids = 3, 2, ()

    def __init__(self, answers=lambda instance: GOES_ON, opening=lambda instance: None):
        self._answers, self._opening = answers, opening
        self.closed: list[int] = []

    def __len__(self) -> int:
        return 4

    def reset(self, instance, *, budget, key, context=None):
        self._opening(instance)
        return ChatterEpisode(self, instance)

    def answer(self, instance: int):
        return self._answers(instance)

    def all_closed(self, expected: list[int]) -> bool:
        until = time.monotonic() + 20
        while sorted(self.closed) != expected and time.monotonic() < until:
            time.sleep(0.01)
        return sorted(self.closed) == expected


class ChatterEpisode:
    stop = None

    def __init__(self, task: Chatter, instance: int):
        self._task, self._instance = task, instance
        self.row = TokenRow([1, 2, 3], [-1] * 3)

    def step(self, reply, *, sampled=True):
        return self._task.answer(self._instance)

    def close(self) -> None:
        self._task.closed.append(self._instance)


def play(task: Chatter, *requests: Request, params=PARAMS, **settings):
    wanted = CollectSettings(lanes=2, shelf=2, environments=2, **settings)
    return collect(EVEN_MODEL, task, SamplingSettings(), wanted, params, requests, key=jax.random.key(0))[0]


def test_an_episode_that_ignores_its_budget_ends_with_it():
    played = play(Chatter(), Request(0, 2, 0), Request(1, 3, 1))
    assert [(one.stop, len(one.answers)) for one in played] == [(StopReason.BUDGET, 2), (StopReason.BUDGET, 3)]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "well done",
        Answer([], math.nan, True, StopReason.SUCCESS, "a"),
        Answer([], 0, False, None, "a", process=math.inf),
        Answer("words instead of ids", 0, False, None, "a"),
        Answer([3, -1], 0, False, None, "a"),
    ],
)
def test_what_is_no_answer_or_pays_no_number_is_an_error_of_its_own_environment(answer):
    wrong, right = play(
        Chatter(lambda instance: answer if instance == 0 else GOES_ON), Request(0, 2, 0), Request(1, 2, 1)
    )
    assert wrong.stop is StopReason.ENVIRONMENT_ERROR
    assert wrong.return_ == 0.0
    assert right.stop is StopReason.BUDGET


def test_an_episode_that_opens_after_it_was_given_up_is_closed():
    late = threading.Event()
    task = Chatter(opening=lambda instance: instance == 0 and late.wait(60))
    played = play(task, Request(0, 1, 0), Request(1, 1, 1), environment_seconds=0.3)
    assert [one.stop for one in played] == [StopReason.TIME_LIMIT, StopReason.BUDGET]
    late.set()
    assert task.all_closed([0, 1])


def test_an_episode_whose_past_cannot_be_said_again_is_closed():
    task = Chatter(lambda instance: None)
    (one,) = play(task, Request(2, 2, 0, said=(Said((4, 4)),)))
    assert one.stop is StopReason.ENVIRONMENT_ERROR
    assert task.all_closed([2])


def test_an_error_of_the_rollout_closes_the_episodes_under_way():
    task = Chatter()
    with pytest.raises(NonFiniteError):
        play(task, Request(0, 2, 0), Request(1, 2, 1), params=jax.tree.map(lambda leaf: leaf * math.nan, PARAMS))
    assert task.all_closed([0, 1])
