"""The files of a run and of an analysis: the only contract between running, analysing and reporting.

    DIR/config.json              the resolved configuration
    DIR/versions.json            packages, Python, platform, git revision
    DIR/warm_start.jsonl         one line for each logged supervised update
    DIR/metrics.jsonl            one line for each reinforcement-learning update
    DIR/events.out.tfevents.*    the numbers of both, for TensorBoard
    DIR/trajectories/*.jsonl     one line for each trajectory
    DIR/checkpoints/             orbax
    DIR/reference/               orbax, the reference policy of a KL term
    DIR/tokenizer/               the policy's tokenizer, in a run made from a weights folder that has one
    DIR/evaluations/*.json       results of evaluate.py

    OUT/probes/NAME.json         what was sampled and scored of the pair (base, policy NAME)
    OUT/trajectories/*.jsonl     episodes of it to read
    OUT/analysis.json            everything computed from the probes and the runs
    OUT/verdicts.md              what it decides, as a table

Every JSON file is written whole or not at all; line files are cut back to the restored update on resume,
so that no update is logged twice.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxrl_agent.errors import RunError

Json = dict[str, Any]

_declared: dict[str, str] = {}
_PACKAGES = ("jaxrl_agent", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy", "chex")


def write_json(path: Path, value: Json) -> None:
    """Write `value` to `path` atomically (temporary file beside it, then rename)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(to_jsonable(value), indent=1) + "\n")
    temporary.replace(path)


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write one JSON value a line to `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as stream:
        for value in values:
            stream.write(json.dumps(to_jsonable(value)) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> Json:
    """Read a JSON file.

    Raises:
        RunError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunError(
            "the file must exist", value=str(path), remedy="Check the path, or run the step that writes it."
        ) from error
    except json.JSONDecodeError as error:
        raise RunError(f"the file must hold JSON ({error})", value=str(path), remedy="Write it again.") from error


def to_jsonable(value: Any) -> Any:
    """Turn numpy scalars and arrays, enums and dataclasses into plain JSON values; nan and inf become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name.rstrip("_"): getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if hasattr(value, "tolist"):
        return to_jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


def collect_versions() -> Json:
    """Versions of everything that can change a result: packages, Python, platform, git revision (or null)."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    declared = {"declared": dict(_declared)} if _declared else {}
    return {
        "packages": packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_git_state(),
        **declared,
    }


def declare(name: str, text: str | None) -> None:
    """Have everything that this process writes say something of how it ran; None takes it back.

    Args:
        name: what it is about, such as "sandbox".
        text: what a reader must know.
    """
    _declared.pop(name, None)
    if text is not None:
        _declared[name] = text


def _git_state() -> Json:
    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    status = git("status", "--porcelain")
    return {"git_revision": git("rev-parse", "HEAD"), "git_dirty": None if status is None else bool(status)}


@dataclasses.dataclass(frozen=True)
class RunDir:
    """Paths and schemas of one run directory.

    Attributes:
        path: absolute path.
        writer: False on the processes of a pod that must leave the files to another one; their writes do nothing.
    """

    path: Path
    writer: bool = True

    @classmethod
    def create(cls, path: str | Path, config: Json, *, writer: bool = True) -> RunDir:
        """Make the directory and store its configuration and versions."""
        run = cls(Path(path).expanduser().resolve(), writer)
        if writer:
            run.path.mkdir(parents=True, exist_ok=True)
            write_json(run.path / "versions.json", collect_versions())
            write_json(run.path / "config.json", config)  # last: a directory with it is a run
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """Open an existing run.

        Raises:
            RunError: `path` holds no config.json.
        """
        run = cls(Path(path).expanduser().resolve())
        if not run.exists():
            raise RunError(
                "a run directory must hold config.json", value=str(path), remedy="Give a directory made by train.py."
            )
        return run

    def exists(self) -> bool:
        """Whether this directory already holds a run."""
        return (self.path / "config.json").is_file()

    @property
    def checkpoints(self) -> Path:
        """Folder of the orbax checkpoints."""
        return self.path / "checkpoints"

    @property
    def reference(self) -> Path:
        """Folder of the reference policy's parameters, kept where a KL term needs them."""
        return self.path / "reference"

    @property
    def tokenizer(self) -> Path:
        """Folder of the policy's own tokenizer, where the run carries it."""
        return self.path / "tokenizer"

    def config(self) -> Json:
        """The resolved configuration that the run was started with."""
        return read_json(self.path / "config.json")

    def versions(self) -> Json:
        """Package versions and git revision at the start of the run."""
        return read_json(self.path / "versions.json")

    def metrics(self) -> list[Json]:
        """One dict for each reinforcement-learning update, in order; empty before the first."""
        return list(_read_lines(self.path / "metrics.jsonl"))

    def warm_start(self) -> list[Json]:
        """One dict for each logged supervised update; empty if the run began from given weights."""
        return list(_read_lines(self.path / "warm_start.jsonl"))

    def append_metrics(self, row: Json, *, file: str = "metrics.jsonl") -> None:
        """Add one line."""
        if not self.writer:
            return
        with (self.path / file).open("a") as stream:
            stream.write(json.dumps(to_jsonable(row)) + "\n")

    def cut_metrics(self, last_update: int, *, file: str = "metrics.jsonl") -> None:
        """Drop the lines of updates after `last_update`: they were made after the checkpoint now restored."""
        path = self.path / file
        if not self.writer or not path.exists():
            return
        rows = [row for row in _read_lines(path) if row["update"] <= last_update]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.replace(path)

    def write_trajectories(self, name: str, trajectories: Iterable[Any]) -> Path:
        """Write `trajectories/NAME.jsonl`, one trajectory a line; returns the path."""
        path = self.path / "trajectories" / f"{name}.jsonl"
        if not self.writer:
            return path
        write_lines(path, trajectories)
        return path

    def trajectory_files(self) -> list[Path]:
        """All trajectory files, sorted by name."""
        return sorted((self.path / "trajectories").glob("*.jsonl"))

    def trajectories(self, name: str) -> Iterator[Json]:
        """Lines of `trajectories/NAME.jsonl`."""
        return _read_lines(self.path / "trajectories" / f"{name}.jsonl")

    def evaluations(self) -> dict[str, Json]:
        """All stored evaluations by file stem."""
        return {path.stem: read_json(path) for path in sorted((self.path / "evaluations").glob("*.json"))}


@dataclasses.dataclass(frozen=True)
class AnalysisDir:
    """Paths of one analysis.

    Attributes:
        path: absolute path; made by the first file written.
    """

    path: Path

    @classmethod
    def at(cls, path: str | Path) -> AnalysisDir:
        """The analysis of a folder, which need not exist."""
        return cls(Path(path).expanduser().resolve())

    def probe(self, name: str) -> Path:
        """What was sampled and scored of the policy of this name and its base."""
        return self.path / "probes" / f"{name}.json"

    @property
    def result(self) -> Path:
        """Everything computed."""
        return self.path / "analysis.json"

    @property
    def verdicts(self) -> Path:
        """What it decides, as a Markdown table."""
        return self.path / "verdicts.md"


def _read_lines(path: Path) -> Iterator[Json]:
    """Yield the JSON lines of `path`; a last line cut by a crash is left out, any other bad line is an error."""
    if not path.exists():
        return
    with path.open() as stream:
        lines = stream.read().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise RunError(
                f"line {number} must be JSON ({error})", value=str(path), remedy="Remove the line or restore the file."
            ) from error
