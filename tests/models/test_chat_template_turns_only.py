"""Chat formats of tokenizers without tokens for reasoning or tools: turns alone, and the rest is refused."""

from __future__ import annotations

import pytest

from jaxrl_agent.errors import TokenizerError
from jaxrl_agent.models.chat_template import ChatIds, Dialogue, ToolCall
from jaxrl_agent.models.tokenizer import QWEN3_CONTROL, ByteTokenizer


@pytest.fixture
def plain_chat() -> ChatIds:
    """A chat format that knows turns and nothing else, as SmolLM2's."""
    tokenizer = ByteTokenizer("plain")
    tokenizer.control_ids = {name: tokenizer.control_ids[name] for name in QWEN3_CONTROL[:3]}
    return ChatIds.of(tokenizer)


def test_without_reasoning_tokens_a_reply_begins_right_behind_its_header(plain_chat):
    assert plain_chat.think_ids is None
    dialogue = Dialogue(plain_chat)
    dialogue.user("go")
    dialogue.open_reply()
    assert plain_chat.tokenizer.decode(dialogue.row.ids) == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    reply = plain_chat.join("<think>x</think>\n\ny")
    assert plain_chat.without_reasoning(reply) == reply


@pytest.mark.parametrize("think", ["keep", "strip_by_rows"])
def test_reasoning_without_tokens_for_it_is_refused(plain_chat, think):
    with pytest.raises(TokenizerError, match=rf"think={think} needs .*<think> and </think>; got 'plain'.*think=off"):
        Dialogue(plain_chat, think=think)
    with pytest.raises(TokenizerError, match="<think>"):
        plain_chat.open_reply(thinking=True)


def test_one_reasoning_token_is_none():
    tokenizer = ByteTokenizer("half")
    del tokenizer.control_ids["</think>"]
    assert ChatIds.of(tokenizer).think_ids is None


def test_tools_without_tokens_for_them_are_refused(plain_chat):
    for write in (
        lambda: plain_chat.system("x", [{"name": "f"}]),
        lambda: plain_chat.assistant("", [ToolCall("f", {})]),
        lambda: plain_chat.tool_result("1", first=True),
    ):
        with pytest.raises(TokenizerError, match=r"tools need .*<tool_.*; got 'plain'"):
            write()
