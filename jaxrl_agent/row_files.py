"""Files of rows as data sets come: a JSON list, JSON Lines, Parquet, or TOML tables to be counted."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

from jaxrl_agent.errors import DataError

ROW_FILES = (".json", ".jsonl", ".jsonl.gz", ".parquet")


def row_files(path: Path) -> list[Path]:
    """Files of rows that a path stands for: itself, or those below it, in order of their names."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [file for file in files if file.name.endswith(ROW_FILES)]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a file of rows: a JSON list, JSON Lines (also compressed), or Parquet.

    Raises:
        DataError: it is none of these, or Parquet without pyarrow.
    """
    try:
        if file.name.endswith(".parquet"):
            return _parquet(file).to_pylist()
        text = _text(file)
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, OSError, EOFError) as error:
        raise DataError("a file of rows must be JSON, JSON Lines or Parquet", value=f"{file}: {error}") from error


def _text(file: Path) -> str:
    data = file.read_bytes()
    return (gzip.decompress(data) if file.name.endswith(".gz") else data).decode("utf-8-sig")


def _parquet(file: Path) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError("reading Parquet needs pyarrow", value=file.name, remedy="pip install pyarrow, or use JSON.")
    import pyarrow.parquet

    return pyarrow.parquet.read_table(file)


def count_rows(path: Path) -> int:
    """How many problems, entries or tasks a file or folder has."""
    if path.name.endswith(".toml"):
        return sum(len(tables) for tables in tomllib.loads(path.read_text(encoding="utf-8")).values())
    if path.is_file():
        return len(read_rows(path)) if path.name.endswith(ROW_FILES) else 0
    if any(path.glob("*/task.*")):  # a folder of task folders
        return sum(part.is_dir() for part in path.iterdir())
    return sum(map(count_rows, [*row_files(path), *sorted(path.glob("*.toml"))]))
