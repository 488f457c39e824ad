"""What names the weights that a probe was made with."""

from __future__ import annotations

import shutil

import jax

from jaxrl_agent.checkpoint import REINFORCE, Checkpoints, describe_policy, policy_version
from jaxrl_agent.evaluation.pair_probe import weight_files
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.small import EVEN_MODEL


def test_a_run_that_was_trained_again_has_weight_files_of_its_own(tmp_path):
    def trained() -> tuple[str, str]:
        run = RunDir.create(tmp_path / "run", {})
        with Checkpoints(run.checkpoints) as checkpoints:
            meta = describe_policy(EVEN_MODEL, "lake_words", {}, phase=REINFORCE, update=7)
            checkpoints.save_params(7, init_params(EVEN_MODEL, jax.random.key(0)), meta)
        return policy_version(f"run:{run.path}"), weight_files(f"run:{run.path}")

    first = trained()
    assert first == (policy_version(f"run:{tmp_path / 'run'}"), weight_files(f"run:{tmp_path / 'run'}"))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert weight_files(f"run:{tmp_path / 'copy'}") == first[1]
    shutil.rmtree(tmp_path / "run")
    again = trained()
    assert again[0] == first[0]
    assert again[1] != first[1]
    assert weight_files("hf:anywhere") is None
