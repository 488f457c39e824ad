"""Log-probabilities turn by turn."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.assemble import Policy
from jaxrl_agent.evaluation.score import reasoning_mask, score_turns
from jaxrl_agent.learner.logprobs import token_logprobs
from jaxrl_agent.models.qwen3 import init_params
from jaxrl_agent.testing.small import EVEN_MODEL
from jaxrl_agent.types import TokenBatch

OPEN, CLOSE = 60, 61


@pytest.fixture(scope="module")
def policy() -> Policy:
    import jax

    return Policy(EVEN_MODEL, init_params(EVEN_MODEL, jax.random.key(1)), "lake_words")


def some_rows() -> TokenBatch:
    """Two rows: turns of 2 and 3 sampled tokens, the second with reasoning; a row of one turn."""
    turn_BL = np.array([[-1, -1, 0, 0, -1, 1, 1, 1, -1, -1], [-1, 0, 0, 0, -1, -1, -1, -1, -1, -1]])
    tokens_BL = np.array([[5, 6, 7, 8, 9, OPEN, CLOSE, 10, 0, 0], [3, OPEN, 4, CLOSE, 0, 0, 0, 0, 0, 0]])
    return TokenBatch(
        tokens_BL=jnp.asarray(tokens_BL),
        lengths_B=jnp.array([8, 4]),
        loss_mask_BL=jnp.asarray(turn_BL >= 0),
        sampler_logprobs_BL=jnp.zeros(turn_BL.shape),
        turn_BL=jnp.asarray(turn_BL),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_turns_sum_the_tokens_that_were_sampled_in_them(policy, temperature):
    rows = some_rows()
    found = score_turns(policy, rows, n_turns=4, width=6, temperature=temperature, think_ids=(OPEN, CLOSE))
    tokens_BL = token_logprobs(policy.model, policy.params, rows.tokens_BL, rows.lengths_B, temperature=temperature)
    tokens_BL = np.asarray(tokens_BL, np.float64)
    expected_BT = [[tokens_BL[0, 2:4].sum(), tokens_BL[0, 5:8].sum(), 0, 0], [tokens_BL[1, 1:4].sum(), 0, 0, 0]]
    np.testing.assert_allclose(found.turn_BT, expected_BT, atol=1e-5)
    np.testing.assert_array_equal(found.tokens_BT, [[2, 3, 0, 0], [3, 0, 0, 0]])
    actions_BT = [[tokens_BL[0, 2:4].sum(), tokens_BL[0, 7], 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found.action_BT, actions_BT, atol=1e-5)


def test_equal_weights_give_equal_bits(policy):
    first, again = (score_turns(policy, some_rows(), n_turns=4, width=6, temperature=1.0) for _ in range(2))
    np.testing.assert_array_equal(first.turn_BT, again.turn_BT)


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("a<b>c", "01110"),
        ("<a><b>c", "1111110"),
        ("a>b<c", "00011"),  # a closing token alone encloses nothing; what is never closed runs to the end
        ("<a>b>c", "111000"),
    ],
)
def test_reasoning_runs_from_an_opening_token_to_the_next_closing_one(text, marks):
    ids = {"<": OPEN, ">": CLOSE}
    tokens_BL = jnp.array([[ids.get(letter, 1) for letter in text]])
    turn_BL = jnp.zeros_like(tokens_BL)
    assert marks_of(reasoning_mask(tokens_BL, turn_BL, (OPEN, CLOSE))) == marks
    assert not reasoning_mask(tokens_BL, turn_BL, None).any()


def test_reasoning_that_a_reply_leaves_open_ends_with_it():
    """What the environment says next is none, and the reply after it is read afresh."""
    tokens_BL = jnp.array([[1, OPEN, 1, 1, 1, 1, OPEN, 1, CLOSE, 1]])
    turn_BL = jnp.array([[0, 0, 0, -1, -1, 1, 1, 1, 1, 1]])
    assert marks_of(reasoning_mask(tokens_BL, turn_BL, (OPEN, CLOSE))) == "0110001110"


def marks_of(mask_BL) -> str:
    return "".join(str(int(x)) for x in np.asarray(mask_BL)[0])
