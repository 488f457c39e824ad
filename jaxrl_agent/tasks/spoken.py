"""What a reply says outside its reasoning, and the tool calls in it; both found by token ids, never by spelling.

A call is a whole block between the two control tokens `<tool_call>` and `</tool_call>`. Text that only spells them is
text, a block inside reasoning is a thought, and a block that was cut is none: neither of them runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.sandbox.inside.tools import Malformed, parse_calls


@dataclasses.dataclass(frozen=True)
class ReadCall:
    """One block of a reply.

    Attributes:
        name: the tool; "" for a block that is no call.
        arguments: JSON.
        fault: why it is no call, for the model to read; "" for one that is.
    """

    name: str
    arguments: Mapping[str, Any]
    fault: str = ""


def read_tool_calls(chat: ChatIds, reply: Sequence[int]) -> list[ReadCall]:
    """Read the calls of a reply, in order; a block that is no call is among them, with its fault.

    Args:
        chat: the template's pieces.
        reply: sampled ids.

    Raises:
        TokenizerError: the tokenizer has no control tokens for calls.
    """
    opening, closing = (chat.tokenizer.control_id(name) for name in ("<tool_call>", "</tool_call>"))
    calls: list[ReadCall] = []
    block: list[int] | None = None
    for token in spoken_ids(reply, chat.think_ids, chat.stop_ids):
        if token == opening:
            block = []
        elif token == closing:
            calls += [] if block is None else [_read(chat.tokenizer.decode(block))]
            block = None
        elif block is not None:
            block.append(token)
    return calls


def _read(text: str) -> ReadCall:
    try:
        (name, arguments), *more = parse_calls(text)
    except Malformed as error:
        return ReadCall("", {}, str(error))
    except ValueError:  # an empty list
        return ReadCall("", {}, "a block must hold one call")
    return ReadCall("", {}, "a block must hold one call") if more else ReadCall(name, arguments)


def spoken_ids(ids: Sequence[int], think_ids: tuple[int, int] | None, stop_ids: Sequence[int]) -> list[int]:
    """Leave out reasoning and the end of a reply; reasoning that was not closed hides all that follows it."""
    opening, closing = think_ids or (None, None)
    spoken, thinking = [], False
    for token in ids:
        if token == opening:
            thinking = True
        elif token == closing:
            thinking = False
        elif not thinking and token not in stop_ids:
            spoken.append(token)
    return spoken
