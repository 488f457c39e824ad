from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.rollout.token_rows import TokenRows, append, append_sampled, start_rows, to_batch

WIDTH = 20


@pytest.fixture(params=["eager", "jit"])
def variant(request):
    """Run a function as it is, or compiled."""
    return jax.jit if request.param == "jit" else lambda function: function


class Lists:
    """The same rows as Python lists of (token, log-probability, turn); turn -1 stands for text of others."""

    def __init__(self, prompts: list[list[int]]):
        self.rows = [[(token, 0.0, -1) for token in prompt] for prompt in prompts]

    def append(self, tokens_BO, counts_B, turn: int = -1) -> None:
        for row, tokens, count in zip(self.rows, tokens_BO.tolist(), counts_B.tolist(), strict=True):
            row += [(token, 0.0, turn) for token in tokens[:count]]

    def append_sampled(self, token_B, logprob_B, turn: int, writing_B) -> None:
        for row, token, logprob, writes in zip(
            self.rows, token_B.tolist(), logprob_B.tolist(), writing_B.tolist(), strict=True
        ):
            row += [(token, logprob, turn)] * writes

    def check(self, rows: TokenRows) -> None:
        batch = to_batch(rows)
        assert batch.lengths_B.tolist() == [len(row) for row in self.rows]
        for index, row in enumerate(self.rows):
            padded = row + [(0, 0.0, -1)] * (WIDTH - len(row))
            tokens, logprobs, turns = map(list, zip(*padded, strict=True))
            assert batch.tokens_BL[index].tolist() == tokens
            assert batch.sampler_logprobs_BL[index].tolist() == logprobs
            assert batch.turn_BL[index].tolist() == turns
            assert batch.loss_mask_BL[index].tolist() == [turn >= 0 for turn in turns]


def right_padded(rows: list[list[int]], width: int, filler: int) -> jax.Array:
    return jnp.array([row + [filler] * (width - len(row)) for row in rows], jnp.int32)


def test_prompts_are_taken_up_to_their_lengths_whatever_stands_behind_them():
    prompts = [[5, 6, 0], [7], []]
    rows = start_rows(right_padded(prompts, 4, filler=9), jnp.array([3, 1, 0]), WIDTH)
    Lists(prompts).check(rows)


def test_a_prompt_table_wider_than_the_rows_is_cut_to_them():
    prompts = [[5, 6, 7], [8]]
    rows = start_rows(right_padded(prompts, WIDTH + 6, filler=9), jnp.array([3, 1]), WIDTH)
    Lists(prompts).check(rows)


def test_any_series_of_writes_equals_python_lists(variant):
    rng = np.random.default_rng(0)
    append_text = variant(append)
    append_words = variant(lambda rows, tokens_BO, counts_B, turn: append(rows, tokens_BO, counts_B, turn=turn))
    append_token = variant(append_sampled)
    prompts = [[1, 2], [3], [4, 5, 6]]
    rows, lists = start_rows(right_padded(prompts, 3, filler=8), jnp.array([2, 1, 3]), WIDTH), Lists(prompts)
    for turn in range(3):
        tokens_BO, counts_B = rng.integers(0, 9, (3, 2)).astype(np.int32), rng.integers(0, 3, 3).astype(np.int32)
        rows = append_text(rows, tokens_BO, counts_B)
        lists.append(tokens_BO, counts_B)
        for _ in range(2):
            token_B, writing_B = rng.integers(0, 9, 3).astype(np.int32), rng.random(3) < 0.6
            logprob_B = -rng.random(3).astype(np.float32)
            rows = append_token(rows, token_B, logprob_B, turn, writing_B)
            lists.append_sampled(token_B, logprob_B, turn, writing_B)
        tokens_BO, counts_B = rng.integers(0, 9, (3, 2)).astype(np.int32), rng.integers(0, 2, 3).astype(np.int32)
        rows = append_words(rows, tokens_BO, counts_B, turn)
        lists.append(tokens_BO, counts_B, turn)
        lists.check(rows)


def test_rows_can_be_filled_to_the_last_column(variant):
    rows, lists = start_rows(right_padded([[1], [2]], 1, filler=0), jnp.array([1, 1]), WIDTH), Lists([[1], [2]])
    tokens_BO = np.arange(2 * (WIDTH - 1), dtype=np.int32).reshape(2, -1)
    counts_B = np.array([WIDTH - 1, WIDTH - 2], np.int32)
    rows = variant(append)(rows, tokens_BO, counts_B)
    lists.append(tokens_BO, counts_B)
    written = (np.array([7, 7], np.int32), np.array([-0.5, -0.25], np.float32), 4, np.array([False, True]))
    rows = variant(append_sampled)(rows, *written)
    lists.append_sampled(*written)
    lists.check(rows)
    assert rows.lengths_B.tolist() == [WIDTH, WIDTH]


def test_a_token_that_equals_the_padding_is_a_token():
    rows = start_rows(jnp.zeros((1, 2), jnp.int32), jnp.array([2]), WIDTH)
    rows = append_sampled(rows, jnp.array([0]), jnp.array([-1.0]), jnp.int32(0), jnp.array([True]))
    batch = to_batch(rows)
    assert batch.lengths_B.tolist() == [3]
    assert batch.loss_mask_BL[0].tolist() == [False, False, True] + [False] * (WIDTH - 3)
