"""Text as tables of token pieces, so that prompts and observations can be put together inside jit.

A text is a list of slots; each slot picks one row of a table, and the rows are laid end to end. The host builds the
tables once from a tokenizer, so that text never has to be encoded while a rollout runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class PieceTable:
    """Rows of token ids of unequal length."""

    tokens_RW: jax.Array  # int32, right-padded
    lengths_R: jax.Array  # int32, tokens in use

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return self.tokens_RW.shape[1]


def make_table(rows: Sequence[Sequence[int]]) -> PieceTable:
    """Build a table from lists of token ids (at least one row; rows may be empty)."""
    width = max(map(len, rows))
    tokens_RW = np.zeros((len(rows), width), np.int32)
    for index, row in enumerate(rows):
        tokens_RW[index, : len(row)] = row
    return PieceTable(jnp.asarray(tokens_RW), jnp.asarray([len(row) for row in rows], jnp.int32))


def join_pieces(slots: Sequence[tuple[PieceTable, jax.Array | int]]) -> tuple[jax.Array, jax.Array]:
    """Lay the chosen rows end to end.

    Args:
        slots: (table, row index) pairs in reading order; the index may be traced.

    Returns:
        tokens_W int32, right-padded with 0 to the sum of the tables' widths, and the number of tokens in use.
    """
    total = sum(table.width for table, _ in slots)
    column_W = jnp.arange(total)
    tokens_W = jnp.zeros(total, jnp.int32)
    offset = jnp.int32(0)
    for table, row in slots:
        if table.width == 0:
            continue
        length = table.lengths_R[row]
        inside_W = (column_W >= offset) & (column_W < offset + length)
        piece_W = table.tokens_RW[row][jnp.clip(column_W - offset, 0, table.width - 1)]
        tokens_W = jnp.where(inside_W, piece_W, tokens_W)
        offset = offset + length
    return tokens_W, offset
