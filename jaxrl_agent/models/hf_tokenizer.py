"""Tokenizers in Hugging Face's `tokenizer.json` format: byte-level BPE, or SentencePiece."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence

from jaxrl_agent.errors import TokenizerError
from jaxrl_agent.models.tokenizer_base import Tokenizer

# Tokens that end a reply in common chat formats; those that a vocabulary has are always among the stop ids.
_TURN_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>", "<eos>")


class HFTokenizer(Tokenizer):
    """A tokenizer in Hugging Face's `tokenizer.json` format: byte-level BPE, or SentencePiece.

    The added tokens are taken out of the encoder, which is what makes their literals ordinary text; it is not enough
    to switch "special" tokens off, since `<tool_call>` and `<think>` are not marked special. Text comes back as the
    tokenizer's own normalizer left it (Qwen3's: Unicode NFC).

    Args:
        name: what the tokenizer was asked for by.
        spec: contents of `tokenizer.json`.
        config: contents of `tokenizer_config.json`, for the names of the special tokens.
        stop_ids: ids that the model's generation settings end a reply with.

    Raises:
        TokenizerError: the kind is another one, or no token ends a reply.
    """

    def __init__(self, name: str, spec: dict, config: Mapping[str, object], stop_ids: Sequence[int] = ()):
        # Runs of blanks are added tokens in some vocabularies; they are text all the same.
        added = spec.get("added_tokens") or []
        text_tokens = [entry for entry in added if entry["content"].isspace()]
        control_ids = {entry["content"]: entry["id"] for entry in added if not entry["content"].isspace()}
        self._encoder = _plain_encoder(name, spec, text_tokens)
        literals = {**control_ids, **{entry["content"]: entry["id"] for entry in text_tokens}}
        pieces = _piece_bytes(name, self._encoder.get_vocab(with_added_tokens=False), spec, literals)

        bos, eos, pad = (_special_literal(config.get(key)) for key in ("bos_token", "eos_token", "pad_token"))
        by_id = {index: literal for literal, index in control_ids.items()}
        stops = [eos, *(by_id.get(index) for index in stop_ids), *_TURN_ENDS]
        stops = [literal for literal in stops if literal in control_ids]
        if not stops:
            raise TokenizerError(
                f"the tokenizer {name!r} must have a token that ends a reply",
                value=eos,
                remedy="Set eos_token in tokenizer_config.json to one of its added tokens.",
            )
        super().__init__(
            name,
            pieces,
            control_ids,
            bos=bos if bos in control_ids else None,
            stops=stops,
            pad=pad if pad in control_ids else stops[0],
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without a leading or closing token.

        Raises:
            TokenizerError: the vocabulary spells a control token by ordinary merges.
        """
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        ids = self._encoder.encode(clean, add_special_tokens=False).ids
        if not self._control.isdisjoint(ids):
            forged = next(token for token in ids if token in self._control)
            raise TokenizerError(
                f"plain text must not yield control tokens of {self.name!r}",
                value=self.token_bytes(forged).decode(),
                remedy="This vocabulary can not tell the two apart: take the literal out of the text.",
            )
        return ids


def _special_literal(entry: object) -> str | None:
    """Read a special token's literal, which configurations write as text or as an object."""
    return entry.get("content") if isinstance(entry, Mapping) else entry


def _plain_encoder(name: str, spec: dict, text_tokens: list[dict]):
    """Build the encoder that knows no control token."""
    from tokenizers import Tokenizer as Encoder

    plain = {**spec, "added_tokens": text_tokens, "truncation": None, "padding": None}
    try:
        encoder = Encoder.from_str(json.dumps(plain))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError("tokenizer.json must be readable", value=name, remedy=str(error)) from error
    moved = [entry["content"] for entry in text_tokens if encoder.token_to_id(entry["content"]) != entry["id"]]
    if moved:
        raise TokenizerError(
            f"added tokens of blanks in {name!r} must keep their ids without the control tokens before them",
            value=moved,
            remedy="This vocabulary is not supported.",
        )
    return encoder


def _piece_bytes(name: str, vocabulary: Mapping[str, int], spec: dict, literals: Mapping[str, int]) -> list[bytes]:
    """Spell every id out in bytes; unused ids are empty."""
    kinds = _component_kinds(spec.get("decoder"))
    if "ByteLevel" in kinds:
        spell = _byte_level_bytes
    elif kinds & {"ByteFallback", "Metaspace"}:
        spell = _sentencepiece_bytes
    else:
        raise TokenizerError(
            "only byte-level BPE and SentencePiece tokenizers tell which bytes a token stands for",
            value=sorted(kinds),
            remedy=f"{name!r} can not be used.",
        )
    pieces = [b""] * (1 + max((*vocabulary.values(), *literals.values())))
    for piece, index in vocabulary.items():
        if piece not in literals:
            pieces[index] = spell(piece)
    for literal, index in literals.items():
        pieces[index] = literal.encode()
    return pieces


def _component_kinds(component: dict | None) -> set[str]:
    """List the kinds that a decoder is made of."""
    if component is None:
        return set()
    return {component["type"]}.union(*map(_component_kinds, component.get("decoders", [])))


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Invert GPT-2's byte alphabet: printable bytes stand for themselves, the others for U+0100 and up in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _byte_level_bytes(piece: str) -> bytes:
    alphabet = _byte_alphabet()
    return bytes(alphabet[char] for char in piece)


def _sentencepiece_bytes(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()
