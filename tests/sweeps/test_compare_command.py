"""The command launch/compare.py: how it reads configs and settings, and a whole comparison in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_agent.command_line import probe_settings, read_config, seed_list, split_settings
from jaxrl_agent.config import Config
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.evaluation.pair_probe import ProbeSettings
from jaxrl_agent.run_dir import read_json

PROJECT = Path(__file__).resolve().parents[2]
GRPO, MIX = "configs/frozenlake_grpo.py", "configs/frozenlake_budgetmix.py"


def test_commas_inside_a_value_do_not_end_it():
    items = ["task.t_max:8", "evaluation.budget_fractions:0.5", "1.0", "mesh:data:2"]
    assert split_settings(items) == [
        ("task.t_max", "8"),
        ("evaluation.budget_fractions", "0.5,1.0"),
        ("mesh", "data:2"),
    ]


def test_settings_without_a_key_are_refused():
    with pytest.raises(ConfigError, match="KEY:VALUE"):
        split_settings(["0.5"])


def test_a_study_is_made_smaller_by_names_and_numbers():
    small = probe_settings(["states:64,replies:8", "budget_fraction:1,split:validation"])
    assert small == ProbeSettings(states=64, replies=8, budget_fraction=1.0, split="validation")
    assert probe_settings([]) == ProbeSettings()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("sates:64", "Did you mean 'states'"),
        ("states:0", "--probe=states must be int"),
        ("states:few", "--probe=states must be int"),
        ("budget_fraction:all", "--probe=budget_fraction must be float"),
        ("budget_fraction:7", "--probe=budget_fraction must be float"),
        ("split:train", "--probe=split must be str"),
        ("seed:5", "must be known"),
    ],
)
def test_sizes_of_a_study_that_mean_nothing_are_refused(item, message):
    with pytest.raises(ConfigError, match=message):
        probe_settings([item])


def test_settings_are_read_in_the_type_of_their_key():
    settings = [
        ("task.t_max", "8"),
        ("optimizer.learning_rate", "1"),
        ("model.remat", "true"),
        ("evaluation.budget_fractions", "0.5,1"),
        ("budget.caps", "3"),
        ("task.lake.start", "corner"),
    ]
    config = read_config(GRPO, [f"{key}:{text}" for key, text in settings])
    assert (config.task.t_max, config.optimizer.learning_rate, config.model.remat) == (8, 1.0, True)
    assert (config.evaluation.budget_fractions, config.budget.caps) == ((0.5, 1.0), (3,))
    assert config.task.lake.start == "corner"
    assert config.algorithm.clip_high == 0.2, "the file's own setting stays"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task.tmax:3", r"config.task has no key of this name; got 'tmax'. Did you mean 't_max'\?"),
        ("task.t_max:many", "config.task.t_max must be of type int; got 'many'"),
        ("task.t_max:0.5", "must be of type int"),
        ("task:3", "config.task must be a section"),
        ("evaluation.budget_fractions:half", "must be of type float"),
    ],
)
def test_settings_that_fit_no_key_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        read_config(GRPO, [setting])


def test_flags_go_over_the_file_and_folders_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    assert read_config(GRPO, init="hf:weights", mesh="data:8").init == f"hf:{tmp_path}/weights"
    assert read_config(GRPO, init=None, mesh=None) == read_config(GRPO)
    assert isinstance(read_config(GRPO), Config)


def test_a_file_without_get_config_is_no_config_file(tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"must define get_config\(\)"):
        read_config(str(tmp_path / "empty.py"))


def test_seeds_are_counted_or_listed():
    assert seed_list(3, None) == [0, 1, 2]
    assert seed_list(3, ["7", " 5"]) == [7, 5]
    with pytest.raises(ConfigError, match="integers of 0 or more"):
        seed_list(3, ["-1"])


def command(*flags: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(PROJECT / "launch" / "compare.py"), *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path):
    result = command(f"--configs={GRPO},{MIX}", "--set=task.tmax:3", "--out=out", folder=tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "error: config.task has no key of this name; got 'tmax'. Did you mean 't_max'?"
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_trains_evaluates_writes_and_prints(tmp_path):
    small = "warm_start.updates:40,train.updates:2,task.n_train:32,task.n_test:8,evaluation.budget_fractions:0.25,1.0"
    flags = [f"--configs={GRPO},{MIX}", "--seeds=2", f"--set={small}", "--samples=4", "--out=out", "--progress=plain"]
    result = command(*flags, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    found = read_json(tmp_path / "out" / "compare.json")
    assert (found["seeds"], found["budgets"], found["n_samples"]) == ([0, 1], [4, 16], 4)
    assert "\x1b" not in result.stdout
    for claim in found["claims"]:
        assert claim["sentence"] in result.stdout
    assert "| budgetmix - grpo |" in (tmp_path / "out" / "table.md").read_text()
    again = command(*flags, folder=tmp_path)
    assert "training" not in again.stdout, "nothing was left to do"
