"""Settings of the test process, made before jax is imported, and fixtures that every package's tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]

# The environment rather than jax.config, so that processes started by tests inherit all of it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROJECT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax
import pytest

from jaxrl_agent.testing.commands import Launcher


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked gpu where there is no accelerator."""
    if item.get_closest_marker("gpu") and jax.default_backend() == "cpu":
        pytest.skip("needs an accelerator: JAX_PLATFORMS=cuda bash launch/test.sh -m gpu")


MOST_MAPS = 20_000  # of the 65,530 memory maps that Linux grants a process by default


@pytest.fixture(scope="module", autouse=True)
def _bounded_programs() -> Iterator[None]:
    """Drop compiled programs before their memory maps run out: a process that meets the limit crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Launcher:
    """Run `launch(NAME, FLAG, ...)` in this process."""
    return Launcher(monkeypatch, capsys)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the task data that are too large to ship."""
    folder = os.environ.get("JAXRL_DATA_DIR")
    if not folder:
        pytest.skip("JAXRL_DATA_DIR is not set")
    if not Path(folder).is_dir():
        pytest.skip(f"JAXRL_DATA_DIR is no folder: {folder}")
    return Path(folder)


@pytest.fixture
def strict_rank_promotion():
    """Make numpy-style rank promotion an error, so that a forgotten axis can not broadcast."""
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """A finished run that taught a tiny policy its eight lakes."""
    from jaxrl_agent.progress import Display
    from jaxrl_agent.testing.small import small_config, small_preset
    from jaxrl_agent.train import train

    config = small_config(
        warm_start__updates=200,
        warm_start__batch=16,
        warm_start__log_every=50,
        warm_start__checkpoint_every=100,
        warm_start__optimizer__learning_rate=1e-2,
        warm_start__optimizer__warmup=10,
        train__updates=24,
        train__checkpoint_every=12,
        train__trajectories_every=12,
    )
    with small_preset():
        return train(config, tmp_path_factory.mktemp("runs") / "small", display=Display(quiet=True))
