"""Runs of a task that host code plays: they learn, go on bit by bit, and stop when nothing can be checked."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_agent import tasks
from jaxrl_agent.checkpoint import load_policy
from jaxrl_agent.config import Config
from jaxrl_agent.errors import ConfigError, SandboxError
from jaxrl_agent.models.sizes import PRESETS
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.sandbox import Verdict
from jaxrl_agent.tasks.deepcoder import make_deepcoder
from jaxrl_agent.testing.coding import ScriptedJudge, number_problem
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, small_config
from jaxrl_agent.train import train

QUIET = functools.partial(Display, quiet=True)
SMALL = dataclasses.replace(
    EVEN_MODEL,
    vocab_size=576,
    hidden_size=32,
    intermediate_size=64,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=1024,
    initializer_range=0.15,
)


def coding_config(**changes) -> Config:
    settings = {
        "model__preset": "code-small",
        "task__name": "deepcoder",
        "task__tokenizer": "code_bpe",
        "task__budget_visibility": "hidden",
        "task__max_tokens": 12,
        "task__max_context": 400,
        "warm_start__updates": 40,
        "warm_start__batch": 16,
        "warm_start__demonstrations": 48,
        "warm_start__log_every": 20,
        "warm_start__random_move": 0.5,
        "warm_start__optimizer__learning_rate": 2e-2,
        "rollout__lanes": 8,
        "rollout__shelf": 8,
        "train__micro_batch_tokens": 2048,
    }
    return small_config(**settings | changes)


def problems() -> list:
    """Problems whose right program is the word `pass` and whose wrong ones fail on the way."""
    return [
        number_problem(f"testing/{n}", statement=f"Say {n}.", solution="pass", wrong=("fail", "fail pass"))
        for n in range(8)
    ]


class Judge(ScriptedJudge):
    """A judge that can be told to find nothing out."""

    gone = False

    def __call__(self, program, tests, *, limits) -> Verdict:
        verdict = super().__call__(program, tests, limits=limits)
        return dataclasses.replace(verdict, could_not_check=True) if self.gone else verdict


@pytest.fixture(scope="module")
def judge():
    """The coding task with programs that say themselves how they fare."""
    judge, make, name = Judge(), tasks.HOST_TASKS["deepcoder"], "deepcoder"
    PRESETS["code-small"] = SMALL
    for table in (tasks.HOST_TASKS, tasks.TASKS):
        table[name] = functools.partial(make_deepcoder, problems=problems(), judge=judge)
    yield judge
    for table in (tasks.HOST_TASKS, tasks.TASKS):
        table[name] = make
    del PRESETS["code-small"]


@pytest.fixture(scope="module")
def run(judge, tmp_path_factory) -> RunDir:
    return train(coding_config(), tmp_path_factory.mktemp("host") / "run", display=QUIET(), tensorboard=False)


def params_of(run: RunDir):
    return jax.tree.leaves(load_policy(f"run:{run.path}", mesh=one_device()).params)


def test_a_run_writes_what_every_run_writes_and_says_how_its_environments_fared(run):
    rows = run.metrics()
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert np.isfinite(row["loss"])
        assert row["sampler_trainer_max_diff"] < 1e-4
        assert 0 < row["environments"]["live_share"] <= 1
        assert row["environments"]["turns"] > 0
        assert row["environments"]["failures"] == {}
        assert 0 <= row["step_reward_pooled"] <= 1
    warm = run.warm_start()
    assert warm[-1]["loss"] < warm[0]["loss"] / 2
    assert 0 < warm[-1]["demonstration_success"] <= 1


def test_trajectories_say_what_was_submitted_and_what_came_of_it(run):
    stored = [row for file in run.trajectory_files() for row in run.trajectories(file.stem)]
    assert len(stored) == 2 * 3
    for row in stored:
        assert row["instance_id"].startswith("testing/")
        assert row["instance"]["prompt"].startswith("<|im_start|>user\nSay ")
        for turn in row["turns"]:
            assert len(turn["tokens"]) == len(turn["logprobs"])
    graded = [turn for row in stored for turn in row["turns"] if turn["parsed_action"]]
    assert graded, "no stored reply holds a program"
    assert all("hidden_passed" in turn["info"] for turn in graded)


def test_a_run_that_was_cut_goes_on_bit_by_bit(run, judge, tmp_path):
    config = coding_config(train__updates=2)
    train(config, tmp_path / "cut", display=QUIET(), tensorboard=False)
    (tmp_path / "cut" / "config.json").write_text((run.path / "config.json").read_text())  # as if it had been killed
    resumed = train(coding_config(), tmp_path / "cut", resume=True, display=QUIET(), tensorboard=False)
    for mine, other in zip(params_of(resumed), params_of(run), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert [row["loss"] for row in resumed.metrics()] == [row["loss"] for row in run.metrics()]


def test_a_run_may_go_on_with_other_lanes_and_environments(run, judge, tmp_path):
    config = coding_config(init=f"run:{run.path}", train__updates=1)
    train(config, tmp_path / "moved", display=QUIET(), tensorboard=False)
    fewer = {
        "rollout__lanes": 4,
        "rollout__shelf": 2,
        "rollout__environments": 1,
        "rollout__environment_seconds": 900.0,
    }
    moved = coding_config(init=f"run:{run.path}", train__updates=1, **fewer)
    assert train(moved, tmp_path / "moved", resume=True, display=QUIET(), tensorboard=False).metrics()


def test_a_run_in_which_every_reply_is_cut_says_that_nothing_is_learned(run, judge, tmp_path, monkeypatch):
    display = Display(quiet=True)
    said: list[str] = []
    monkeypatch.setattr(display, "say", said.append)
    config = coding_config(init=f"run:{run.path}", train__updates=1, task__max_tokens=1)
    (row,) = train(config, tmp_path / "cut", display=display, tensorboard=False).metrics()
    assert row["stop_reasons"] == {"token_limit": 1.0}
    assert row["loss_tokens"] == 0
    assert any("nothing is learned" in line for line in said)


def test_a_run_in_which_nothing_can_be_checked_stops_and_can_go_on_once_it_is_mended(run, judge, tmp_path):
    config = coding_config(init=f"run:{run.path}", train__updates=1)
    judge.gone = True
    for table in (tasks.HOST_TASKS, tasks.TASKS):  # verdicts are kept; a fresh task knows none
        table["deepcoder"] = functools.partial(make_deepcoder, problems=problems(), judge=judge)
    with pytest.raises(SandboxError, match="can be checked"):
        train(config, tmp_path / "lost", display=QUIET(), tensorboard=False)
    assert RunDir.open(tmp_path / "lost").metrics() == []
    judge.gone = False
    mended = train(config, tmp_path / "lost", resume=True, display=QUIET(), tensorboard=False)
    assert len(mended.metrics()) == 1


def test_samples_that_could_not_be_checked_are_masked_and_counted(run, judge, tmp_path, monkeypatch):
    given = Judge.__call__

    def sometimes(self, program, tests, *, limits):
        verdict = given(self, program, tests, limits=limits)
        return dataclasses.replace(verdict, could_not_check=len(program) % 2 == 0)

    monkeypatch.setattr(Judge, "__call__", sometimes)
    config = coding_config(init=f"run:{run.path}", train__updates=1, train__stored_trajectories=16)
    display = Display(quiet=True)
    said: list[str] = []
    monkeypatch.setattr(display, "say", said.append)
    some = train(config, tmp_path / "some", display=display, tensorboard=False)
    (row,) = some.metrics()
    share = row["stop_reasons"]["could_not_check"]
    assert 0 < share < 1
    assert any("masked" in line for line in said)
    stored = [line for file in some.trajectory_files() for line in some.trajectories(file.stem)]
    trained = sum(
        len(turn["tokens"])
        for line in stored
        if line["stop_reason"] not in ("could_not_check", "token_limit", "context_limit")
        for turn in line["turns"]
    )
    assert len(stored) == 16
    assert row["loss_tokens"] == trained


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_command_ends_with_an_error_when_nothing_can_be_checked(run, judge, command, tmp_path, launch):
    judge.gone = True
    for table in (tasks.HOST_TASKS, tasks.TASKS):
        table["deepcoder"] = functools.partial(make_deepcoder, problems=problems(), judge=judge)
    try:
        if command == "train":
            config = tmp_path / "config.py"
            config.write_text(f"VALUES = {run.config()!r}\n" + _READ)
            found = launch("train", f"--config={config}", f"--run_dir={tmp_path / 'run'}", f"--init=run:{run.path}")
        else:
            found = launch("evaluate", f"--run_dir={run.path}", f"--out={tmp_path / 'out.json'}", "--samples=2")
    finally:
        judge.gone = False
    assert found.code == 1
    assert "environments work and can be checked" in found.err


_READ = """
from jaxrl_agent.config import default_config

