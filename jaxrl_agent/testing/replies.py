"""Replies read on the host, by other means than the device's automaton: what its answers are compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxrl_agent.models.tokenizer import ByteTokenizer

NO_ACTION = -1


def read_words(tokenizer, actions: Sequence[str], ids: Sequence[int]) -> tuple[bool, int]:
    """Read `<action> .` from its text.

    Returns:
        Whether the reply is over, and the action's number, -1 if it names none.
    """
    known = {f"{name} .": number for number, name in enumerate(actions)}
    over = len(ids) == 2
    return over, known.get(tokenizer.decode(ids), NO_ACTION) if over else NO_ACTION


def read_tagged(
    tokenizer, actions: Sequence[str], stop_ids: Sequence[int], think_ids: tuple[int, int] | None, ids: Sequence[int]
) -> tuple[bool, int]:
    """Read the first `<action>NAME</action>` outside of reasoning, up to the first stop token, by regular expression.

    Returns:
        Whether the reply is over, and the action's number, -1 if it names none or is not over.
    """
    end = next((place for place, token in enumerate(ids) if token in stop_ids), None)
    if end is None:
        return False, NO_ACTION
    names = [name.encode() for name in actions]
    tag = re.compile(rb"<action>[ \t\r\n]*(" + b"|".join(names) + rb")[ \t\r\n]*</action>", re.IGNORECASE)
    for segment in _spoken(ids[:end], think_ids):
        if found := tag.search(b"".join(map(tokenizer.token_bytes, segment))):
            return True, names.index(found[1].lower())
    return True, NO_ACTION


def _spoken(ids: Sequence[int], think_ids: tuple[int, int] | None) -> list[list[int]]:
    """Cut a reply into what stands outside of reasoning; reasoning that is never closed runs to the end."""
    opening, closing = think_ids or (None, None)
    segments, thinking = [[]], False
    for token in ids:
        if thinking:
            thinking = token != closing
        elif token == opening:
            thinking = True
            segments.append([])
        else:
            segments[-1].append(token)
    return segments


class TagTokenizer(ByteTokenizer):
    """Bytes, control tokens, and one token for each whole tag, so that a reply can be as short as two tokens.

    Text is encoded byte by byte; only a policy writes the tags' tokens.
    """

    def __init__(self, tags: Sequence[str]):
        super().__init__("tags")
        self.tag_ids = {tag: self.vocab_size + number for number, tag in enumerate(tags)}
        self._pieces += [tag.encode() for tag in tags]
        self.vocab_size = len(self._pieces)
