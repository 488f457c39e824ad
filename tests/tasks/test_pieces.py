from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.tasks.pieces import join_pieces, make_table


def random_rows(rng: np.random.Generator, *, count: int, longest: int) -> list[list[int]]:
    """Rows of 0 to `longest` ids; the id 0, which is also the padding, is among them."""
    return [rng.integers(0, 9, rng.integers(0, longest + 1)).tolist() for _ in range(count)]


def test_a_table_keeps_its_rows_and_their_lengths():
    table = make_table([[5, 6, 7], [], [0, 0]])
    assert table.tokens_RW.tolist() == [[5, 6, 7], [0, 0, 0], [0, 0, 0]]
    assert table.lengths_R.tolist() == [3, 0, 2]
    assert table.width == 3
    assert table.tokens_RW.dtype == table.lengths_R.dtype == jnp.int32


def test_a_table_of_empty_rows_takes_no_room():
    table = make_table([[], []])
    assert table.width == 0
    tokens_W, length = join_pieces([(table, 1), (make_table([[4]]), 0), (table, 0)])
    assert (tokens_W.tolist(), int(length)) == ([4], 1)


@pytest.mark.parametrize("seed", range(5))
def test_joined_pieces_equal_plain_concatenation(seed):
    rng = np.random.default_rng(seed)
    row_lists = [random_rows(rng, count=rng.integers(1, 6), longest=rng.integers(0, 7)) for _ in range(5)]
    slots = [(make_table(rows), int(rng.integers(len(rows)))) for rows in row_lists]
    expected = [token for rows, (_, chosen) in zip(row_lists, slots, strict=True) for token in rows[chosen]]
    tokens_W, length = join_pieces(slots)
    assert tokens_W.shape == (sum(table.width for table, _ in slots),)
    assert int(length) == len(expected)
    assert tokens_W.tolist() == expected + [0] * (len(tokens_W) - len(expected))


def test_every_choice_of_rows_joins_rightly_with_traced_indices_and_under_vmap():
    rng = np.random.default_rng(3)
    row_lists = [random_rows(rng, count=4, longest=5) for _ in range(3)]
    tables = [make_table(rows) for rows in row_lists]
    choices_B3 = np.stack(np.meshgrid(*[np.arange(4)] * 3), axis=-1).reshape(-1, 3)

    @jax.jit
    @jax.vmap
    def join(choice_3):
        return join_pieces(list(zip(tables, choice_3, strict=True)))

    tokens_BW, lengths_B = join(jnp.asarray(choices_B3))
    for tokens_W, length, choice_3 in zip(tokens_BW.tolist(), lengths_B.tolist(), choices_B3, strict=True):
        expected = [token for rows, chosen in zip(row_lists, choice_3, strict=True) for token in rows[chosen]]
        assert (tokens_W[:length], sum(tokens_W[length:])) == (expected, 0)
