"""Every mistake that users are known to make: one line that names rule, value and remedy, and no exit code 0."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from jaxrl_agent.config import to_dict
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.commands import assert_one_line_error
from jaxrl_agent.testing.small import EVEN_MODEL, small_config

CONFIG = "--config=configs/frozenlake_grpo.py"


def half_checkpoint(folder: Path) -> list[str]:
    run = RunDir.create(folder / "run", to_dict(small_config()))
    (run.checkpoints / "5.orbax-checkpoint-tmp").mkdir(parents=True)
    return [f"--run_dir={run.path}"]


def missing_checkpoint(folder: Path) -> list[str]:
    return [f"--run_dir={RunDir.create(folder / 'run', to_dict(small_config())).path}"]


def cut_weights(folder: Path) -> list[str]:
    save_hf(folder / "weights", EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(0)))
    file = folder / "weights" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return [f"--checkpoint=hf:{folder / 'weights'}", CONFIG, f"--out={folder / 'x.json'}"]


def other_config(folder: Path) -> list[str]:
    run = RunDir.create(folder / "run", to_dict(small_config()))
    run.append_metrics({"update": 1})  # a run that has begun: one without anything to lose may be started over
    return [CONFIG, f"--run_dir={run.path}", "--resume"]


def with_setting(setting: str):
    return lambda folder: [CONFIG, f"--run_dir={folder / 'run'}", f"--config.{setting}"]


TABLE = {
    "a typo in the config": ("train", with_setting("task.tmax=3"), "config.task has no key", "'tmax'", "Did you mean"),
    "a value of another type": ("train", with_setting("train.updates=many"), "config.train.updates=many", "--help"),
    "no checkpoint": ("evaluate", missing_checkpoint, "must have a finished checkpoint", "Train it first"),
    "half a checkpoint": ("evaluate", half_checkpoint, "must have a finished checkpoint", "Train it first"),
    "truncated weights": ("evaluate", cut_weights, "model.safetensors"),
    "a tokenizer without a word": ("train", with_setting("task.t_max=20"), "lake_words", "'17'"),
    "no solvable map": ("train", with_setting("task.lake.frozen_prob=0.01"), "frozen_prob"),
    "no turn": ("train", with_setting("task.t_max=0"), "config.task.t_max must be at least 1", "got 0"),
    "a group of one": ("train", with_setting("rollout.group_size=1"), "group_size must be at least 2", "got 1"),
    "greedy training": ("train", with_setting("rollout.temperature=0.0"), "must be above 0", "use 1.0"),
    "resuming another config": ("train", other_config, "settings that it was started with", "new run"),
}


@pytest.mark.parametrize("mistake", TABLE)
def test_a_mistake_is_one_line_with_rule_value_and_remedy(launch, mistake, tmp_path):
    name, arguments, *words = TABLE[mistake]
    assert_one_line_error(launch(name, *arguments(tmp_path)), *words)
    if name == "train" and mistake != "resuming another config":
        assert not (tmp_path / "run").exists()
