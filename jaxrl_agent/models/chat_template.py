"""Qwen3's chat format as token ids, written message by message and never rendered again.

    <|im_start|>system\\n...<|im_end|>\\n<|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n

Control tokens come from here alone: text that spells one stays plain text.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ChatIds:
    """Ids of the template's pieces for one tokenizer."""

    tokenizer: object
    start: int  # <|im_start|>
    end: int  # <|im_end|>, sampled by the policy at the end of its reply
    stop_ids: tuple[int, ...]  # what ends a reply
    think_ids: tuple[int, int]  # <think>, </think>

    @classmethod
    def of(cls, tokenizer) -> ChatIds:
        """Look the control tokens up.

        Raises:
            TokenizerError: the tokenizer lacks one of them.
        """
        end = tokenizer.control_id("<|im_end|>")
        return cls(
            tokenizer=tokenizer,
            start=tokenizer.control_id("<|im_start|>"),
            end=end,
            stop_ids=(end, tokenizer.control_id("<|endoftext|>")),
            think_ids=(tokenizer.control_id("<think>"), tokenizer.control_id("</think>")),
        )

    @property
    def newline(self) -> list[int]:
        """The line break between two messages; it belongs to the template, not to either message."""
        return self.tokenizer.encode("\n")

    def open(self, role: str) -> list[int]:
        """Header of a message."""
        return [self.start, *self.tokenizer.encode(f"{role}\n")]

    @property
    def close(self) -> list[int]:
        """End of a message that the policy did not write, with the line break after it."""
        return [self.end, *self.newline]

    def message(self, role: str, text: str) -> list[int]:
        """A whole message that the policy did not write."""
        return [*self.open(role), *self.tokenizer.encode(text), *self.close]

    def open_reply(self, *, thinking: bool) -> list[int]:
        """Header of the policy's message; without thinking, the empty block belongs to the prompt, not to the reply."""
        if thinking:
            return self.open("assistant")
        empty_block = [self.think_ids[0], *self.tokenizer.encode("\n\n"), self.think_ids[1]]
        return [*self.open("assistant"), *empty_block, *self.tokenizer.encode("\n\n")]
