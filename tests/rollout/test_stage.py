"""One way to ask for groups, on the device or on the host: the same games come back."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_agent.rollout.collect import CollectSettings
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.stage import DeviceStage, HostStage, Stage
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import FOUR_LAKES, lake_game
from jaxrl_agent.testing.policies import babbling_words, leaning_policy
from jaxrl_agent.types import Rollout

GROUPS = {
    "instances_P": np.array([1, 0, 3, 2], np.int32),
    "budgets_P": np.array([5, 8, 1, 6], np.int32),
    "row_ids_B": np.array([*range(40, 63), 2**32 - 1], np.uint32),
}


class Stages:
    """Both stages of one game under one policy, and what they played."""

    def __init__(self):
        game = lake_game(FOUR_LAKES, t_max=8, lake={"success_rate": 0.7})
        self.model, self.params = leaning_policy(babbling_words(game.tokenizer, ACTION_NAMES), noise=0.06)
        known = (game.instances, game.tokenizer, SamplingSettings())
        task = HostLake(game.task, game.data, game.tokenizer)
        self.device = DeviceStage(self.model, game.task, game.data, *known)
        self.host = HostStage(self.model, task, *known, CollectSettings(lanes=8, shelf=8))
        self.on_device, self.on_host = self.play(self.device), self.play(self.host)

    def play(self, stage: Stage, **changes) -> Rollout:
        return stage.play(self.params, **GROUPS | changes, key=jax.random.key(2))


@pytest.fixture(scope="module")
def stages() -> Stages:
    return Stages()


def test_both_stages_play_the_same_games(stages):
    device, host = jax.tree.map(np.asarray, stages.on_device), stages.on_host
    width = int(host.batch.lengths_B.max())
    for name in ("instance_B", "group_B", "budget_B", "n_turns_B", "stop_B", "return_B"):
        np.testing.assert_array_equal(getattr(device, name), getattr(host, name), err_msg=name)
    for name in ("tokens_BL", "loss_mask_BL", "turn_BL"):
        left, right = (getattr(rollout.batch, name)[:, :width] for rollout in (device, host))
        np.testing.assert_array_equal(left, right, err_msg=name)
    assert host.group_B.tolist() == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    assert host.instance_B.tolist() == [1] * 6 + [0] * 6 + [3] * 6 + [2] * 6


def test_people_read_the_same_of_both(stages):
    rows = [7, 0]
    device = stages.device.read(stages.on_device, rows, policy_version=8)
    host = stages.host.read(stages.on_host, rows, policy_version=8)
    for one, other in zip(device, host, strict=True):
        assert (one.instance_id, one.group_id, one.budget) == (other.instance_id, other.group_id, other.budget)
        assert (one.stop_reason, one.policy_version) == (other.stop_reason, other.policy_version)
        assert [turn.text for turn in one.turns] == [turn.text for turn in other.turns]
    assert [one.group_id for one in host] == [1, 0]


def test_the_host_stage_says_where_its_latest_rollout_spent_its_time(stages):
    assert stages.host.stats.sampled_tokens == int(stages.on_host.batch.loss_mask_BL.sum())
    assert 0 < stages.host.stats.live_share <= 1
    assert stages.host.stats.to_json()["turns"] == int(stages.on_host.n_turns_B.sum())


def test_stages_of_one_shape_share_a_compiled_program(stages):
    again = Stages.__new__(Stages)
    again.params = jax.tree.map(lambda leaf: leaf * 0.5, stages.params)
    before = stages.device._collect._cache_size()
    again.play(stages.device)
    assert stages.device._collect._cache_size() == before
