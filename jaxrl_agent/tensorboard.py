"""Scalars of a run as a TensorBoard event file, written without TensorFlow.

An event file is a row of TFRecords, each an `Event` message of tensorflow/core/util/event.proto. Both formats are a
few bytes around the numbers, so they are written here by hand.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import BinaryIO

from jaxrl_agent.run_dir import Json, RunDir

_TAGS = {"warm_start.jsonl": "warm_start", "metrics.jsonl": "training"}  # first part of a tag, by file of lines
_SESSION_START = 1  # SessionLog.START


class EventFile:
    """Mirrors the lines of `warm_start.jsonl` and `metrics.jsonl` in `events.out.tfevents.*` beside them.

    The file is begun together with the first new line, from all lines that the run holds by then. A resumed run, whose
    lines were cut back, so ends up with one file that has no step twice; it opens a new session at step 0, which tells
    a TensorBoard that is watching to drop what it read before. Lines carry no time of day: those of earlier sessions
    are placed by their durations before the present.

    Args:
        run: where the lines are. On a process that is not the writer nothing is written.
    """

    def __init__(self, run: RunDir):
        self._run = run
        self._stream: BinaryIO | None = None

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def add(self, row: Json, *, file: str = "metrics.jsonl") -> None:
        """Write the numbers of a line that was just appended to `file`."""
        if not self._run.writer:
            return
        if self._stream is None:
            self._begin()  # writes this line too
        else:
            self._write(_scalars(row, file, time.time()))
        self._stream.flush()

    def _begin(self) -> None:
        old, now = list(self._run.path.glob("events.out.tfevents.*")), time.time()
        path = self._run.path / f"events.out.tfevents.{time.time_ns()}"  # TensorBoard reads files in order of names
        self._stream = path.open("xb")
        self._write(_event(now, 0, _field(3, b"brain.Event:2")))
        self._write(_event(now, 0, _field(7, _varint(1 << 3) + _varint(_SESSION_START))))
        lines = [("warm_start.jsonl", row) for row in self._run.warm_start()]
        lines += [("metrics.jsonl", row) for row in self._run.metrics()]
        for (file, row), moment in zip(lines, _moments([row for _, row in lines], now), strict=True):
            self._write(_scalars(row, file, moment))
        for other in old:
            other.unlink()

    def _write(self, event: bytes) -> None:
        """Write one TFRecord: length, its checksum, data, their checksum."""
        length = struct.pack("<Q", len(event))
        self._stream.write(length + _checksum(length) + event + _checksum(event))


def _moments(rows: list[Json], now: float) -> list[float]:
    """Seconds since 1970 at which each line was written, if nothing but its own work lay between two lines."""
    moments = []
    for row in reversed(rows):
        moments.append(now)
        now -= sum(row.get("seconds", {}).values())
    return moments[::-1]


def _scalars(row: Json, file: str, moment: float) -> bytes:
    """The `Event` of one line, all its numbers in one `Summary`."""
    values = (
        _field(1, _field(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", number))
        for tag, number in _numbers(_TAGS[file], row)
        if tag != f"{_TAGS[file]}/update"
    )
    return _event(moment, row["update"], _field(5, b"".join(values)))


def _numbers(tag: str, value: object) -> Iterator[tuple[str, float]]:
    """Leaves of nested dicts and lists with their paths; a line's null stands for a number that is not finite."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _numbers(f"{tag}/{name}", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value, start=1):
            yield from _numbers(f"{tag}/{number}", part)
    elif value is None:
        yield tag, float("nan")
    elif isinstance(value, int | float):
        yield tag, value


def _event(moment: float, step: int, what: bytes) -> bytes:
    return _varint(1 << 3 | 1) + struct.pack("<d", moment) + _varint(2 << 3) + _varint(step) + what


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TFRecord asks, so that a checksum of checksums stays meaningful."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_table() -> tuple[int, ...]:
    """Remainders of all bytes under the Castagnoli polynomial, bits reflected."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_CRC_TABLE = _crc_table()
