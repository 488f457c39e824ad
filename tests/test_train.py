"""The trainer: it learns, it goes on bit by bit from wherever it was stopped, and it stops when it cannot go on."""

from __future__ import annotations

import dataclasses
import functools
import signal

import jax
import numpy as np
import pytest

from jaxrl_agent.checkpoint import Checkpoints, load_policy
from jaxrl_agent.config import Config, build_config, to_dict
from jaxrl_agent.errors import CheckpointError, ConfigError, MapError, NonFiniteError, TokenizerError
from jaxrl_agent.interrupts import Interrupted
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.small import EVEN_MODEL, one_device, small_config, small_preset
from jaxrl_agent.train import train

QUIET = functools.partial(Display, quiet=True)


class Killed(Exception):
    """What a test raises in the middle of a run."""


class Kill(Display):
    """A display that ends the run when it is told of an update, after its line was logged and before it is saved."""

    def __init__(self, phase: str, update: int):
        super().__init__(quiet=True)
        self._at = (phase, update)

    def update(self, done, values):
        if (self._phase, done) == self._at:
            raise Killed


class Ask(Kill):
    """A display that asks the run to stop, as Slurm or Ctrl-C would, in the middle of an update."""

    def update(self, done, values):
        if (self._phase, done) == self._at:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module", autouse=True)
def _preset():
    with small_preset():
        yield


@pytest.fixture(scope="module")
def config() -> Config:
    return small_config(warm_start__updates=6)


@pytest.fixture(scope="module")
def straight(config, tmp_path_factory) -> RunDir:
    return train(config, tmp_path_factory.mktemp("runs") / "straight", display=QUIET())


@pytest.fixture(scope="module")
def interrupted(config, tmp_path_factory) -> RunDir:
    """The same run, killed at supervised update 4 (saved: 2) and at update 3 (saved: 2), asked to stop at update 3."""
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    for phase, update in (("warm start", 4), ("training", 3)):
        with pytest.raises(Killed):
            train(config, path, resume=True, display=Kill(phase, update))
    assert [row["update"] for row in RunDir(path).metrics()] == [1, 2, 3], "one line more than was saved"
    with pytest.raises(Interrupted, match=r"SIGTERM after 3 of 4 updates.*--resume") as stopped:
        train(config, path, resume=True, display=Ask("training", 3))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    with Checkpoints(RunDir(path).checkpoints) as checkpoints:
        assert checkpoints.meta()["update"] == 3
    return train(config, path, resume=True, display=QUIET())


def without_times(rows):
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "tokens_per_s", "compiles")} for row in rows
    ]


def final_params(run: RunDir):
    return jax.device_get(load_policy(f"run:{run.path}", mesh=one_device()).params)


def same_bits(tree, expected) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


# ---- what a run leaves behind


def test_metrics_have_a_line_for_each_update_with_the_promised_keys(straight):
    rows = straight.metrics()
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    promised = (
        "update trajectory_reward step_reward_pooled step_reward_mean_of_means step_reward_first_turn loss kl entropy "
        "clip_fraction sampler_trainer_max_diff zero_variance_groups effective_groups_by_budget turns stop_reasons "
        "tokens_per_s seconds compiles"
    )
    for row in rows:
        assert set(promised.split()) <= row.keys()
        assert row["seconds"].keys() == {"rollout", "logprobs", "update"}
        assert sum(row["stop_reasons"].values()) == pytest.approx(1)
        assert sum(row["groups_by_budget"]) == 4
        assert 0 < row["sampler_trainer_max_diff"] < 1e-4
        assert row["tokens_per_s"] > 0
        assert row["skipped_steps"] == 0


def test_nothing_is_compiled_after_the_first_update(straight):
    assert [row["compiles"] for row in straight.metrics()][1:] == [0, 0, 0]


