"""A rollout that two processes play together, each with half of the environments, is that of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_agent.parallel.distributed import exchange
from jaxrl_agent.rollout.collect import CollectSettings, collect
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.seats import Played, Request
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game
from jaxrl_agent.testing.pods import run_together
from jaxrl_agent.testing.policies import babbling_words, leaning_policy

REQUESTS = [Request(row // 4, (5, 3, 4, 2)[row // 4], 60 + row) for row in range(16)]

TOGETHER = """
import importlib.util, json, sys
import jax
from jaxrl_agent.parallel import distributed
distributed.join_processes()
from jaxrl_agent.parallel.mesh import make_mesh
spec = importlib.util.spec_from_file_location("game", sys.argv[1])
game = importlib.util.module_from_spec(spec)
spec.loader.exec_module(game)
me = jax.process_index()
exchanged = distributed.exchange([(me, "x" * 10_000 * me), None] if me else [])
mesh = make_mesh("data:2")
with jax.set_mesh(mesh):
    answers = [game.play(int(steps), lambda params: distributed.replicate(params, mesh)) for steps in sys.argv[2:]]
print(json.dumps({"exchanged": exchanged, "answers": answers}))
"""


class Watched(HostLake):
    """A game that notes who was made here."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.made: list[tuple[int, int]] = []

    def reset(self, instance: int, *, budget: int, **arguments: Any):
        """Make an episode, and note which."""
        self.made.append((instance, budget))
        return super().reset(instance, budget=budget, **arguments)


def play(answer_steps: int, place: Callable[[Any], Any] = lambda params: params) -> dict[str, Any]:
    """Play everything in this process and what it is joined to; plain data."""
    game = lake_game(FOUR_LAKES, t_max=5, lake={"success_rate": 0.7})
    config, params = leaning_policy(babbling_words(game.tokenizer, ACTION_NAMES), noise=0.06)
    task = Watched(game.task, game.data, game.tokenizer)
    settings = CollectSettings(lanes=4, shelf=4, environments=2, answer_steps=answer_steps)
    played, stats = collect(config, task, SamplingSettings(), settings, place(params), REQUESTS, key=jax.random.key(0))
    return {"played": [_plain(one) for one in played], "made": sorted(task.made), "tokens": stats.sampled_tokens}


def _plain(one: Played) -> dict[str, Any]:
    rewards = [answer.reward for answer in one.answers]
    return {"ids": one.row.ids, "turns": one.row.turns, "logprobs": one.logprobs, "stop": one.stop, "rewards": rewards}


def test_a_process_on_its_own_exchanges_with_itself():
    items = [1, "two"]
    assert exchange(items) == items


@pytest.mark.multiprocess
def test_two_processes_play_the_rollout_of_one_with_half_of_the_environments_each():
    alone = json.loads(json.dumps(play(4)))
    outs = run_together(TOGETHER, __file__, 4, 0, devices=1)
    first, second = (json.loads(out.splitlines()[-1]) for out in outs)
    assert first["exchanged"] == second["exchanged"] == [[1, "x" * 10_000], None]
    half = [sorted([request.instance, request.budget] for request in REQUESTS[me::2]) for me in range(2)]
    for one, other in zip(first["answers"], second["answers"], strict=True):
        assert [one["made"], other["made"]] == half
        assert one["played"] == other["played"], "both decide the same"
        assert one["tokens"] == alone["tokens"]
        for found, expected in zip(one["played"], alone["played"], strict=True):
            np.testing.assert_allclose(found["logprobs"], expected["logprobs"], atol=1e-4)
            assert {**found, "logprobs": None} == {**expected, "logprobs": None}
