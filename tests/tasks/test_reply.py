from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxrl_agent.errors import TokenizerError
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.tasks.reply import NO_ACTION, fixed_words, tagged_action
from jaxrl_agent.testing.replies import TagTokenizer, read_tagged

ACTIONS = ("left", "down", "right", "up", "look")
SPARE = 7  # ids of the model beyond the tokenizer's

# What a reply may be made of, whole and broken; THINK, /THINK and STOP stand for the control tokens.
PARTS = (
    *(f"<action>{name}</action>" for name in (*ACTIONS, "LEFT", "Down", " up ", "\n\tright\r\n", "jump", "", "le ft")),
    *("<action>", "</action>", "<ACTION>", "</Action>", "<action", "action>", "</action", "</", "<", ">", "/", "<<"),
    *(*ACTIONS, "l", "eft", "lo", "lookup", " ", "\n", "\t", "\v", "\N{NO-BREAK SPACE}", "\N{KELVIN SIGN}", "<think>"),
    *("<action>left<action>", "<action>up <", "<action>down</", "<action>look</act", "<action>uplook</action>", "ÿ"),
    *("I go ", "<action >left</action>", "<action>left</action >", "< action>up</action>", "<action>left right"),
    *("THINK", "/THINK", "THINK", "/THINK", "STOP"),
)
# (reply, action): the action is None where the reply names none.
CASES = (
    ("<action>left</action>", "left"),
    ("I go down.\n<action>Down</action>", "down"),
    ("<ACTION>\n up\t</Action>", "up"),
    ("<action>left</action> or <action>up</action>", "left"),
    ("<action>jump</action><action>up</action>", "up"),
    ("<action><action>down</action>", "down"),
    ("<action>left<action>down</action>", "down"),
    ("<action>left <action>down</action>", "down"),
    ("<action>left</<action>down</action>", "down"),
    ("<action>left</action<action>down</action>", "down"),
    ("<<action>right</action>", "right"),
    ("<acti<action>right</action>", "right"),
    ("<action>right<</action>", None),
    ("<action>left</action", None),
    ("action>left</action>", None),
    ("<action>left right</action>", None),
    ("<action>leftmost</action>", None),
    ("<action></action>", None),
    ("left", None),
    ("", None),
    ("THINK<action>left</action>/THINK", None),
    ("THINK<action>left</action>/THINK<action>up</action>", "up"),
    ("THINK<action>left</action>", None),
    ("<action>left</action>THINK<action>up</action>", "left"),
    ("<action>leTHINK/THINKft</action>", None),
    ("<action>leTHINKft</action>/THINK<action>look</action>", "look"),
    ("THINKTHINK/THINK<action>left</action>", "left"),
    ("/THINK<action>left</action>", "left"),
    ("<think><action>left</action></think>", "left"),  # text that spells the control tokens is text
)


class Reader:
    """One tokenizer with its automaton, run on the host token by token."""

    def __init__(self, tokenizer):
        self.tokenizer, self.chat = tokenizer, ChatIds.of(tokenizer)
        self.vocab_size = tokenizer.vocab_size + SPARE
        automaton = tagged_action(
            tokenizer, ACTIONS, self.chat.stop_ids, vocab_size=self.vocab_size, think_ids=self.chat.think_ids
        )
        self.next_QV, self.action_Q, self.final_Q = map(
            np.asarray, (automaton.next_QV, automaton.action_Q, automaton.final_Q)
        )
        self.start = int(automaton.start)

    def control(self, part: str) -> int | None:
        return {"THINK": self.chat.think_ids[0], "/THINK": self.chat.think_ids[1], "STOP": self.chat.end}.get(part)

    def encode(self, reply: str) -> list[int]:
        """Ids of a reply whose control tokens are written as in CASES."""
        parts = reply.replace("/THINK", "\0/THINK\0").replace("\0/THINK\0", "\0close\0").replace("THINK", "\0open\0")
        ids = []
        for part in parts.split("\0"):
            name = {"open": "THINK", "close": "/THINK"}.get(part)
            ids += [self.control(name)] if name else self.tokenizer.encode(part)
        return ids

    def read(self, ids: list[int]) -> tuple[bool, int]:
        """The automaton's answer; like the rollout, it stops at the first final state."""
        state = self.start
        for token in ids:
            state = self.next_QV[state, token]
            if self.final_Q[state]:
                break
        return bool(self.final_Q[state]), int(self.action_Q[state])

    def expected(self, ids: list[int]) -> tuple[bool, int]:
        return read_tagged(self.tokenizer, ACTIONS, self.chat.stop_ids, self.chat.think_ids, ids)


