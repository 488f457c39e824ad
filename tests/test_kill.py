"""Kill -9 at random moments, from the shell: what is resumed ends with the same bits as what was left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_agent.checkpoint import load_policy
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.small import one_device

PROJECT = Path(__file__).resolve().parents[1]
CONFIG = """
from jaxrl_agent.testing.small import small_values

def get_config():
    return small_values(
        model__preset="lake-tiny", train__updates=12, train__checkpoint_every=2, train__trajectories_every=4,
        warm_start__updates=24, warm_start__log_every=4, warm_start__checkpoint_every=8,
    )
"""
TIMED = ("seconds", "tokens_per_s", "compiles")
MOMENTS = 20


def start(folder: Path, run: Path) -> subprocess.Popen:
    command = [sys.executable, str(PROJECT / "launch" / "train.py"), f"--config={folder / 'config.py'}"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [*command, f"--run_dir={run}", "--resume", "--progress=quiet"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder: Path, run: Path) -> None:
    process = start(folder, run)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def outcome(run: Path):
    """Parameters, logged numbers and stored trajectories of a finished run."""
    folder = RunDir.open(run)
    params = jax.device_get(load_policy(f"run:{run}", mesh=one_device()).params)
    rows = [{name: value for name, value in row.items() if name not in TIMED} for row in folder.metrics()]
    texts = {path.name: path.read_text() for path in folder.trajectory_files()}
    return params, json.dumps([rows, folder.warm_start()]), texts


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    finish(tmp_path, tmp_path / "warm")  # fills the compilation cache, so that the next one is timed as the killed ones
    began = time.monotonic()
    finish(tmp_path, tmp_path / "whole")
    length = time.monotonic() - began
    params, logged, texts = outcome(tmp_path / "whole")
    moments = random.Random(0)
    unfinished = 0
    for number in range(MOMENTS):
        run = tmp_path / f"killed_{number}"
        process = start(tmp_path, run)
        time.sleep(length * moments.uniform(0.3, 1.0))  # the first third is imports
        process.send_signal(signal.SIGKILL)
        process.communicate()
        unfinished += process.returncode == -signal.SIGKILL
        finish(tmp_path, run)
        again, logged_again, texts_again = outcome(run)
        jax.tree.map(np.testing.assert_array_equal, again, params)
        assert (logged_again, texts_again) == (logged, texts)
    assert unfinished >= MOMENTS // 2
