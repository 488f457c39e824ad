"""The files of a training sweep: what makes two calls the same sweep, and its metrics as a table.

FILE.csv     a line for each member and update
FILE.json    settings, versions, curves and final success over seeds
FILE.state/  checkpoints of all members; metrics.jsonl and warm_start.jsonl, a line for all members at an update
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_agent.checkpoint import policy_version
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ArgumentError, CheckpointError
from jaxrl_agent.run_dir import Json, RunDir, collect_versions, read_json, to_jsonable, write_json

# What may differ when a sweep goes on: how it is stored, not what it computes. How it is mapped is not part of it.
_MAY_CHANGE = ("checkpoint_every", "keep_checkpoints", "trajectories_every", "stored_trajectories")


@dataclasses.dataclass(frozen=True)
class SweepFiles:
    """Where a sweep lies."""

    csv: Path

    @classmethod
    def at(cls, out: str | Path) -> SweepFiles:
        """The files of `--out=FILE.csv`.

        Raises:
            ArgumentError: another ending.
        """
        path = Path(out).expanduser().resolve()
        if path.suffix != ".csv":
            raise ArgumentError("--out of a sweep must end in .csv", value=str(out))
        return cls(path)

    @property
    def json(self) -> Path:
        """Settings, and what came out."""
        return self.csv.with_suffix(".json")

    @property
    def page(self) -> Path:
        """The curves to look at."""
        return self.csv.with_suffix(".html")

    @property
    def state(self) -> RunDir:
        """Checkpoints, and metrics by update."""
        return RunDir(self.csv.with_suffix(".state"))

    def stored(self, about: Json) -> Json | None:
        """What FILE.json says of the sweep `about`, None of a new one.

        Raises:
            CheckpointError: the files belong to another sweep, or to nobody knows what.
        """
        if not self.json.exists():
            if self.csv.exists() or self.state.path.exists():
                raise CheckpointError(
                    f"--out must be new, or have {self.json.name} beside it to go on from",
                    value=str(self.csv),
                    remedy="Give another file.",
                )
            return None
        stored = read_json(self.json)
        changed = _differences(stored.get("sweep"), about)
        if changed:
            raise CheckpointError(
                f"a sweep goes on with the settings that it was started with ({', '.join(changed)})",
                value=str(self.csv),
                remedy="Set these back, or give another --out.",
            )
        return stored

    def begin(self, about: Json) -> None:
        """Note what the sweep is."""
        write_json(self.json, {"sweep": about, "versions": collect_versions(), "finished": False})

    def finish(self, found: Mapping[str, Any]) -> Json:
        """Add what came out, and return everything."""
        result = to_jsonable({**read_json(self.json), **found, "finished": True})
        write_json(self.json, result)
        return result

    def write_csv(self, members: Sequence[Json]) -> None:
        """Write the table from the stored metrics: whole or not at all.

        Args:
            members: seed and varied values of each, in the order of the stored arrays.
        """
        stream = io.StringIO()
        rows = self.state.metrics()
        names = sorted(rows[0]["members"]) if rows else []
        writer = csv.DictWriter(stream, [*members[0], "update", *names], lineterminator="\n")
        writer.writeheader()
        for place, member in enumerate(members):
            for row in rows:
                values = {name: row["members"][name][place] for name in names}
                writer.writerow({**member, "update": row["update"], **values})
        temporary = self.csv.with_suffix(".csv.tmp")
        temporary.write_text(stream.getvalue(), encoding="utf-8")
        temporary.replace(self.csv)


def identity(config: Config, varied: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> Json:
    """What makes a sweep this one, as JSON values."""
    values = to_dict(config)
    values.pop("evaluation")
    values["warm_start"].pop("checkpoint_every")
    for name in _MAY_CHANGE:
        values["train"].pop(name)
    for key in varied:
        section, name = key.split(".")
        values[section].pop(name)
    policy = policy_version(config.init) if config.init else None
    return to_jsonable({"varied": dict(varied), "seeds": list(seeds), "policy": policy, "config": values})


def _differences(stored: Any, given: Any, name: str = "") -> list[str]:
    """Dotted names of what differs, with both values."""
    if not (isinstance(stored, dict) and isinstance(given, dict)):
        return [] if stored == given else [f"{name.removeprefix('config.')}={given!r} for {stored!r}"]
    keys = sorted(stored.keys() | given.keys())
    parts = (_differences(stored.get(key), given.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
    return [one for part in parts for one in part]
