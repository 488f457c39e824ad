"""Few sizes for rows, slots and chunks, so that compiled programs are met again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n; 1 for 0."""
    return 1 << max(n - 1, 0).bit_length()


def bucket(n: int, least: int) -> int:
    """The smallest of `least` times 1, 2, 3, 4, 6, 8, 12, ... that is at least n (`least` a power of two)."""
    power = power_of_two(max(n, least))
    between = power // 4 * 3
    return between if n <= between and power > 2 * least else power


def padded_rows(rows: Sequence[int]) -> np.ndarray:
    """Row numbers of a whole bucket; what fills it up repeats row 0 and stays frozen."""
    rows_R = np.zeros(power_of_two(len(rows)), np.int32)
    rows_R[: len(rows)] = rows
    return rows_R


def padded_pieces(pieces: Sequence[Sequence[int]], rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of ids as an int32 [rows, width], right-padded with 0, and their lengths."""
    tokens_RC, counts_R = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
    for row, piece in enumerate(pieces):
        tokens_RC[row, : len(piece)], counts_R[row] = piece, len(piece)
    return tokens_RC, counts_R
