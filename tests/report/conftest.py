"""Fake runs that the tests of the report share, and copies of them that a test may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxrl_agent.testing.fake_runs import FakeSpec, write_fake_runs

SMALL = FakeSpec(n_tasks=12, n_samples=16, updates=30)


@pytest.fixture(scope="session")
def pristine_runs(tmp_path_factory) -> dict[str, Path]:
    """Three runs with told budgets; never write into them."""
    return write_fake_runs(tmp_path_factory.mktemp("told"), spec=SMALL)


@pytest.fixture
def runs(pristine_runs, tmp_path) -> dict[str, Path]:
    """A private copy of the three runs."""
    return {name: Path(shutil.copytree(path, tmp_path / "runs" / name)) for name, path in pristine_runs.items()}
