"""Event files, read back by protobuf's own decoder, with checksums computed bit by bit, and by TensorBoard if there."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.tensorboard import EventFile

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DOUBLE, FLOAT, INT64, MESSAGE, STRING, ENUM_AS_INT = 1, 2, 3, 11, 9, 5
SCHEMA = {  # the part of tensorflow/core that scalars need: name -> fields (number, name, type, repeated, message)
    "Value": [(1, "tag", STRING, False, ""), (2, "simple_value", FLOAT, False, "")],
    "Summary": [(1, "value", MESSAGE, True, "Value")],
    "SessionLog": [(1, "status", ENUM_AS_INT, False, "")],
    "Event": [
        (1, "wall_time", DOUBLE, False, ""),
        (2, "step", INT64, False, ""),
        (3, "file_version", STRING, False, ""),
        (5, "summary", MESSAGE, False, "Summary"),
        (7, "session_log", MESSAGE, False, "SessionLog"),
    ],
}


def message_class(name: str):
    file = descriptor_pb2.FileDescriptorProto(name="events.proto", package="events", syntax="proto3")
    for message, fields in SCHEMA.items():
        made = file.message_type.add(name=message)
        for number, field, kind, repeated, inner in fields:
            made.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if repeated else 1,
                type_name=f".events.{inner}" if inner else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"events.{name}"))


Event = message_class("Event")


def crc32c(data: bytes) -> int:
    """The remainder by polynomial division, one bit at a time, highest power first."""
    bits = [byte >> i & 1 for byte in data for i in range(8)] + [0] * 32
    for i in range(32):
        bits[i] ^= 1  # the register starts with ones
    for i in range(len(bits) - 32):
        if bits[i]:
            for j, coefficient in enumerate(f"1{0x1EDC6F41:032b}"):
                bits[i + j] ^= int(coefficient)
    return sum((bit ^ 1) << i for i, bit in enumerate(bits[-32:]))


def masked(data: bytes) -> int:
    crc = crc32c(data)
    rotated = int(f"{crc:032b}"[-15:] + f"{crc:032b}"[:-15], 2)
    return (rotated + 0xA282EAD8) % 2**32


def read_events(path: Path) -> list:
    data, events = path.read_bytes(), []
    while data:
        length, length_crc = struct.unpack("<QI", data[:12])
        content, (content_crc,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert (length_crc, content_crc) == (masked(data[:8]), masked(content))
        events.append(Event.FromString(content))
        data = data[16 + length :]
    return events


def event_file(path: Path) -> Path:
    (found,) = path.glob("*tfevents*")
    return found


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in read_events(event_file(path)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def write_rows(run: RunDir, updates: range, *, offset: float = 0.0, file: str = "metrics.jsonl") -> None:
    with EventFile(run) as events:
        for update in updates:
            row = {"update": update, "success": update + offset, "seconds": {"rollout": 60.0, "update": 20.0}}
            run.append_metrics(row, file=file)
            events.add(row, file=file)


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir.create(tmp_path / "run", {})


def test_the_bitwise_checksum_of_this_file_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_file_begins_with_its_version_and_a_session_at_step_0(run):
    write_rows(run, range(1, 2))
    version, start, *_ = read_events(event_file(run.path))
    assert version.file_version == "brain.Event:2"
    assert (start.session_log.status, start.step) == (1, 0)


def test_every_number_of_a_line_becomes_a_scalar_under_its_path(run):
    row = {
        "update": 300,
        "loss": -0.25,
        "kl": None,
        "stop_reasons": {"success": 0.75},
        "groups_by_budget": [1.0, 0.0],
        "compiles": 2,
        "note": "words are left out",
    }
    with EventFile(run) as events:
        run.append_metrics(row)
        events.add(row)
        events.add({**row, "update": 301, "loss": math.nan})
    found = scalars(run.path)
    assert found["training/loss"][0] == (300, -0.25)
    assert math.isnan(found["training/loss"][1][1])
    assert math.isnan(found["training/kl"][0][1])
    del found["training/loss"], found["training/kl"]
    assert found == {
        "training/stop_reasons/success": [(300, 0.75), (301, 0.75)],
        "training/groups_by_budget/1": [(300, 1.0), (301, 1.0)],
        "training/groups_by_budget/2": [(300, 0.0), (301, 0.0)],
        "training/compiles": [(300, 2.0), (301, 2.0)],
    }


def test_both_phases_of_a_run_share_one_file(run):
    write_rows(run, range(20, 61, 20), file="warm_start.jsonl")
    write_rows(run, range(1, 4))
    found = scalars(run.path)
    assert [step for step, _ in found["warm_start/success"]] == [20, 40, 60]
    assert [step for step, _ in found["training/success"]] == [1, 2, 3]


def test_a_resumed_run_has_no_step_twice_and_its_new_file_comes_last_by_name(run):
    write_rows(run, range(1, 8))
    before = event_file(run.path).name
    run.cut_metrics(5)
    write_rows(run, range(6, 10), offset=0.5)
    expected = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6.5), (7, 7.5), (8, 8.5), (9, 9.5)]
    assert scalars(run.path)["training/success"] == expected
    assert event_file(run.path).name > before


def test_lines_of_earlier_sessions_are_placed_by_their_durations(run):
    write_rows(run, range(1, 4))
    write_rows(run, range(4, 5))
    times = [event.wall_time for event in read_events(event_file(run.path))[2:]]
    assert [times[3] - moment for moment in times] == pytest.approx([240, 160, 80, 0], abs=1e-3)


def test_a_process_that_is_not_the_writer_writes_nothing(run):
    with EventFile(RunDir(run.path, writer=False)) as events:
        events.add({"update": 1, "loss": 1.0})
    assert not list(run.path.glob("*tfevents*"))


def test_a_real_run_is_mirrored_line_by_line(small_run):
    found = scalars(small_run.path)
    for tag, rows in (("training/success", small_run.metrics()), ("warm_start/success", [])):
        assert found.get(tag, []) == [(row["update"], pytest.approx(row["success"])) for row in rows]
    losses = [(row["update"], pytest.approx(row["loss"])) for row in small_run.warm_start()]
    assert found["warm_start/loss"] == losses
    assert len(losses) == 4


def test_tensorboard_reads_the_file_as_it_was_meant(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_rows(run, range(1, 8))
    run.cut_metrics(5)
    write_rows(run, range(6, 8), offset=0.5)
    reader = accumulator.EventAccumulator(str(run.path))
    reader.Reload()
    values = [(scalar.step, scalar.value) for scalar in reader.Scalars("training/success")]
    assert values == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6.5), (7, 7.5)]
