"""The suite of rollouts: both schedules play the same episodes, which are as uneven as it says."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from jaxrl_agent.benchmark import rollout, suites
from jaxrl_agent.benchmark.rollout import Setting, Talk
from jaxrl_agent.benchmark.suites import run_suites, to_text
from jaxrl_agent.models import sizes
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.testing.small import EVEN_MODEL

MODEL = dataclasses.replace(EVEN_MODEL, vocab_size=160, max_position_embeddings=2048, initializer_range=0.02)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(MODEL, init_params(MODEL, jax.random.key(0)), Talk(MODEL.vocab_size, 6, seconds=0.0), environments=3)


@pytest.fixture(scope="module")
def lockstep(setting):
    return rollout.play_in_lockstep(setting)


@pytest.mark.parametrize("answer_steps", rollout.ANSWER_STEPS.values())
def test_the_engine_plays_the_very_episodes_of_the_lockstep(setting, lockstep, answer_steps):
    rows, stats = rollout.play_with_engine(setting, answer_steps)
    assert rows == lockstep
    assert rollout.count_sampled(rows) == stats.sampled_tokens
    assert 0 < stats.live_share <= 1


def test_episodes_differ_in_turns_and_in_what_is_said(lockstep):
    turns = [max(row.turns) + 1 for row in lockstep]
    assert 2 <= min(turns) < max(turns) <= 10
    replies = [row.turns.count(turn) for row in lockstep for turn in range(max(row.turns) + 1)]
    assert 1 <= min(replies) < max(replies) <= 64
    openings = [row.turns.index(0) for row in lockstep]
    assert 8 <= min(openings) < max(openings) <= 64
    assert len({tuple(row.ids[:8]) for row in lockstep}) == len(lockstep), "every episode begins in its own way"


def test_a_turn_of_an_environment_takes_its_time_and_the_last_says_nothing(monkeypatch):
    slept = []
    monkeypatch.setattr(rollout.time, "sleep", slept.append)
    episode = Talk(160, 1, seconds=0.25).reset(0, budget=10, key=jax.random.key(3))
    answers = []
    while episode.stop is None:
        answers.append(episode.step([5, 159]))
    assert slept == [0.25] * len(answers)
    assert [bool(answer.observation) for answer in answers] == [True] * (len(answers) - 1) + [False]


def test_lines_hold_the_engine_against_the_lockstep_and_give_the_live_share(monkeypatch):
    monkeypatch.setitem(sizes.PRESETS, rollout.PRESET, MODEL)
    suite = dataclasses.replace(suites.SUITES["rollout"], build=_small)
    monkeypatch.setattr(suites, "SUITES", {"rollout": suite})
    lines = {line["name"]: line for line in run_suites(["rollout"], peers=False, rounds=1)}
    assert set(lines) == {"reproducible", "as_they_come", "lockstep"}
    for name, steps in rollout.ANSWER_STEPS.items():
        assert set(lines[name]["ratio_to"]) == {"lockstep"}
        assert lines[name]["facts"]["answer_steps"] == steps
        assert 0 < lines[name]["facts"]["live_share"] <= 1
        assert "live_share" in to_text(lines[name])
    assert not any(line["by_cpu_seconds"] for line in lines.values()), "environments sleep"


def _small(*, peers: bool):
    return rollout.contestants((3,), seconds=0.0, environments=2, peers=peers)
