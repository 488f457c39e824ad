"""What every tokenizer can do: ids of plain text, ids of control tokens, and the exact bytes of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agent.errors import TokenizerError

QWEN3_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""Qwen3's control tokens in the order of their ids (151,643 and up in Qwen3 itself)."""


class Tokenizer:
    """Ids of plain text, ids of control tokens, and the exact bytes of both.

    Attributes:
        name: what the tokenizer was asked for by.
        vocab_size: one more than the largest id; a model's embedding may have more rows.
        control_ids: literal of each control token -> id.
        bos_id: id that begins a text, None where the format has none.
        eos_id: id that ends a reply.
        stop_ids: every id that ends a reply, `eos_id` first.
        pad_id: filler behind a row's length; never evidence of padding, it may equal another id.
    """

    def __init__(
        self,
        name: str,
        pieces: Sequence[bytes],
        control_ids: Mapping[str, int],
        *,
        bos: str | None,
        stops: Sequence[str],
        pad: str,
    ):
        self.name = name
        self.control_ids = dict(control_ids)
        self._pieces = list(pieces)
        self._control = frozenset(self.control_ids.values())
        self.vocab_size = len(self._pieces)
        self.bos_id = None if bos is None else self.control_id(bos)
        self.stop_ids = tuple(dict.fromkeys(self.control_id(stop) for stop in stops))
        self.eos_id = self.stop_ids[0]
        self.pad_id = self.control_id(pad)

    def encode(self, text: str) -> list[int]:
        """Turn plain text into ids; text that spells a control token stays text.

        Lone surrogates, which no UTF-8 text can hold, are read as question marks.
        """
        raise NotImplementedError

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """Turn ids into text; bytes that are no valid UTF-8 become U+FFFD.

        Args:
            ids: token ids, control tokens included.
            skip_control: leave control tokens out instead of writing their literals.
        """
        kept = (token for token in ids if not (skip_control and self.is_control(token)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; of a control token, the bytes of its literal.

        Ids that stand for nothing add nothing: gaps of the vocabulary, and rows that pad a model's embedding, which an
        untrained model may well sample.

        Raises:
            TokenizerError: the id is negative.
        """
        if token < 0:
            raise TokenizerError("a token id must not be negative", value=token)
        return self._pieces[token] if token < self.vocab_size else b""

    def is_control(self, token: int) -> bool:
        """Tell whether an id is a control token."""
        return token in self._control

    def control_id(self, name: str) -> int:
        """Return the id of a control token.

        Raises:
            TokenizerError: the vocabulary has no such control token.
        """
        if name not in self.control_ids:
            known = ", ".join(self.control_ids)
            raise TokenizerError(
                f"{self.name!r} has no such control token",
                value=name,
                remedy=f"It has: {known or 'none'}. Another one may do (config.task.tokenizer).",
            )
        return self.control_ids[name]
