"""The head of a GGUF file is read as it was written; a damaged file is one clear error."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from jaxrl_agent.errors import WeightsError
from jaxrl_agent.models.gguf_file import is_gguf, read_gguf

METADATA = {
    "general.architecture": "llama",
    "a.flag": True,
    "a.count": 7,
    "a.ratio": 0.5,
    "a.words": ["Ġt", "", "東京"],
    "a.numbers": [1, 2, 4_000_000_000],
    "a.parts": [0.25, -1.0],
}


def test_metadata_and_places_of_tensors_are_read(write_gguf):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = read_gguf(write_gguf(METADATA, {"a": (0, (2,), bytes(8)), "b": (0, (3, 4), rows.tobytes())}))
    assert file.metadata == METADATA
    place = file.tensors["b"]
    assert (place.shape, place.kind) == ((3, 4), 0)
    found = file.data[place.offset : place.offset + rows.nbytes].view(np.float32).reshape(3, 4)
    np.testing.assert_array_equal(found, rows)


def test_every_kind_of_number_is_read(tmp_path):
    kinds = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    entries = b"".join(struct.pack(f"<Q2sI{code}", 2, b"%02d" % kind, kind, 1) for kind, code in kinds.items())
    (tmp_path / "kinds.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 2, 0, len(kinds)) + entries)
    assert read_gguf(tmp_path / "kinds.gguf").metadata == {f"{kind:02}": 1 for kind in kinds}


def test_tensors_begin_at_the_files_own_alignment(write_gguf):
    content = np.arange(2, dtype=np.float32).tobytes()
    file = read_gguf(write_gguf({"general.alignment": 256}, {"a": (0, (2,), content), "b": (0, (2,), content)}))
    assert [tensor.offset % 256 for tensor in file.tensors.values()] == [0, 0]
    assert bytes(file.data[file.tensors["b"].offset :][:8]) == content


def test_a_name_tells_a_gguf_file():
    assert is_gguf("a/model.Q4_1.gguf")
    assert is_gguf("MODEL.GGUF")
    assert not is_gguf("a/gguf")


def test_a_file_that_ends_anywhere_in_its_head_is_refused(write_gguf):
    path = write_gguf(METADATA, {"a": (0, (2,), bytes(8))})
    content = path.read_bytes()
    for length in range(len(content) - 40):
        path.write_bytes(content[:length])
        with pytest.raises(WeightsError, match="GGUF"):
            read_gguf(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "exist and be readable"),
        (b"safetensors...", "begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 2 or 3, little-endian; got 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "whole"),
    ],
)
def test_another_file_is_refused(tmp_path, content, message):
    (tmp_path / "other.gguf").write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_gguf(tmp_path / "other.gguf")


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"must exist.*none\.gguf"):
        read_gguf(tmp_path / "none.gguf")