@pytest.fixture(scope="module")
def byte_reader() -> Reader:
    return Reader(load_tokenizer("byte"))


@pytest.fixture(scope="module")
def qwen_reader(data_dir) -> Reader:
    return Reader(load_tokenizer(data_dir / "qwen3_tokenizer"))


@pytest.fixture(params=["byte", "qwen3"])
def reader(request) -> Reader:
    return request.getfixturevalue({"byte": "byte_reader", "qwen3": "qwen_reader"}[request.param])


def as_number(name: str | None) -> int:
    return NO_ACTION if name is None else ACTIONS.index(name)


# ---- two words


def test_every_pair_of_words_is_a_finished_reply_and_only_an_action_with_the_end_word_names_an_action():
    vocab_size, action_tokens, end = 12, [3, 4, 9], 7
    automaton = fixed_words(vocab_size, action_tokens, end)
    next_QV, action_Q, final_Q = map(np.asarray, (automaton.next_QV, automaton.action_Q, automaton.final_Q))
    for first, second in itertools.product(range(vocab_size), repeat=2):
        middle = next_QV[int(automaton.start), first]
        assert not final_Q[middle]
        assert action_Q[middle] == NO_ACTION
        last = next_QV[middle, second]
        assert final_Q[last]
        named = action_tokens.index(first) if first in action_tokens and second == end else NO_ACTION
        assert action_Q[last] == named


# ---- tagged text


@pytest.mark.parametrize(("reply", "action"), CASES)
def test_a_reply_means_the_first_well_formed_tag_outside_of_reasoning(reader, reply, action):
    ids = [*reader.encode(reply), reader.chat.end]
    assert reader.read(ids) == (True, as_number(action))
    assert reader.expected(ids) == (True, as_number(action))


@pytest.mark.parametrize(("reply", "action"), CASES)
def test_a_reply_without_a_stop_token_is_unfinished_and_names_no_action(reader, reply, action):
    assert reader.read(reader.encode(reply)) == (False, NO_ACTION)


def random_reply(reader: Reader, rng: np.random.Generator) -> list[int]:
    ids = []
    for part in rng.choice(np.array(PARTS, dtype=object), rng.integers(1, 9)):
        token = reader.control(part)
        ids += reader.tokenizer.encode(part) if token is None else [token]
        if rng.random() < 0.1:
            ids.append(int(rng.integers(reader.vocab_size)))
    return [*ids, int(rng.choice(reader.chat.stop_ids))]


def test_random_and_adversarial_replies_are_read_as_a_regular_expression_reads_them(reader):
    rng = np.random.default_rng(0)
    read = []
    for _ in range(4000):
        ids = random_reply(reader, rng)
        read.append(reader.read(ids)[1])
        assert reader.read(ids) == reader.expected(ids), reader.tokenizer.decode(ids)
    assert np.bincount(np.array(read) + 1, minlength=6).min() > 50  # every action, and none, came up often


def test_random_tokens_are_read_as_a_regular_expression_reads_them(reader):
    rng = np.random.default_rng(1)
    for _ in range(300):
        ids = rng.integers(0, reader.vocab_size, 40).tolist()
        assert reader.read(ids) == reader.expected(ids)


def test_bytes_that_are_no_utf8_break_a_tag_and_nothing_else(byte_reader):
    encode, end = byte_reader.tokenizer.encode, byte_reader.chat.end
    assert byte_reader.read([*encode("<action>le"), 0xFF, *encode("ft</action>"), end]) == (True, NO_ACTION)
    assert byte_reader.read([0xC3, *encode("<action>left</action>"), 0x80, 0xFF, end]) == (True, 0)


def test_a_control_token_inside_a_tag_breaks_it(reader):
    encode, chat = reader.tokenizer.encode, reader.chat
    ids = [*encode("<action>le"), chat.start, *encode("ft</action>"), chat.end]
    assert reader.read(ids) == (True, NO_ACTION)


