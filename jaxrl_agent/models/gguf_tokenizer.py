"""Tokenizers of GGUF files, written as the files of a Hugging Face tokenizer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jaxrl_agent.errors import TokenizerError, WeightsError
from jaxrl_agent.models.gguf_file import read_gguf

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # token types
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


# How text is cut before merging, by llama.cpp's name for it: (normalizer, pre-tokenizer) of the published tokenizers.
_CUTS = {
    "gpt-2": (None, _byte_level(use_regex=True)),
    "smollm": (None, _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))),
    "qwen2": (
        {"type": "NFC"},
        _sequence(
            {"type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated", "invert": False},
            _byte_level(use_regex=False),
        ),
    ),
}


def tokenizer_files(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Read a GGUF file's tokenizer.

    Returns:
        Contents of `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

    Raises:
        TokenizerError: the file cannot be read, or its tokenizer is of another kind.
    """
    try:
        metadata = read_gguf(path).metadata
    except WeightsError as error:
        raise TokenizerError(error.rule, value=str(path), remedy=error.remedy) from error
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    _refuse_other_kinds(ggml)
    family = metadata.get("general.architecture")
    ids = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
    special = {name: ggml[key] for name, key in ids.items() if key in ggml}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{family}.context_length"),
        "chat_template": metadata.get("tokenizer.chat_template"),
        **{f"{name}_token": ggml["tokens"][token] for name, token in special.items()},
    }
    generation = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}
    return {
        "tokenizer.json": _spec(ggml),
        "tokenizer_config.json": {name: value for name, value in config.items() if value is not None},
        "generation_config.json": generation,
    }


def _refuse_other_kinds(ggml: Mapping[str, Any]) -> None:
    needed = ("model", "tokens", "merges", "token_type")
    missing = [f"tokenizer.ggml.{name}" for name in needed if name not in ggml]
    if "model" in ggml and ggml["model"] != "gpt2":
        raise TokenizerError(
            "the tokenizer of a GGUF file must be byte-level BPE (gpt2)",
            value=ggml["model"],
            remedy="Take the model's Hugging Face folder.",
        )
    if missing:
        raise TokenizerError("a GGUF file must hold its tokenizer", value=f"without {', '.join(missing)}")
    if ggml.get("pre") not in _CUTS:
        raise TokenizerError(
            f"tokenizer.ggml.pre must be one of {', '.join(_CUTS)}",
            value=ggml.get("pre"),
            remedy="Name the model's own tokenizer in config.task.tokenizer (a folder or a hub name).",
        )
    if ggml.get("add_bos_token"):
        raise TokenizerError("texts that begin with a token of their own are not implemented", value="add_bos_token")


def _spec(ggml: Mapping[str, Any]) -> dict[str, Any]:
    typed = list(enumerate(zip(ggml["tokens"], ggml["token_type"], strict=True)))
    added = [
        {"id": index, "content": token, "special": kind == _CONTROL}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, (token, kind) in typed
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    normalizer, cut = _CUTS[ggml["pre"]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": cut,
        "post_processor": _byte_level(use_regex=False),
        "decoder": _byte_level(use_regex=False),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            # Tokens that pad the vocabulary to a round size spell nothing.
            "vocab": {token: index for index, (token, kind) in typed if kind != _UNUSED},
            "merges": [merge.split(" ") for merge in ggml["merges"]],
        },
    }
