"""Qwen3's chat format as token ids, written message by message and never rendered again.

    <|im_start|>system\\n...<|im_end|>\\n<|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n

`ChatIds` has the pieces, `Dialogue` lays them end to end. Text between two control tokens is encoded as one, so that
the ids are those of the official template's rendering; control tokens come from here alone, and text that spells one
stays plain text.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agent.config import THINK_POLICIES
from jaxrl_agent.errors import ArgumentError, TokenizerError
from jaxrl_agent.types import TokenRow

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_TOOLS_TAIL = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
_CALL_FORM = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call as an assistant message writes it."""

    name: str
    arguments: Mapping[str, Any] | str  # text stands as it is, anything else is written as JSON


@dataclasses.dataclass(frozen=True)
class ChatIds:
    """Ids of the template's pieces for one tokenizer."""

    tokenizer: Any
    start: int  # <|im_start|>
    end: int  # <|im_end|>, sampled by the policy at the end of its reply
    stop_ids: tuple[int, ...]  # what ends a reply
    think_ids: tuple[int, int] | None  # <think>, </think>; None where the tokenizer lacks either

    @classmethod
    def of(cls, tokenizer) -> ChatIds:
        """Look the control tokens up.

        Raises:
            TokenizerError: the tokenizer lacks one that every message needs.
        """
        end = tokenizer.control_id("<|im_end|>")
        return cls(
            tokenizer=tokenizer,
            start=tokenizer.control_id("<|im_start|>"),
            end=end,
            stop_ids=(end, tokenizer.control_id("<|endoftext|>")),
            think_ids=_control_pair(tokenizer, "think"),
        )

    def join(self, *parts: str | int) -> list[int]:
        """Ids of texts and control tokens in reading order; texts that touch are encoded as one text."""
        ids: list[int] = []
        for is_text, run in itertools.groupby(parts, lambda part: isinstance(part, str)):
            touching = list(run)
            ids += self.tokenizer.encode("".join(touching)) if is_text else touching
        return ids

    @property
    def newline(self) -> list[int]:
        """The line break between two messages; it belongs to the template, not to either message."""
        return self.join("\n")

    def open(self, role: str) -> list[int]:
        """Header of a message."""
        return self.join(self.start, f"{role}\n")

    @property
    def close(self) -> list[int]:
        """End of a message that the policy did not write, with the line break after it."""
        return self.join(self.end, "\n")

    def message(self, role: str, text: str) -> list[int]:
        """A whole message that the policy did not write."""
        return self.join(self.start, f"{role}\n{text}", self.end, "\n")

    def system(self, text: str | None = None, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The first message: instructions, the tools that may be called, or both; nothing without either.

        Args:
            text: the instructions; empty ones are a message all the same.
            tools: documentation of each tool, written as JSON just as it is given.
        """
        if not tools:
            return [] if text is None else self.message("system", text)
        call, call_end = self._pair("tool_call")
        instructions = "" if text is None else f"{text}\n\n"
        docs = "\n".join(map(_json, tools))
        opening = f"system\n{instructions}{_TOOLS_HEAD}{docs}{_TOOLS_TAIL}"
        form = (call, call_end, " XML tags:\n", call, _CALL_FORM, call_end)
        return self.join(self.start, opening, *form, self.end, "\n")

    def assistant(self, text: str, calls: Sequence[ToolCall] = ()) -> list[int]:
        """A whole assistant message that the policy did not sample: an example, or a turn put in its mouth."""
        return self.join(self.start, "assistant\n", text, *self._calls(calls, after_text=bool(text)), self.end, "\n")

    def tool_result(self, text: str, *, first: bool) -> list[int]:
        """One result inside the user message that holds all results of a turn; `close` ends the message."""
        response, response_end = self._pair("tool_response")
        before = (self.start, "user\n") if first else ("\n",)
        return self.join(*before, response, f"\n{text}\n", response_end)

    def open_reply(self, *, thinking: bool) -> list[int]:
        """Header of the policy's message; without thinking, the empty block belongs to the prompt, not to the reply.

        A tokenizer without reasoning tokens has no such block, and no thinking.

        Raises:
            TokenizerError: there is to be thinking, and the tokenizer has no tokens for it.
        """
        if thinking:
            self.check_think("keep")
        header = (self.start, "assistant\n")
        if thinking or self.think_ids is None:
            return self.join(*header)
        return self.join(*header, self.think_ids[0], "\n\n", self.think_ids[1], "\n\n")

    def check_think(self, think: str) -> None:
        """Refuse a treatment of reasoning that the tokenizer has no tokens for.

        Raises:
            TokenizerError: there is to be reasoning, and the tokenizer has no <think> and </think>.
        """
        if think != "off" and self.think_ids is None:
            raise TokenizerError(
                f"think={think} needs a tokenizer with the control tokens <think> and </think>",
                value=self.tokenizer.name,
                remedy="Set config.task.think=off, or take a policy that was trained to reason.",
            )

    def without_reasoning(self, reply: Sequence[int]) -> list[int]:
        """A reply behind its last `</think>` and the line breaks that follow; all of it if there is none."""
        spoken = list(reply)
        if self.think_ids is None or self.think_ids[1] not in spoken:
            return spoken
        spoken = spoken[len(spoken) - spoken[::-1].index(self.think_ids[1]) :]
        breaks = itertools.takewhile(self._breaks_lines, spoken)
        return spoken[len(list(breaks)) :]

    def _calls(self, calls: Sequence[ToolCall], *, after_text: bool) -> list[str | int]:
        parts: list[str | int] = []
        for number, item in enumerate(calls):
            call, call_end = self._pair("tool_call")
            arguments = item.arguments if isinstance(item.arguments, str) else _json(item.arguments)
            separator = "\n" if after_text or number else ""
            parts += [separator, call, f'\n{{"name": "{item.name}", "arguments": {arguments}}}\n', call_end]
        return parts

    def _breaks_lines(self, token: int) -> bool:
        return set(self.tokenizer.token_bytes(token)) == {ord("\n")}

    def _pair(self, name: str) -> tuple[int, int]:
        pair = _control_pair(self.tokenizer, name)
        if pair is None:
            raise TokenizerError(
                f"tools need a tokenizer with the control tokens <{name}> and </{name}>",
                value=self.tokenizer.name,
                remedy="Take a policy that was trained to call tools.",
            )
        return pair


class Dialogue:
    """A dialogue as token rows that only ever grow; what the policy sampled stays in them id for id.

        system  user  open_reply  [reply]  \\n  tool results in one user message  open_reply  [reply] ...

    What closes a message is written with the next one, so that nothing stands behind the last reply. Reasoning is
    treated by name, because policies that were trained with one treatment are not comparable under another:

    - "off": an empty block in front of every reply tells the policy not to reason; it stays where it was written;
    - "keep": the policy may reason, and its reasoning stays in the context;
    - "strip_by_rows": a user message begins a new row, in which the reasoning of earlier replies is left out, as in the
      official template. Earlier replies count as sampled in the row in which they were sampled, and nowhere else.

    Args:
        chat: the template's pieces.
        think: one of the treatments.

    Raises:
        ArgumentError: there is no such treatment.
        TokenizerError: the tokenizer has no tokens for reasoning, and the treatment needs them.
    """

    def __init__(self, chat: ChatIds, *, think: str = "off"):
        if think not in THINK_POLICIES:
            raise ArgumentError(f"think must be one of {', '.join(THINK_POLICIES)}", value=think)
        chat.check_think(think)
        self.chat, self.think = chat, think
        self.rows = [TokenRow()]
        self._due: list[int] = []  # closes the last message once another one comes
        self._replies = 0
        self._awaits_reply = self._in_results = False

    @property
    def row(self) -> TokenRow:
        """The row that is being written."""
        return self.rows[-1]

    def system(self, text: str | None = None, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin with instructions, tools, or both.

        Raises:
            ArgumentError: the dialogue has begun.
        """
        if self.row.ids:
            raise ArgumentError("a system message must be the first one", value=text)
        self._write(self.chat.system(text, tools))

    def user(self, text: str) -> None:
        """Add a user message."""
        if self.think == "strip_by_rows" and not self._awaits_reply:
            self._leave_reasoning_out()
        self._write(self.chat.message("user", text))

    def assistant(self, text: str, calls: Sequence[ToolCall] = ()) -> None:
        """Add an assistant message that the policy did not sample."""
        self._write(self.chat.assistant(text, calls))

    def tool(self, text: str) -> None:
        """Add a tool's result; results in a row share one user message."""
        if self._in_results:
            self._due = []
        self._write(self.chat.tool_result(text, first=not self._in_results), due=self.chat.close, in_results=True)

    def open_reply(self) -> None:
        """Ask the policy for its next message."""
        self._write(self.chat.open_reply(thinking=self.think != "off"))
        self._awaits_reply = True

    def reply(self, ids: Sequence[int], *, sampled: bool = True) -> None:
        """Add what the policy sampled, its end token included; a reply that was cut has none and is closed for it.

        Args:
            ids: of the reply.
            sampled: False for a reply that was put in the policy's place; it counts as a turn all the same.

        Raises:
            ArgumentError: no reply was asked for, or the ids are none or go on behind an end token.
        """
        if not self._awaits_reply:
            raise ArgumentError("a reply must have been asked for", value=list(ids), remedy="Call open_reply first.")
        if not ids or any(token in self.chat.stop_ids for token in ids[:-1]):
            raise ArgumentError("a reply must have ids, and an end token at most as its last one", value=list(ids))
        self.row.append(ids, turn=self._replies if sampled else -1)
        self._replies += 1
        self._awaits_reply = False
        self._due = self.chat.newline if ids[-1] in self.chat.stop_ids else self.chat.close

    def _write(self, ids: Sequence[int], *, due: Sequence[int] = (), in_results: bool = False) -> None:
        if self._awaits_reply:
            raise ArgumentError("the policy's reply must come before the next message", remedy="Call reply first.")
        self.row.append([*self._due, *ids])
        self._due, self._in_results = list(due), in_results

    def _leave_reasoning_out(self) -> None:
        """Go on in a new row if any sampled reply of this one holds reasoning."""
        kept: list[int] = []
        for turn, run in itertools.groupby(zip(self.row.turns, self.row.ids, strict=True), lambda pair: pair[0]):
            ids = [token for _, token in run]
            kept += ids if turn < 0 else self.chat.without_reasoning(ids)
        if kept != self.row.ids:
            self.rows.append(TokenRow(kept, [-1] * len(kept)))


def _control_pair(tokenizer, name: str) -> tuple[int, int] | None:
    """Ids of `<name>` and `</name>`, None where either is no control token."""
    opening, closing = (tokenizer.control_ids.get(literal) for literal in (f"<{name}>", f"</{name}>"))
    return None if opening is None or closing is None else (opening, closing)


def _json(value: Any) -> str:
    """JSON as the official template writes it."""
    return json.dumps(value, ensure_ascii=False)
