"""Text to token ids and back, with the line between text and control tokens kept sharp.

`encode` turns plain text into ids and never yields a control token, whatever the text says: `<|im_end|>` in an
observation is ten ordinary characters. Control tokens are asked for by name (`control_id`) and put in by whoever
owns the protocol, so that an environment or a user can not forge a turn.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxrl_agent.errors import TokenizerError

LAKE_CELLS = tuple(f"{column}{row}" for row in "1234" for column in "abcd")
"""Cell names in the order of the environment's states: letter = column, digit = row, both from the top left."""

LAKE_ACTIONS = ("left", "down", "right", "up", "look")
"""Words of the actions in the order of the environment's action numbers."""

LAKE_LOOKS = tuple(
    "holes-" + ("".join(letter for bit, letter in enumerate("LDRU") if pattern >> bit & 1) or "none")
    for pattern in range(16)
)
"""Results of a look, indexed by a 4-bit pattern: bit 0 a hole to the left, 1 below, 2 to the right, 3 above."""

_LAKE_CONTROL = ("<pad>", "<bos>", "<eos>", "<unk>")
_LAKE_NUMBERS = tuple(str(number) for number in range(1, 17))
LAKE_WORDS = (
    *_LAKE_CONTROL,
    *("goal", "turns", ":", ".", "-"),
    *LAKE_ACTIONS,
    *LAKE_CELLS,
    *_LAKE_NUMBERS,
    *LAKE_LOOKS,
)
"""The 62 words of the small FrozenLake models; a word's id is its place."""

QWEN3_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""Qwen3's control tokens in the order of their ids (151,643 and up in Qwen3 itself)."""

# Tokens that end a reply in common chat formats; those that a vocabulary has are always among the stop ids.
_TURN_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>", "<eos>")


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
                f"{self.name!r} has no such control token", value=name, remedy=f"It has: {known or 'none'}."
            )
        return self.control_ids[name]


class ByteTokenizer(Tokenizer):
    """One id a byte of UTF-8 (ids 0 to 255), then Qwen3's control tokens: chat formats without a vocabulary file."""

    def __init__(self, name: str = "byte"):
        pieces = [bytes([byte]) for byte in range(256)] + [literal.encode() for literal in QWEN3_CONTROL]
        control_ids = {literal: 256 + index for index, literal in enumerate(QWEN3_CONTROL)}
        stops = ("<|im_end|>", "<|endoftext|>")
        super().__init__(name, pieces, control_ids, bos=None, stops=stops, pad="<|endoftext|>")

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`."""
        return list(text.encode("utf-8", errors="replace"))


class WordTokenizer(Tokenizer):
    """A closed list of words joined by blanks; an unknown word is an error, not `<unk>`.

    Each word adds a blank and itself, so the bytes of a sequence are its text behind one leading blank.
    """

    def __init__(self, name: str, words: Sequence[str], control: Sequence[str]):
        self._ids = {word: index for index, word in enumerate(words) if word not in control}
        pieces = [f" {word}".encode() for word in words]
        control_ids = {word: list(words).index(word) for word in control}
        super().__init__(name, pieces, control_ids, bos="<bos>", stops=("<eos>",), pad="<pad>")

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of `text`.

        Raises:
            TokenizerError: a word is not in the list, or is the literal of a control token.
        """
        return [self._word_id(word) for word in text.split()]

    def decode(self, ids: Iterable[int], *, skip_control: bool = False) -> str:
        """Return the words joined by single blanks."""
        return super().decode(ids, skip_control=skip_control).removeprefix(" ")

    def _word_id(self, word: str) -> int:
        if word in self._ids:
            return self._ids[word]
        if word in self.control_ids:
            remedy = f"It is a control token: put control_id({word!r}) in where the protocol wants it."
        else:
            nearest = difflib.get_close_matches(word, self._ids, n=1, cutoff=0.0)
            remedy = f"The nearest word is {nearest[0]!r}."
        raise TokenizerError(f"{self.name!r} knows {len(self._ids)} words only", value=word, remedy=remedy)


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


def load_tokenizer(path_or_name: str | Path) -> Tokenizer:
    """Load a tokenizer; a second call with the same argument returns the same object.

    Args:
        path_or_name: `byte`, `lake_words`, a folder (or `tokenizer.json`) of a Hugging Face tokenizer, or its name
            on the hub.

    Raises:
        TokenizerError: nothing is found there, or it can not be read.
    """
    return _load(str(path_or_name))


def tokenizer_folder(name: str) -> Path | None:
    """Find the folder of a tokenizer's files, None for an embedded one; TokenizerError if nothing is there."""
    if name in _EMBEDDED:
        return None
    path = Path(name).expanduser()
    folder = path.parent if path.name == "tokenizer.json" else path
    if folder.is_dir():
        return folder
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise TokenizerError("a tokenizer must be an embedded one, a folder or a hub name", value=name, remedy=_REMEDY)
    return _fetch(name)


@functools.cache
def _load(name: str) -> Tokenizer:
    folder = tokenizer_folder(name)
    return _EMBEDDED[name]() if folder is None else _load_folder(name, folder)


_EMBEDDED = {"byte": ByteTokenizer, "lake_words": lambda: WordTokenizer("lake_words", LAKE_WORDS, _LAKE_CONTROL)}


_REMEDY = (
    "Give 'byte' or 'lake_words', an existing folder with tokenizer.json, or a hub name such as Qwen/Qwen3-0.6B "
    "(fetched once; without a network, fetch it elsewhere and give the folder)."
)


def _fetch(name: str) -> Path:
    """Fetch a tokenizer's files from the hub, or find them in the local cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.model", "merges.txt", "vocab.txt"]))
    except Exception as error:  # an HTTP, cache or offline error, each of another library: all mean the same here
        raise TokenizerError("a tokenizer must be found on the hub", value=name, remedy=_REMEDY) from error


def _load_folder(name: str, folder: Path) -> Tokenizer:
    config = _read_json(folder / "tokenizer_config.json")
    spec = _read_json(folder / "tokenizer.json") or _convert(name, folder)
    stop_ids = _read_json(folder / "generation_config.json").get("eos_token_id") or []
    return HFTokenizer(name, spec, config, [stop_ids] if isinstance(stop_ids, int) else stop_ids)


def _convert(name: str, folder: Path) -> dict:
    """Read a folder in one of the formats before `tokenizer.json`, which only transformers knows."""
    from transformers import AutoTokenizer

    try:
        return json.loads(AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer.to_str())
    except Exception as error:  # whatever a reader of half a dozen formats raises
        raise TokenizerError("a tokenizer's folder must hold its files", value=name, remedy=_REMEDY) from error


def _read_json(path: Path) -> dict:
    """Read a JSON object; an absent file is an empty one."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(
            f"{path.name} must be valid JSON", value=str(path), remedy="Fetch the file again; it may be cut short."
        ) from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path.name} must hold a JSON object", value=str(path))
    return content


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