def get_config():
    values = default_config()
    values.update(VALUES)
    return values
"""


@pytest.mark.parametrize(("seconds", "most", "worst"), [(200.0, 15, 285), (38.0, 2, 38)])  # 3 x 6 + 1 seconds a test
def test_a_limit_that_slow_programs_could_reach_is_refused(judge, tmp_path, seconds, most, worst):
    config = coding_config(rollout__environment_seconds=seconds, task__coding__max_tests=most)
    with pytest.raises(ConfigError, match=f"environment_seconds must exceed {worst}"):
        train(config, Path(tmp_path) / "run", display=QUIET())


@pytest.mark.parametrize("changes", [{"task__max_context": 12}, {"task__max_context": 0, "task__max_tokens": 1024}])
def test_trajectories_without_room_for_a_reply_are_refused_before_anything_is_made(judge, tmp_path, changes):
    with pytest.raises(ConfigError, match="room for a reply"):
        train(coding_config(**changes), tmp_path / "run", display=QUIET())
    assert not (tmp_path / "run").exists()


def test_more_instances_than_there_are_cannot_be_drawn(judge, tmp_path):
    config = coding_config(rollout__prompts_per_update=9, task__n_train=100, train__mini_batches=1)
    with pytest.raises(ConfigError, match="the 8 that there are"):
        train(config, tmp_path / "run", display=QUIET())
