"""Seeds in one program against as many runs of train.py, from the command line to the last file.

Both sides are commands in processes of their own, with start-up, compilation and everything that they write. Each has a
compilation cache that is empty at first, so that the first of the separate runs compiles for those after it, as users'
runs do. The separate runs follow one another, since a second one would take cores from the first.

python -m jaxrl_agent.benchmark.train_sweep
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_agent.errors import RunError
from jaxrl_agent.run_dir import Json, RunDir

PROJECT = Path(__file__).resolve().parents[2]
SEPARATE = "separate runs"


def run(
    *,
    seeds: int = 8,
    updates: int = 15,
    warm_updates: int = 40,
    config: str = "configs/frozenlake_grpo.py",
    maps: Sequence[str] = ("lax_map", "vmap"),
    settings: Sequence[str] = (),
) -> list[Json]:
    """Time both sides.

    Args:
        seeds: members, and runs.
        updates: policy updates of each; more than 5, since the first 5 of a sweep are one call with its compilation.
        warm_updates: supervised updates of each before them.
        config: config file of both.
        maps: ways to map the one program.
        settings: further KEY:VALUE settings of both.

    Returns:
        A row for each side: what, seconds and cpu_seconds (from start to end, all seeds), update_seconds (median of
        what an update of one seed takes once everything is compiled); and for each map a row of both ratios, separate
        runs over one program: total_ratio, cpu_ratio and update_ratio.

    Raises:
        RunError: a command failed.
    """
    given = [f"train.updates:{updates}", f"warm_start.updates:{warm_updates}", *settings]
    with tempfile.TemporaryDirectory() as folder:
        separate = _separate(Path(folder) / SEPARATE, seeds, config, given)
        rows = [separate]
        for how in maps:
            one = _one_program(Path(folder) / how, seeds, config, given, how)
            ratios = {
                "total_ratio": separate["seconds"] / one["seconds"],
                "cpu_ratio": separate["cpu_seconds"] / one["cpu_seconds"],
                "update_ratio": separate["update_seconds"] / one["update_seconds"],
            }
            rows += [one, {"what": f"{SEPARATE} over {one['what']}", **ratios}]
    return rows


def to_text(rows: Sequence[Json]) -> str:
    """The rows as lines for a terminal."""
    lines = []
    for row in rows:
        values = ", ".join(f"{name} {value:.3g}" for name, value in row.items() if name != "what")
        lines.append(f"{row['what']}: {values}")
    return "\n".join(lines)


def _separate(folder: Path, seeds: int, config: str, settings: Sequence[str]) -> Json:
    flags = ["--config.{}={}".format(*setting.split(":", 1)) for setting in settings]
    runs = [folder / f"seed{seed}" for seed in range(seeds)]
    clock = _Clock()
    for seed, path in enumerate(runs):
        _call(folder, "train", f"--config={config}", f"--config.seed={seed}", f"--run_dir={path}", *flags)
    spent = clock.read()
    rows = [row for path in runs for row in RunDir(path).metrics() if not row["compiles"]]
    seconds = statistics.median(row["seconds"]["rollout"] + row["seconds"]["update"] for row in rows)
    return {"what": f"{seeds} {SEPARATE}", **spent, "update_seconds": seconds}


def _one_program(folder: Path, seeds: int, config: str, settings: Sequence[str], how: str) -> Json:
    out = folder / "sweep.csv"
    flags = [f"--config={config}", f"--seeds={seeds}", f"--set={','.join(settings)}", f"--map={how}", f"--out={out}"]
    clock = _Clock()
    _call(folder, "sweep_train", *flags)
    spent = clock.read()
    rows = [row for row in RunDir(out.with_suffix(".state")).metrics() if not row["compiles"]]
    seconds = statistics.median(row["seconds"] for row in rows) / seeds
    return {"what": f"{seeds} seeds by {how}", **spent, "update_seconds": seconds}


class _Clock:
    """Seconds since it was made, and processor seconds of the processes that ended since."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _used()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._began, "cpu_seconds": _used() - self._used}


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _call(folder: Path, name: str, *flags: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment: dict[str, Any] = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(PROJECT / "launch" / f"{name}.py"), *flags, "--progress=quiet"]
    result = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise RunError(f"{name}.py must end well", value=result.stderr.strip().splitlines()[-1:])


if __name__ == "__main__":
    print(to_text(run()))