def test_the_warm_start_is_logged(straight):
    rows = straight.warm_start()
    assert [row["update"] for row in rows] == [2, 4, 6]
    assert all({"loss", "demonstration_success", "grad_norm"} <= row.keys() for row in rows)


def test_config_and_versions_are_stored(straight, config):
    assert build_config(straight.config()) == config
    assert straight.versions()["packages"]["jax"] == jax.__version__


def test_trajectories_are_stored_as_often_and_as_many_as_asked(straight, config):
    assert [path.name for path in straight.trajectory_files()] == ["train_000002.jsonl", "train_000004.jsonl"]
    rows = list(straight.trajectories("train_000002"))
    assert len(rows) == config.train.stored_trajectories
    for row in rows:
        assert row["policy_version"] == 1, "sampled before the second update"
        assert (row["budget"], row["t_max"], row["group_id"]) == (4, 4, 0)
        assert row["return"] == row["success"] == (row["stop_reason"] == "success")
        assert len(row["instance"]["map"]) == 3
        for turn in row["turns"]:
            assert turn["text"].split()[:1] == [turn["parsed_action"]] or turn["parsed_action"] is None
            assert len(turn["tokens"]) == len(turn["logprobs"]) == 2
            assert max(turn["logprobs"]) <= 0


def test_the_newest_checkpoints_are_kept_and_say_what_they_are(straight):
    names = sorted(int(path.name) for path in straight.checkpoints.iterdir() if path.name.isdigit())
    assert names == [8, 10], "6 supervised updates and 2, 4 of reinforcement"
    with Checkpoints(straight.checkpoints) as checkpoints:
        meta = checkpoints.meta()
    assert (meta["phase"], meta["update"], meta["tokenizer"]) == ("reinforce", 4, "lake_words")
    assert build_config(meta["config"]) == build_config(straight.config())


# ---- learning


def test_the_warm_start_lowers_the_loss(small_run):
    losses = [row["loss"] for row in small_run.warm_start()]
    assert len(losses) == 4
    assert losses[-1] < 0.6 < losses[0]


def test_a_few_updates_of_grpo_raise_success_on_the_lakes_it_trains_on(small_run):
    success = [row["success"] for row in small_run.metrics()]
    assert len(success) == 24
    assert np.mean(success[-6:]) > np.mean(success[:6]) + 0.2


# ---- going on


def test_a_run_that_was_stopped_three_times_ends_with_the_same_bits(straight, interrupted):
    assert same_bits(final_params(interrupted), final_params(straight))
    assert without_times(interrupted.metrics()) == without_times(straight.metrics())
    assert interrupted.warm_start() == straight.warm_start()
    for file, expected in zip(interrupted.trajectory_files(), straight.trajectory_files(), strict=True):
        assert file.name == expected.name
        assert file.read_bytes() == expected.read_bytes()


def test_resuming_a_finished_run_changes_nothing(straight, config):
    def contents():
        return {path: path.read_bytes() for path in straight.path.rglob("*") if path.is_file()}

    before = contents()
    train(config, straight.path, resume=True, display=QUIET())
    assert contents() == before


def test_a_run_goes_on_without_the_weights_that_it_began_with(straight, tmp_path):
    config = small_config(init=f"hf:{tmp_path / 'weights'}", train__updates=2, train__checkpoint_every=1)
    save_hf(tmp_path / "weights", EVEN_MODEL, final_params(straight))
    with pytest.raises(Killed):
        train(config, tmp_path / "run", display=Kill("training", 2))
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    run = train(config, tmp_path / "run", resume=True, display=QUIET())
    assert [row["update"] for row in run.metrics()] == [1, 2]
    assert run.warm_start() == []


def test_a_new_run_needs_a_directory_of_its_own(straight, config):
    with pytest.raises(CheckpointError, match=r"directory without one.*--resume"):
        train(config, straight.path, display=QUIET())