def test_ids_beyond_the_tokenizer_spell_nothing(reader):
    rng = np.random.default_rng(2)
    spare = range(reader.tokenizer.vocab_size, reader.vocab_size)
    for reply, action in CASES:
        ids = reader.encode(reply)
        for token in spare:
            ids.insert(int(rng.integers(len(ids) + 1)), token)
        assert reader.read([*ids, reader.chat.end]) == (True, as_number(action))
    states_Q = np.arange(len(reader.next_QV))
    assert (reader.next_QV[:, list(spare)] == states_Q[:, None]).all()


def test_how_a_text_is_cut_into_tokens_does_not_matter(qwen_reader):
    """A policy need not sample the tokenizer's own cuts."""
    rng = np.random.default_rng(3)
    token_of = {}
    for token in range(qwen_reader.tokenizer.vocab_size):
        if not qwen_reader.tokenizer.is_control(token):
            token_of.setdefault(qwen_reader.tokenizer.token_bytes(token), token)
    for reply, action in CASES:
        if "THINK" in reply:
            continue
        cuts = set()
        for _ in range(20):
            ids, rest = [], reply.encode()
            while rest:
                width = rng.choice([n for n in range(1, 12) if rest[:n] in token_of and n <= len(rest)])
                ids.append(token_of[rest[:width]])
                rest = rest[width:]
            assert qwen_reader.tokenizer.decode(ids) == reply
            assert qwen_reader.read([*ids, qwen_reader.chat.end]) == (True, as_number(action))
            cuts.add(tuple(ids))
        assert len(cuts) > 5 or len(reply) < 10


def test_one_token_may_hold_several_tags():
    reader = Reader(TagTokenizer(["<action>up</action><action>left</action>", "x<action>Left </action>y", "<action>"]))
    both, padded, opening = reader.tokenizer.tag_ids.values()
    encode, end = reader.tokenizer.encode, reader.chat.end
    assert reader.read([both, end]) == (True, ACTIONS.index("up"))
    assert reader.read([padded, both, end]) == (True, ACTIONS.index("left"))
    assert reader.read([opening, *encode("look</action>"), end]) == (True, ACTIONS.index("look"))
    assert reader.read([opening, both, end]) == (True, ACTIONS.index("up"))


def test_only_stop_tokens_lead_to_a_final_state_and_they_always_do(reader):
    stops = list(reader.chat.stop_ids)
    others = np.setdiff1d(np.arange(reader.vocab_size), stops)
    going_on_Q = np.flatnonzero(~reader.final_Q)
    assert not reader.final_Q[reader.next_QV[going_on_Q][:, others]].any()
    assert reader.final_Q[reader.next_QV[going_on_Q][:, stops]].all()


def test_final_states_absorb_and_unfinished_ones_name_no_action(reader):
    final_Q = np.flatnonzero(reader.final_Q)
    assert (reader.next_QV[final_Q] == final_Q[:, None]).all()
    assert (reader.action_Q[~reader.final_Q] == NO_ACTION).all()
    assert sorted(reader.action_Q[final_Q].tolist()) == [NO_ACTION, *range(len(ACTIONS))]


def test_names_that_begin_alike_are_told_apart():
    tokenizer = load_tokenizer("byte")
    names = ("up", "upper", "do", "down", "downs")
    chat = ChatIds.of(tokenizer)
    automaton = tagged_action(tokenizer, names, chat.stop_ids, vocab_size=tokenizer.vocab_size)
    next_QV, action_Q = np.asarray(automaton.next_QV), np.asarray(automaton.action_Q)
    for number, name in enumerate((*names, "upp", "dow", "downsx")):
        state = 0
        for token in (*tokenizer.encode(f"<action>{name}</action>"), chat.end):
            state = next_QV[state, token]
        assert action_Q[state] == (number if number < len(names) else NO_ACTION)


def test_without_reasoning_tokens_nothing_is_set_apart():
    tokenizer = load_tokenizer("byte")
    chat = ChatIds.of(tokenizer)
    automaton = tagged_action(tokenizer, ACTIONS, chat.stop_ids, vocab_size=tokenizer.vocab_size)
    state = 0
    for token in (chat.think_ids[0], *tokenizer.encode("<action>up</action>"), chat.end):
        state = int(automaton.next_QV[state, token])
    assert int(automaton.action_Q[state]) == ACTIONS.index("up")


def test_a_grammar_without_a_stop_token_is_refused():
    with pytest.raises(TokenizerError, match="ends it"):
        tagged_action(load_tokenizer("byte"), ACTIONS, (), vocab_size=300)
