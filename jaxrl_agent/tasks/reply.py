"""Reply grammars as token-level automata: the device reads an action without decoding text.

A grammar is a byte automaton; its transitions are followed through the bytes of every token once, on the host, which
gives a table (state, token) -> state. A reply is over when a final state is reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_agent.errors import TokenizerError

NO_ACTION = -1


class TokenBytes(Protocol):
    """The part of a tokenizer that compiling a grammar needs."""

    vocab_size: int

    def token_bytes(self, token: int) -> bytes:
        """Bytes that the token stands for."""


@struct.dataclass
class ReplyAutomaton:
    """Deterministic automaton over token ids."""

    next_QV: jax.Array  # int16, state after reading a token
    action_Q: jax.Array  # int32, action that a reply ending in this state means; NO_ACTION if none
    final_Q: jax.Array  # bool, the reply is over
    start: jax.Array  # int32


def fixed_words(vocab_size: int, action_tokens: Sequence[int], end_token: int) -> ReplyAutomaton:
    """Grammar of exactly two tokens, `<action> <end>`; any other pair is a finished reply without an action.

    States: 0 start, 1..A action read, A+1 something else read, A+2..2A+1 finished with an action, 2A+2 finished
    without one.
    """
    count = len(action_tokens)
    other, done, failed = count + 1, count + 2, 2 * count + 2
    next_QV = np.full((failed + 1, vocab_size), failed, np.int16)
    next_QV[0] = other
    for index, token in enumerate(action_tokens):
        next_QV[0, token] = 1 + index
        next_QV[1 + index, end_token] = done + index
    action_Q = np.full(failed + 1, NO_ACTION, np.int32)
    action_Q[done:failed] = np.arange(count)
    return _automaton(next_QV, action_Q, final_Q=np.arange(failed + 1) >= done)


@dataclasses.dataclass(frozen=True)
class _ByteGrammar:
    """Byte automaton of `<action>NAME</action>`; the first well-formed tag decides."""

    next_QX: np.ndarray  # int16 [states, 256]
    accepting: tuple[int, ...]  # the absorbing state of each action


def tagged_action(
    tokenizer: TokenBytes,
    actions: Sequence[str],
    stop_ids: Sequence[int],
    *,
    vocab_size: int,
    think_ids: tuple[int, int] | None = None,
) -> ReplyAutomaton:
    """Grammar of free text that names its action as `<action>NAME</action>` and ends with a stop token.

    Case and blanks around the name do not matter; the first well-formed tag decides; tags between the two
    `think_ids` (opening, closing) do not count.

    Args:
        tokenizer: gives the bytes of every token.
        actions: names in the order of the environment's action numbers.
        stop_ids: tokens that end a reply.
        vocab_size: ids that the policy can emit; those beyond the tokenizer's spell nothing.
        think_ids: opening and closing token of the reasoning block, if the tokenizer has them.

    Raises:
        TokenizerError: there is no stop token.
    """
    if not stop_ids:
        raise TokenizerError("a chat reply needs a token that ends it", value=list(stop_ids))
    grammar = _tag_grammar([name.lower() for name in actions])
    n_text = len(grammar.next_QX)
    thinking, done = n_text, n_text + 1  # done + i: finished with action i; done + A: finished without
    failed = done + len(actions)
    next_QV = np.empty((failed + 1, vocab_size), np.int16)
    next_QV[:n_text] = _follow_tokens(grammar.next_QX, tokenizer, vocab_size)
    next_QV[thinking] = thinking
    next_QV[done:] = np.arange(done, failed + 1)[:, None]
    if think_ids is not None:
        unaccepted_Q = [q for q in range(n_text) if q not in grammar.accepting]
        next_QV[unaccepted_Q, think_ids[0]] = thinking
        next_QV[thinking, think_ids[1]] = 0
    for stop in stop_ids:
        next_QV[: thinking + 1, stop] = failed
        for index, state in enumerate(grammar.accepting):
            next_QV[state, stop] = done + index
    action_Q = np.full(failed + 1, NO_ACTION, np.int32)
    action_Q[done:failed] = np.arange(len(actions))
    return _automaton(next_QV, action_Q, final_Q=np.arange(failed + 1) >= done)


def _automaton(next_QV: np.ndarray, action_Q: np.ndarray, *, final_Q: np.ndarray) -> ReplyAutomaton:
    return ReplyAutomaton(
        next_QV=jnp.asarray(next_QV), action_Q=jnp.asarray(action_Q), final_Q=jnp.asarray(final_Q), start=jnp.int32(0)
    )


def _tag_grammar(actions: Sequence[str]) -> _ByteGrammar:
    """States: progress through `<action>`, blanks, prefixes of the names, blanks, progress through `</action>`."""
    opening, closing = "<action>", "</action>"
    names = {("open", i): None for i in range(len(opening))} | {("name", ""): None}
    names |= {("name", word[:i]): None for word in actions for i in range(1, len(word) + 1)}
    names |= {("close", word, i): None for word in actions for i in range(len(closing))}
    names |= {("accepted", word): None for word in actions}
    index = {name: number for number, name in enumerate(names)}
    next_QX = np.empty((len(index), 256), np.int16)
    for name, number in index.items():
        for byte in range(256):
            next_QX[number, byte] = index[_next_name(name, chr(byte).lower(), opening, closing, actions)]
    return _ByteGrammar(next_QX, tuple(index["accepted", word] for word in actions))


def _next_name(state: tuple, char: str, opening: str, closing: str, actions: Sequence[str]) -> tuple:
    restart = ("open", 1) if char == opening[0] else ("open", 0)
    blank = char in " \t\r\n"
    kind = state[0]
    if kind == "accepted":
        return state
    if kind == "open":
        if char != opening[state[1]]:
            return restart
        return ("open", state[1] + 1) if state[1] + 1 < len(opening) else ("name", "")
    if kind == "name":
        prefix = state[1]
        if blank and not prefix:
            return state
        if any(word.startswith(prefix + char) for word in actions):
            return ("name", prefix + char)
        if prefix not in actions:
            return restart
        return ("close", prefix, 0) if blank else ("close", prefix, 1) if char == "<" else restart
    word, done = state[1], state[2]
    if blank and done == 0:
        return state
    if char != closing[done]:
        opens = done == 1 and char == opening[1]  # the "<" behind the name began another tag
        return ("open", 2) if opens else restart
    return ("close", word, done + 1) if done + 1 < len(closing) else ("accepted", word)


def _follow_tokens(next_QX: np.ndarray, tokenizer: TokenBytes, vocab_size: int) -> np.ndarray:
    """Run every token's bytes through the byte automaton from every state; [states, V]."""
    spellings = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    spellings += [b""] * (vocab_size - len(spellings))
    lengths_V = np.array([len(spelling) for spelling in spellings])
    state_QV = np.repeat(np.arange(len(next_QX), dtype=np.int16)[:, None], len(spellings), axis=1)
    for position in range(lengths_V.max(initial=0)):
        active = np.flatnonzero(lengths_V > position)
        bytes_now = np.array([spellings[token][position] for token in active])
        state_QV[:, active] = next_QX[state_QV[:, active], bytes_now]
    return state_QV