def test_a_start_that_was_refused_stands_in_nobodys_way(tmp_path):
    RunDir.create(tmp_path / "run", to_dict(small_config(seed=7)))  # what it leaves, with nothing trained or saved
    run = train(small_config(warm_start__updates=2, train__updates=1), tmp_path / "run", display=QUIET())
    assert run.config()["seed"] == 0
    assert len(run.metrics()) == 1


def test_resuming_with_other_settings_is_refused_and_names_them(straight, config):
    values = to_dict(config)
    values["optimizer"]["learning_rate"] = 1.0
    values["task"]["lake"]["map_seed"] = 5
    with pytest.raises(CheckpointError, match=r"optimizer.learning_rate=1.0 for 0.003, task.lake.map_seed=5 for 0"):
        train(build_config(values), straight.path, resume=True, display=QUIET())


def test_what_a_run_computes_stays_and_how_it_is_watched_may_change(straight, config):
    other = dataclasses.replace(
        config,
        mesh="fsdp:8",
        train=dataclasses.replace(config.train, checkpoint_every=1, keep_checkpoints=1, trajectories_every=1),
        evaluation=dataclasses.replace(config.evaluation, samples=2),
    )
    assert train(other, straight.path, resume=True, display=QUIET()).path == straight.path


# ---- stopping


def test_weights_that_are_not_finite_stop_the_run_with_the_reason(tmp_path):
    params = jax.device_get(init_params(EVEN_MODEL, jax.random.key(0)))
    params["norm"]["scale"] = np.full_like(params["norm"]["scale"], np.nan)
    save_hf(tmp_path / "weights", EVEN_MODEL, params)
    config = small_config(init=f"hf:{tmp_path / 'weights'}", optimizer__max_bad_updates=3)
    with pytest.raises(NonFiniteError, match=r"fewer than 3 optimizer steps in a row.*got 4.*Lower the learning rate"):
        train(config, tmp_path / "run", display=QUIET())
    rows = RunDir(tmp_path / "run").metrics()
    assert [row["update"] for row in rows] == [1, 2], "two optimizer steps each"
    assert [row["skipped_steps"] for row in rows] == [2, 2]
    assert rows[0]["loss"] is None
    assert same_bits(final_params(RunDir(tmp_path / "run")), params)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task__t_max": 17}, TokenizerError, "17"),
        ({"task__tokenizer": "byte"}, TokenizerError, "must hold every id"),
        ({"task__lake__min_path": 9}, MapError, "solvable map"),
        ({"task__n_test": 10**6, "task__n_train": 10**6}, MapError, "distinct maps"),
        ({"warm_start__updates": 0}, ConfigError, "a policy that sometimes succeeds"),
        ({"init": "nonsense"}, ConfigError, "hf:DIR or run:DIR"),
        ({"mesh": "data:3"}, ConfigError, "number of devices"),
        ({"warm_start__optimizer__warmup": 4}, ConfigError, "more total_steps than warm-up"),
    ],
)
def test_settings_that_cannot_be_met_leave_no_directory_behind(changes, error, message, tmp_path):
    with pytest.raises(error, match=message):
        train(small_config(**changes), tmp_path / "run", display=QUIET())
    assert not (tmp_path / "run").exists()


# ---- the reference policy


def test_a_kl_term_holds_on_to_the_policy_that_reinforcement_began_with(small_run, tmp_path):
    config = small_config(init=f"run:{small_run.path}", algorithm__kl_coefficient=0.1, train__updates=2)
    with pytest.raises(Killed):
        train(config, tmp_path / "run", display=Kill("training", 2))
    run = train(config, tmp_path / "run", resume=True, display=QUIET())
    first, second = run.metrics()
    assert first["reference_kl"] < second["reference_kl"]
    assert second["reference_kl_clamped"] == 0
    with Checkpoints(run.reference) as reference:
        assert reference.meta()["update"] == 0
    assert not same_bits(final_params(run), final_params(small_run))
