"""A disk that fills up during a save: one clear line, the checkpoint before it stays, and the run goes on later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
CONFIG = """
from jaxrl_agent.testing.small import small_values

def get_config():
    return small_values(
        model__preset="lake-tiny", train__updates=4, train__checkpoint_every=2,
        warm_start__updates=2, warm_start__log_every=2,
    )
"""


@pytest.fixture
def little_disk(tmp_path):
    """A disk with room for one checkpoint of the tiny lake model (about 0.5 MB) and little else."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_costs_one_checkpoint(little_disk, tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)

    def train(*flags: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(PROJECT / "launch" / "train.py"), f"--config={tmp_path / 'config.py'}"]
        command += [f"--run_dir={little_disk / 'run'}", "--notensorboard", "--progress=quiet", *flags]
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    full = train()
    assert full.returncode == 1
    errors = [line for line in full.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "no space is left on the disk" in errors[0]
    whole = [path.name for path in (little_disk / "run" / "checkpoints").iterdir() if path.name.isdigit()]
    assert whole == ["2"]
    subprocess.run(["mount", "-o", "remount,size=9m", str(little_disk)], check=True)
    resumed = train("--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "6" in {path.name for path in (little_disk / "run" / "checkpoints").iterdir()}
