"""Frames between client and supervisor: four bytes of length, then JSON."""

from __future__ import annotations

import json
from typing import Any

_HEADER = 4
LARGEST = 1 << 30


def encode(message: dict[str, Any]) -> bytes:
    """Make a frame of a message."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(_HEADER, "big") + body


class Decoder:
    """Turns bytes as they come into messages."""

    def __init__(self):
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes; give the messages that they complete.

        Raises:
            ValueError: the bytes are no frames.
        """
        self._data += data
        messages = []
        while len(self._data) >= _HEADER:
            size = int.from_bytes(self._data[:_HEADER], "big")
            if size > LARGEST:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._data) < _HEADER + size:
                break
            messages.append(json.loads(self._data[_HEADER : _HEADER + size]))
            del self._data[: _HEADER + size]
        return messages
