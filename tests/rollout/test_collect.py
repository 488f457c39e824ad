"""Rollouts with host environments: the device path's trajectories, whatever shares the lanes; failures are counted."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, ConfigError, SandboxError
from jaxrl_agent.rollout.collect import CollectSettings, collect
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.host_records import to_host_trajectories, to_rollout
from jaxrl_agent.rollout.records import to_trajectories
from jaxrl_agent.rollout.seats import Request, Said
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game, tag_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy
from jaxrl_agent.testing.replay import play
from jaxrl_agent.types import StopReason

GROUP = 6
WIDE = {"instances": (0, 1, 2, 3), "budgets": (8, 5, 6, 1), "rows": (*range(100, 122), 2**31, 2**32 - 1)}
REQUESTS = [
    Request(WIDE["instances"][row // GROUP], WIDE["budgets"][row // GROUP], row_id)
    for row, row_id in enumerate(WIDE["rows"])
]


class Table:
    """A slippery game, a policy, and the trajectories of the device path."""

    def __init__(self):
        self.game = lake_game(FOUR_LAKES, t_max=8, lake={"success_rate": 0.7})
        self.config, self.params = leaning_policy(babbling_words(self.game.tokenizer, ACTION_NAMES), noise=0.06)
        self.device = play(self.game, self.config, self.params, **WIDE)
        self.task = HostLake(self.game.task, self.game.data, self.game.tokenizer)

    def collect(self, requests=REQUESTS, *, task: Any = None, **settings: Any):
        return collect(
            self.config,
            task or self.task,
            SamplingSettings(),
            CollectSettings(**settings),
            self.params,
            requests,
            key=jax.random.key(0),
        )


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


def columns(rollout) -> dict[str, np.ndarray]:
    """What both paths must agree on, bit by bit."""
    width = rollout.batch.lengths_B.max()
    return {
        "tokens": rollout.batch.tokens_BL[:, :width],
        "lengths": rollout.batch.lengths_B,
        "mask": rollout.batch.loss_mask_BL[:, :width],
        "turns": rollout.batch.turn_BL[:, :width],
        "rewards": rollout.turns.reward_BT,
        "quality": rollout.turns.step_quality_BT,
        "best": rollout.turns.best_quality_BT,
        "unusable": rollout.turns.action_BT < 0,
        "instance": rollout.instance_B,
        "group": rollout.group_B,
        "budget": rollout.budget_B,
        "n_turns": rollout.n_turns_B,
        "stop": rollout.stop_B,
        "return": rollout.return_B,
        "success": rollout.success_B,
    }


def assert_same_games(found, expected) -> None:
    for name, value in columns(found).items():
        np.testing.assert_array_equal(value, columns(expected)[name], err_msg=name)
    logprobs = [rollout.batch.sampler_logprobs_BL[:, : found.batch.lengths_B.max()] for rollout in (found, expected)]
    np.testing.assert_allclose(*logprobs, atol=1e-4)


def as_rollout(table, played):
    return to_rollout(played, t_max=8, groups_B=np.arange(len(played)) // GROUP)


def test_host_and_device_play_the_same_trajectories_for_the_same_keys(table):
    played, stats = table.collect(lanes=len(REQUESTS), shelf=0)
    assert_same_games(as_rollout(table, played), table.device)
    assert len({tuple(one.row.ids) for one in played}) > len(played) // 2  # no group said one thing only
    assert stats.sampled_tokens == int(table.device.batch.loss_mask_BL.sum())


@pytest.mark.parametrize(("lanes", "shelf", "steps"), [(1, 0, 5), (4, 0, 0), (4, 3, 4), (8, 16, 0), (8, 16, 1)])
def test_lanes_and_shelf_change_no_trajectory(table, lanes, shelf, steps):
    played, stats = table.collect(lanes=lanes, shelf=shelf, environments=3, answer_steps=steps)
    assert_same_games(as_rollout(table, played), table.device)
    assert stats.live_steps <= stats.lane_steps


def test_a_rollout_is_the_same_to_the_last_bit_however_long_environments_take(table):
    rng = np.random.default_rng(0)
    waits = {instance: lambda: time.sleep(rng.uniform(0, 0.03)) for instance in range(4)}
    slow, _ = table.collect(task=Wrapped(table.task, waits), lanes=8, shelf=8, answer_steps=3)
    fast, _ = table.collect(lanes=8, shelf=8, answer_steps=3)
    assert [one.logprobs for one in slow] == [one.logprobs for one in fast]
    assert [one.row.ids for one in slow] == [one.row.ids for one in fast]


def test_a_trajectory_does_not_depend_on_the_others(table):
    alone, _ = table.collect([REQUESTS[9]])
    assert_same_games(
        to_rollout(alone, t_max=8, groups_B=np.array([1])), jax.tree.map(lambda leaf: leaf[9:10], table.device)
    )


def test_records_for_people_agree_with_the_device_path(table):
    played, _ = table.collect(lanes=8, shelf=8)
    records = {"tokenizer": table.game.tokenizer, "t_max": 8, "policy_version": 3}
    groups = [row // GROUP for row in range(len(played))]
    ours = list(to_host_trajectories(played, table.game.instances, groups=groups, **records))
    theirs = list(to_trajectories(table.device, table.game.instances, **records))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.instance_id, mine.group_id, mine.budget) == (other.instance_id, other.group_id, other.budget)
        assert (mine.stop_reason, mine.return_, mine.success) == (other.stop_reason, other.return_, other.success)
        for turn, wanted in zip(mine.turns, other.turns, strict=True):
            assert (turn.text, turn.tokens, turn.reward) == (wanted.text, wanted.tokens, wanted.reward)
            assert turn.parsed_action == wanted.parsed_action
            np.testing.assert_allclose(turn.logprobs, wanted.logprobs, atol=1e-4)


def test_replies_of_uneven_length_are_the_device_paths_too():
    game = tag_game()
    leaning_VV = np.zeros((game.data.text.grammar.next_QV.shape[1],) * 2)
    leaning_VV[:, list(game.tokenizer.stop_ids)] = 4.0
    config, params = leaning_policy(leaning_VV, noise=0.06)
    wide = {"instances": (0, 1), "budgets": (4, 3), "rows": tuple(range(16))}
    device = play(game, config, params, **wide)
    requests = [Request(row // 8, wide["budgets"][row // 8], row) for row in range(16)]
    task = HostLake(game.task, game.data, game.tokenizer)
    settings = SamplingSettings(), CollectSettings(lanes=4, shelf=4)
    played, _ = collect(config, task, *settings, params, requests, key=jax.random.key(0))
    lengths = {sum(turn == number for turn in one.row.turns) for one in played for number in range(len(one.answers))}
    assert len(lengths) > 1, "all replies have one length: the test shows nothing"
    assert_same_games(to_rollout(played, t_max=4, groups_B=np.arange(16) // 8), device)


def test_a_trajectory_goes_on_from_what_was_said_as_it_went_on_the_first_time(table):
    whole, _ = table.collect(lanes=8, shelf=8)
    row = next(i for i, one in enumerate(whole) if len(one.answers) >= 4)
    one = whole[row]
    replies = [
        tuple(token for token, turn in zip(one.row.ids, one.row.turns, strict=True) if turn == number)
        for number in range(2)
    ]
    request = Request(one.request.instance, one.request.budget, one.request.row_id, tuple(map(Said, replies)))
    (again,), _ = table.collect([request])
    assert again.row.ids == one.row.ids
    assert [answer.reward for answer in again.answers] == [answer.reward for answer in one.answers]
    start = again.row.turns.index(2)
    np.testing.assert_allclose(again.logprobs[start:], one.logprobs[start:], atol=1e-4)
    assert not any(again.logprobs[:start])  # what it said before was not sampled here


def test_replies_put_in_the_agents_place_are_never_trained_on(table):
    reply = tuple(table.task.encode("up ."))
    request = Request(0, 8, 5, (Said(reply, sampled=False),), turns=2)
    (one,), _ = table.collect([request])
    rollout = to_rollout([one], t_max=8, groups_B=np.array([0]))
    turn_L, mask_L = rollout.batch.turn_BL[0], rollout.batch.loss_mask_BL[0]
    assert (turn_L == 0).sum() == len(reply)
    assert not mask_L[turn_L == 0].any()
    assert mask_L[turn_L == 1].all()
    assert rollout.n_turns_B[0] == len(one.answers) <= 3


@pytest.mark.parametrize("turns", [{}, {"turns": 1}])
def test_rows_with_the_most_turns_left_go_first(table, turns):
    task = Wrapped(table.task, {})
    requests = [Request(0, 2, 1), Request(1, 1, 2), Request(2, 8, 3, **turns), Request(3, 8, 4)]
    played, _ = table.collect(requests, task=task, lanes=1, shelf=3, environments=1, answer_steps=1)
    wanted = [3, 0, 1, 2] if turns else [2, 3, 0, 1]
    assert list(dict.fromkeys(task.stepped)) == wanted
    assert [one.request for one in played] == requests


def test_all_have_their_first_turn_before_any_has_its_second(table):
    task = Wrapped(table.task, {})
    requests = [Request(instance, 8, instance) for instance in range(4)]
    table.collect(requests, task=task, lanes=1, shelf=3, environments=1, answer_steps=1)
    assert task.stepped[:4] == [0, 1, 2, 3]


def test_turns_of_a_request_end_it_before_its_budget(table):
    (one,), _ = table.collect([Request(2, 8, 7, turns=1)])
    assert len(one.answers) == 1
    assert one.stop in (StopReason.BUDGET, StopReason.SUCCESS, StopReason.FAILURE)


# ---- failures


class Wrapped:
    """A game of which some instances misbehave in their second turn."""

    def __init__(self, task: HostLake, misbehave: dict[int, Callable[[], Any]]):
        self._task, self._misbehave = task, misbehave
        self.t_max, self.max_tokens, self.stop_ids = task.t_max, task.max_tokens, task.stop_ids
        self.closed: list[int] = []
        self.stepped: list[int] = []  # instances in the order of their turns

    def __len__(self) -> int:
        return len(self._task)

    def reset(self, instance: int, **arguments: Any):
        episode = self._task.reset(instance, **arguments)
        step, close = episode.step, functools.partial(self.closed.append, instance)

        def strange(reply, *, sampled=True):
            self.stepped.append(instance)
            answer = step(reply, sampled=sampled)
            if episode.n_turns == 2 and instance in self._misbehave:
                return self._misbehave[instance]() or answer
            return answer

        episode.step, episode.close = strange, close
        return episode


def failing(error: Exception) -> Callable[[], Any]:
    def fail():
        raise error

    return fail


def test_environments_that_raise_hang_or_cannot_be_checked_cost_their_own_trajectories_alone(table):
    hang = threading.Event()
    task = Wrapped(
        table.task,
        {
            0: failing(RuntimeError("the disk is gone")),
            1: lambda: hang.wait(60) and None,
            2: failing(SandboxError("a sandbox must start", value="no")),
        },
    )
    began = time.monotonic()
    played, stats = table.collect(task=task, lanes=8, shelf=8, environments=2, environment_seconds=0.5)
    assert time.monotonic() - began < 50
    hang.set()
    wanted = {0: StopReason.ENVIRONMENT_ERROR, 1: StopReason.TIME_LIMIT, 2: StopReason.COULD_NOT_CHECK}
    for row, one in enumerate(played):
        whole = table.device.n_turns_B[row]
        if one.request.instance in wanted and whole >= 2:
            assert one.stop is wanted[one.request.instance], row
            assert one.failure
            assert len(one.answers) == 2
        else:
            assert one.stop.code == table.device.stop_B[row]
    for stop, words in (
        ("environment_error", "the disk is gone"),
        ("time_limit", "0.5 s"),
        ("could_not_check", "must"),
    ):
        assert any(name.startswith(stop) and words in name for name in stats.failures), stop
    rollout = as_rollout(table, played)
    assert rollout.batch.tokens_BL.shape[0] == len(REQUESTS)
    failed_B = np.isin(rollout.stop_B, [stop.code for stop in wanted.values()])
    assert not rollout.success_B[failed_B].any()


def test_an_environment_that_floods_is_cut_by_the_context(table):
    def flood():
        from jaxrl_agent.tasks.base import Answer

        return Answer([1] * 100_000, 0.0, False, None, "down")

    played, _ = table.collect(task=Wrapped(table.task, {3: flood, 0: flood}), lanes=8, shelf=8)
    cut = [one for one in played if one.stop is StopReason.CONTEXT_LIMIT]
    assert cut
    assert all(len(one.row.ids) < 1000 for one in cut)
    others = [row for row, one in enumerate(played) if one.request.instance in (1, 2)]
    assert [played[row].stop.code for row in others] == table.device.stop_B[others].tolist()


def test_an_episode_that_cannot_be_made_is_a_trajectory_without_turns(table):
    class Broken(Wrapped):
        def reset(self, instance, **arguments):
            if instance == 0:
                raise RuntimeError("no such file")
            return super().reset(instance, **arguments)

    played, _ = table.collect(task=Broken(table.task, {}), lanes=8, shelf=0)
    assert [one.stop for one in played[:GROUP]] == [StopReason.ENVIRONMENT_ERROR] * GROUP
    rollout = as_rollout(table, played)
    assert rollout.n_turns_B[:GROUP].tolist() == [0] * GROUP
    assert not rollout.batch.loss_mask_BL[:GROUP].any()
    assert_same_games(*(jax.tree.map(lambda leaf: leaf[GROUP:], side) for side in (rollout, table.device)))


def test_every_episode_is_closed(table):
    task = Wrapped(table.task, {})
    table.collect(task=task, lanes=4, shelf=4)
    until = time.monotonic() + 10
    while len(task.closed) < len(REQUESTS) and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(task.closed) == sorted(request.instance for request in REQUESTS)


def test_what_cannot_be_played_is_refused(table):
    with pytest.raises(ArgumentError, match="at least one request"):
        table.collect([])
    with pytest.raises(ConfigError, match="room for a reply"):
        table.collect(max_context=2)
