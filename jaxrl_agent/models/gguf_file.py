"""GGUF files, version 2 and 3: metadata, and where the tensors lie. Nothing is dequantised here."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_agent.errors import WeightsError

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_TEXT, _ARRAY = 8, 9
# struct's codes of the file's scalar types, by number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GgufTensor(NamedTuple):
    """Where one tensor lies."""

    shape: tuple[int, ...]  # rows first
    kind: int  # ggml's number of the quantisation
    offset: int  # bytes from the beginning of the file


class GgufFile(NamedTuple):
    """What a file says, and its bytes."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data: np.ndarray  # uint8, the whole file, mapped


def is_gguf(path: str | os.PathLike) -> bool:
    """Tell whether a name is that of a GGUF file."""
    return Path(path).suffix.lower() == ".gguf"


def read_gguf(path: str | os.PathLike) -> GgufFile:
    """Read the head of a GGUF file, and map the rest.

    Raises:
        WeightsError: there is no such file, it is of another format or version, or it is cut short.
    """
    path = Path(path).expanduser()
    try:
        data = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: nothing to map in an empty file
        raise WeightsError("a GGUF file must exist and be readable", value=f"{path}: {error}") from error
    if bytes(data[:4]) != _MAGIC:
        raise WeightsError("a GGUF file must begin with GGUF", value=str(path), remedy="Give another file.")
    try:
        return _read_head(path, data)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise WeightsError(
            "a GGUF file must be whole", value=str(path), remedy="Copy or download the file again."
        ) from error


def _read_head(path: Path, data: np.ndarray) -> GgufFile:
    cursor = _Cursor(data)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise WeightsError(
            "a GGUF file must be of version 2 or 3, little-endian",
            value=version,
            remedy="Convert it with a newer llama.cpp.",
        )
    n_tensors, n_entries = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(n_entries)}
    tensors = {cursor.text(): cursor.tensor() for _ in range(n_tensors)}
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    placed = {name: tensor._replace(offset=start + tensor.offset) for name, tensor in tensors.items()}
    return GgufFile(path, metadata, placed, data)


class _Cursor:
    """Reads values one behind the other."""

    def __init__(self, data: np.ndarray):
        self._bytes = memoryview(data)
        self.at = len(_MAGIC)

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._bytes, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.scalar("Q")
        begin, self.at = self.at, self.at + length
        if self.at > len(self._bytes):
            raise IndexError("text beyond the end of the file")
        return bytes(self._bytes[begin : self.at]).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        inner, count = self.scalar("I"), self.scalar("Q")
        if inner in (_TEXT, _ARRAY):
            return [self.value(inner) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{_SCALARS[inner]}", self._bytes, self.at)
        self.at += struct.calcsize(f"<{count}{_SCALARS[inner]}")
        return list(values)

    def tensor(self) -> GgufTensor:
        rank = self.scalar("I")
        shape = tuple(self.scalar("Q") for _ in range(rank))[::-1]
        return GgufTensor(shape, kind=self.scalar("I"), offset=self.scalar("Q"))
