"""Text to token ids and back, with the line between text and control tokens kept sharp.

`encode` turns plain text into ids and never yields a control token, whatever the text says: `<|im_end|>` in an
observation is ten ordinary characters. Control tokens are asked for by name (`control_id`) and put in by whoever
owns the protocol, so that an environment or a user can not forge a turn.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxrl_agent.errors import TokenizerError
from jaxrl_agent.models.gguf_file import is_gguf
from jaxrl_agent.models.gguf_tokenizer import tokenizer_files
from jaxrl_agent.models.hf_tokenizer import HFTokenizer
from jaxrl_agent.models.tokenizer_base import QWEN3_CONTROL, Tokenizer

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


def load_tokenizer(path_or_name: str | Path) -> Tokenizer:
    """Load a tokenizer; a second call with the same argument returns the same object.

    Args:
        path_or_name: `byte`, `code_bpe`, `lake_words`, a folder (or `tokenizer.json`) of a Hugging Face tokenizer, a
            `.gguf` file, or a name on the hub.

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
    if is_gguf(name):
        return _load_files(name, *tokenizer_files(name).values())
    folder = tokenizer_folder(name)
    return _EMBEDDED[name]() if folder is None else _load_folder(name, folder)


def _code_bpe() -> Tokenizer:
    """Byte-level BPE for small programs, with Qwen3's control tokens; digits, operators and quotes stay alone."""
    spec = _read_json(Path(__file__).parent / "data" / "code_bpe.json")
    return HFTokenizer("code_bpe", spec, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})


_EMBEDDED = {
    "byte": ByteTokenizer,
    "code_bpe": _code_bpe,
    "lake_words": lambda: WordTokenizer("lake_words", LAKE_WORDS, _LAKE_CONTROL),
}


_REMEDY = (
    "Give 'byte', 'code_bpe' or 'lake_words', an existing folder with tokenizer.json, a .gguf file, or a hub name such "
    "as Qwen/Qwen3-0.6B (fetched once; without a network, fetch it elsewhere and give the folder)."
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
    return _load_files(name, spec, config, _read_json(folder / "generation_config.json"))


def _load_files(name: str, spec: dict, config: dict, generation: dict) -> Tokenizer:
    """Make a tokenizer of the contents of tokenizer.json, tokenizer_config.json and generation_config.json."""
    stop_ids = generation.get("eos_token_id")
    stop_ids = [] if stop_ids is None else stop_ids  # 0 is an id as well
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
