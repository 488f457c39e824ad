"""The arena of host code against the device's, on one lake game without chance: the same rows wherever names agree."""

from __future__ import annotations

import dataclasses
import types

import jax
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake_exact as exact
from jaxrl_agent.evaluation.device_arena import DeviceArena
from jaxrl_agent.evaluation.host_arena import HostArena
from jaxrl_agent.rollout.collect import CollectSettings
from jaxrl_agent.rollout.host_records import to_rollout
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_probe import LakeProbe
from jaxrl_agent.testing.tabular import tabular_game, tabular_policy

pytestmark = pytest.mark.slow

T_MAX, SAMPLES, REPLIES = 6, 5, 12
LAKES = [lake.split() for lake in ("SFFF FHFH FFFH HFFG", "FFFF FHFH SFFH HFFG", "FFFS FHFH FFFH HFFG")]


def blend(share: float) -> np.ndarray:
    """The best move with this probability, any of the four with the rest."""
    best_X4 = exact.greedy_policy(exact.discounted_q(LAKES[0], success_rate=1.0, gamma=0.99))
    return share * best_X4 + (1 - share) / 4


class NamedLake:
    """The host's lake, with the device probe's names of states."""

    def __init__(self, lake: HostLake, probe: LakeProbe, instances):
        self._lake, self._probe, self._instances = lake, probe, instances
        self.t_max, self.max_tokens, self.stop_ids = lake.t_max, lake.max_tokens, lake.stop_ids

    def __len__(self) -> int:
        return len(self._lake)

    def reset(self, instance: int, **arguments):
        episode = self._lake.reset(instance, **arguments)
        step = episode.step

        def named(reply, *, sampled=True):
            state = jax.tree.map(lambda leaf: np.asarray(leaf)[None], episode.state)
            (key,) = self._probe.keys(np.array([instance]), state)
            return dataclasses.replace(step(reply, sampled=sampled), state_key=key)

        episode.step = named
        return episode


class QualityProbe:
    """What the host's lake says of its replies."""

    def __init__(self):
        self.qualities, self.primary = {"q_star_0.99": "Q* at gamma 0.99"}, "q_star_0.99"
        self.covariates, self.has_tools = {"turn": "replies so far"}, False

    def values(self, answer):
        return {"q_star_0.99": answer.quality}

    def describe(self, answers):
        return {"turn": float(len(answers))}


@pytest.fixture(scope="module")
def table():
    game = tabular_game(LAKES, t_max=T_MAX, lake={"success_rate": 1.0})
    probe = LakeProbe(game.task, game.instances)
    lake = NamedLake(HostLake(game.task, game.data, game.tokenizer), probe, game.instances)
    on_host = dataclasses.replace(game, task=lake, data=None)
    device = DeviceArena(game, probe, budget=T_MAX, rows=64)
    host = HostArena(on_host, QualityProbe(), budget=T_MAX, rows=64, settings=CollectSettings(lanes=8, shelf=8))
    policies = [tabular_policy(game, blend(share)) for share in (0.4, 0.9)]
    both = {"device": device, "host": host}
    played = {name: [arena.play(policy, samples=SAMPLES) for policy in policies] for name, arena in both.items()}
    visits = device.visits(played["device"][0])
    few = np.arange(0, len(visits.keys), 4)
    chosen = few * 0, visits.row_V[few], visits.turn_V[few]
    positions = {name: arena.positions(played[name], *chosen) for name, arena in both.items()}
    replies = {name: arena.act(policies, positions[name], replies=REPLIES) for name, arena in both.items()}
    return types.SimpleNamespace(
        device=device, host=host, both=both, policies=policies, played=played, positions=positions, replies=replies
    )


def test_whole_episodes_are_the_device_arenas(table):
    for device, host in zip(table.played["device"], table.played["host"], strict=True):
        groups_B = np.repeat(np.arange(len(LAKES)), SAMPLES)
        rollout, other = to_rollout(host.played_B, t_max=T_MAX, groups_B=groups_B), device.rollout
        width = int(rollout.batch.lengths_B.max())
        for name in ("tokens_BL", "turn_BL", "loss_mask_BL"):
            np.testing.assert_array_equal(
                getattr(rollout.batch, name)[:, :width], getattr(other.batch, name)[:, :width], err_msg=name
            )
        for name in ("instance_B", "group_B", "budget_B", "n_turns_B", "stop_B", "success_B"):
            np.testing.assert_array_equal(getattr(rollout, name), getattr(other, name), err_msg=name)
        ours, theirs = table.host.columns(host), table.device.columns(device)
        for name in ("task", "success", "stop", "n_turns", "call_ok"):
            assert ours[name] == theirs[name]
        for row, expected in zip(ours["quality"], theirs["quality"], strict=True):
            np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_states_have_the_same_names_and_turns_left(table):
    for device, host in zip(table.played["device"], table.played["host"], strict=True):
        ours, theirs = table.host.visits(host), table.device.visits(device)
        assert ours.keys == theirs.keys
        for name in ("row_V", "turn_V", "task_V", "turns_left_V"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    ours, theirs = table.positions["host"], table.positions["device"]
    assert ours.keys == theirs.keys
    np.testing.assert_array_equal(ours.turns_left_S, theirs.turns_left_S)
    np.testing.assert_array_equal(ours.covariates["turn"], T_MAX - ours.turns_left_S)


def test_replies_amount_to_the_same_outcomes_of_the_same_worth(table):
    def named(replies, policy):
        return [
            [names[outcome] for outcome in row]
            for names, row in zip(replies.outcomes, replies.outcome_SN[policy].tolist(), strict=True)
        ]

    ours, theirs = table.replies["host"], table.replies["device"]
    for policy in range(2):
        assert named(ours, policy) == named(theirs, policy)
    assert len({name for row in named(ours, 0) for name in row}) == 4
    values = table.host.exact(table.positions["host"], ours)["q_star_0.99"]
    expected = table.device.exact(table.positions["device"], theirs)["q_star_0.99"]
    for state, names in enumerate(ours.outcomes):
        for outcome, name in enumerate(names):
            wanted = expected[state][theirs.outcomes[state].index(name)]
            assert values[state][outcome] == pytest.approx(wanted, rel=1e-5)


def test_sampled_values_continuations_and_scores_are_the_device_arenas(table):
    success, ends = {}, {}
    for name, arena in table.both.items():
        few = table.positions[name].take(np.arange(6))
        success[name], ends[name] = arena.finish(table.policies[1], few, continuations=4)
    np.testing.assert_array_equal(success["host"], success["device"])
    assert 0 < success["host"].mean() < 1
    for scorer in table.policies:
        ours = table.host.score(scorer, ends["host"])
        theirs = table.device.score(scorer, ends["device"])
        np.testing.assert_allclose(ours.turn_BT, theirs.turn_BT, atol=1e-3)
        np.testing.assert_array_equal(ours.tokens_BT, theirs.tokens_BT)
        last = table.host.score(scorer, table.replies["host"].rows[0], last_only=True)
        wanted = table.device.score(scorer, table.replies["device"].rows[0], last_only=True)
        np.testing.assert_allclose(last.turn_BT, wanted.turn_BT, atol=1e-3)
    values = [
        arena.monte_carlo(table.policies[0], table.positions[name], table.replies[name], rollouts=4)
        for name, arena in table.both.items()
    ]
    for state, (theirs, ours) in enumerate(zip(*values, strict=True)):
        names = table.replies["device"].outcomes[state]
        known = {name: value for name, value in zip(names, theirs, strict=True) if value is not None}
        assert dict(zip(table.replies["host"].outcomes[state], ours, strict=True)) == known
