"""README's task of your own: the file as it stands there is trained on."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from jaxrl_agent import tasks
from jaxrl_agent.models.sizes import PRESETS
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.small import EVEN_MODEL

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture
def guess_file(tmp_path):
    (block,) = re.findall(r"```python\n(# guess\.py.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "guess.py"
    file.write_text(block, encoding="utf-8")
    yield file
    for table in (tasks.TASKS, tasks.HOST_TASKS, tasks.DEMONSTRATIONS):
        table.pop("guess", None)


def test_readmes_own_task_is_trained(launch, guess_file, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "code-tiny", dataclasses.replace(EVEN_MODEL, vocab_size=288))
    short = {"warm_start.updates": 4, "warm_start.optimizer.warmup": 1, "train.updates": 2, "rollout.lanes": 8}
    changes = [f"--config.{key}={value}" for key, value in short.items()]
    result = launch("train", f"--config={guess_file}", f"--run_dir={tmp_path / 'run'}", *changes)
    assert result.code == 0, result.err
    rows = RunDir.open(tmp_path / "run").metrics()
    assert [row["update"] for row in rows] == [1, 2]
    assert all(0 <= row["success"] <= 1 and 1 <= row["turns"] <= 4 for row in rows)
