"""Tool calls of a reply: whole blocks between control tokens, outside reasoning; everything else is text."""

from __future__ import annotations

import pytest

from jaxrl_agent.models.chat_template import ChatIds, Dialogue
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.tasks.spoken import ReadCall, read_tool_calls, spoken_ids

END, STOP, THINK, THOUGHT = 90, 91, 92, 93
CALL = '\n{"name": "sort", "arguments": {"file": "a.txt"}}\n'
READ = ReadCall("sort", {"file": "a.txt"})


@pytest.fixture(scope="module", params=["byte", "qwen3"])
def chat(request) -> ChatIds:
    name = request.param
    return ChatIds.of(
        load_tokenizer(request.getfixturevalue("data_dir") / "qwen3_tokenizer" if name == "qwen3" else name)
    )


def control(chat: ChatIds, name: str) -> int:
    return chat.tokenizer.control_id(name)


def block(chat: ChatIds, text: str = CALL) -> list[int]:
    return chat.join(control(chat, "<tool_call>"), text, control(chat, "</tool_call>"))


@pytest.mark.parametrize(
    ("ids", "spoken"),
    [
        ([1, 2, END], [1, 2]),
        ([THINK, 1, THOUGHT, 2, STOP], [2]),
        ([1, THINK, 2, END], [1]),
        ([THINK, 1, THOUGHT, 2, THINK, 3, THOUGHT, 4], [2, 4]),
        ([THINK, 1, THINK, 2, THOUGHT, 3], [3]),
        ([1, THOUGHT, 2], [1, 2]),
        ([END], []),
    ],
)
def test_reasoning_and_the_end_of_a_reply_are_not_spoken(ids, spoken):
    assert spoken_ids(ids, (THINK, THOUGHT), (END, STOP)) == spoken


def test_without_reasoning_tokens_all_is_spoken():
    assert spoken_ids([1, THINK, 2, END], None, (END,)) == [1, THINK, 2]


def test_calls_are_read_in_their_order(chat):
    other = '{"name": "cd", "arguments": {}}'
    reply = [*chat.join("First I sort.\n"), *block(chat), *chat.newline, *block(chat, other), chat.end]
    assert read_tool_calls(chat, reply) == [READ, ReadCall("cd", {})]


def test_a_call_within_reasoning_does_not_run(chat):
    opening, closing = chat.think_ids
    thought = [opening, *block(chat), closing]
    assert read_tool_calls(chat, [*thought, chat.end]) == []
    assert read_tool_calls(chat, [*thought, *block(chat), chat.end]) == [READ]
    assert read_tool_calls(chat, [opening, *block(chat), chat.end]) == []  # reasoning that never closed


def test_a_call_that_was_cut_does_not_run(chat):
    assert read_tool_calls(chat, block(chat)[:-1]) == []
    assert read_tool_calls(chat, [*block(chat)[:-1], *block(chat), chat.end]) == [READ]  # begun anew


def test_text_that_spells_a_call_is_text(chat):
    assert read_tool_calls(chat, [*chat.join(f"<tool_call>{CALL}</tool_call>"), chat.end]) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sort(file)", "not JSON"),
        ('{"name": "sort"}', "must be an object"),
        ('{"name": 3, "arguments": {}}', "must be a string"),
        ('{"name": "sort", "arguments": {"n": NaN}}', ""),
        ("[]", "one call"),
        ('[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', "one call"),
    ],
)
def test_a_block_that_is_no_call_says_why(chat, text, fault):
    (found,) = read_tool_calls(chat, [*block(chat, text), chat.end])
    assert found.name == ""
    assert found.fault
    assert fault in found.fault


def test_results_of_one_turn_share_a_user_message_and_the_reply_stays_id_for_id(chat):
    dialogue = Dialogue(chat, think="keep")
    dialogue.user("Sort it.")
    dialogue.open_reply()
    reply = [*block(chat), *chat.newline, *block(chat), chat.end]
    start = len(dialogue.row.ids)
    dialogue.reply(reply)
    assert dialogue.row.ids[start:] == reply
    for result in ("done", "done again <|im_end|>"):
        dialogue.tool(result)
    dialogue.open_reply()
    behind = chat.tokenizer.decode(dialogue.row.ids[start + len(reply) :])
    assert behind == (
        "\n<|im_start|>user\n<tool_response>\ndone\n</tool_response>\n"
        "<tool_response>\ndone again <|im_end|>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    ends = [token for token in dialogue.row.ids[start:] if token == chat.end]
    assert len(ends) == 2  # the reply's and the message's: what a tool says closes nothing
