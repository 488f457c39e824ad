"""Tokenizers of GGUF files cut and merge text as the tokenizers that they were made from."""

from __future__ import annotations

import json

import pytest

from jaxrl_agent.errors import TokenizerError
from jaxrl_agent.models.gguf_tokenizer import tokenizer_files
from jaxrl_agent.models.tokenizer import load_tokenizer

TEXTS = (
    *("", " ", "Hello, world! don't I'LL", "naïve café 東京 🙂  x\n\n", "def f(x):\n\treturn x**2  # 12345\r\n"),
    *("e\u0301 \u212b", "a  1\n 2\n\n3", "½²２", "<|im_end|><think>", "\x00\u2028\u00a0x"),
)
BYTES = "!\"#$%&'()*+,-./0123456789:;<=>?@[]^_`abcdefghijklmnopqrstuvwxyz{|}~ĠĊ"
SMALL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "ab", "ĠĠ", "Ġ1", "12", "[PAD]"],
    "tokenizer.ggml.token_type": [3, 3, 3, *([1] * len(BYTES)), 1, 1, 1, 1, 5],
    "tokenizer.ggml.merges": ["a b", "Ġ Ġ", "Ġ 1", "1 2"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
    "general.architecture": "llama",
    "llama.context_length": 64,
}


def spelled(tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(token).decode(errors="replace") for token in tokenizer.encode(text)]


def test_the_vocabulary_control_tokens_and_endings_are_read(write_gguf):
    tokenizer = load_tokenizer(write_gguf(SMALL))
    assert tokenizer.control_ids == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert (tokenizer.stop_ids, tokenizer.bos_id, tokenizer.pad_id) == ((2, 0), 1, 0)
    assert tokenizer.decode(tokenizer.encode("ab a\n<|im_end|>")) == "ab a\n<|im_end|>"
    assert tokenizer.token_bytes(len(SMALL["tokenizer.ggml.tokens"]) - 1) == b""


def test_smollm_cuts_every_digit_off_before_anything_merges(write_gguf):
    tokenizer = load_tokenizer(write_gguf(SMALL))
    assert spelled(tokenizer, "ab 12  1") == ["ab", " ", "1", "2", "  ", "1"]


def test_gpt2_keeps_a_blank_with_the_number_behind_it(write_gguf):
    tokenizer = load_tokenizer(write_gguf(SMALL | {"tokenizer.ggml.pre": "gpt-2"}))
    assert spelled(tokenizer, "ab 12  1") == ["ab", " 1", "2", " ", " 1"]


def test_qwen3s_own_tokenizer_comes_back(write_gguf, data_dir):
    folder = data_dir / "qwen3_tokenizer"
    spec = json.loads((folder / "tokenizer.json").read_text())
    words = {index: (token, 1) for token, index in spec["model"]["vocab"].items()}
    words |= {entry["id"]: (entry["content"], 3 if entry["special"] else 4) for entry in spec["added_tokens"]}
    metadata = {
        "general.architecture": "qwen3",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [words[index][0] for index in range(len(words))],
        "tokenizer.ggml.token_type": [words[index][1] for index in range(len(words))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spec["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 151645,
        "tokenizer.ggml.padding_token_id": 151643,
        "tokenizer.ggml.add_bos_token": False,
    }
    found, expected = load_tokenizer(write_gguf(metadata)), load_tokenizer(folder)
    assert [found.encode(text) for text in TEXTS] == [expected.encode(text) for text in TEXTS]
    assert found.control_ids == expected.control_ids
    assert (found.stop_ids, found.pad_id, found.bos_id) == (expected.stop_ids, expected.pad_id, expected.bos_id)


def test_transformers_reads_the_written_files(write_gguf, tmp_path):
    transformers = pytest.importorskip("transformers")
    path = write_gguf(SMALL)
    for name, content in tokenizer_files(path).items():
        (tmp_path / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    text = "ab 12  1<|im_end|>"
    assert theirs.encode("ab 12  1") == load_tokenizer(path).encode("ab 12  1")
    assert theirs.encode(text)[-1] == theirs.eos_token_id == 2
    assert theirs.chat_template == "{{ messages }}"
    assert theirs.model_max_length == 64
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "byte-level BPE"),
        ({"tokenizer.ggml.pre": "tekken"}, "one of gpt-2, smollm, qwen2; got 'tekken'.*config.task.tokenizer"),
        ({"tokenizer.ggml.merges": None}, r"hold its tokenizer.*tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.add_bos_token": True}, "add_bos_token"),
    ],
)
def test_another_kind_of_tokenizer_is_refused(write_gguf, change, message):
    metadata = {key: value for key, value in (SMALL | change).items() if value is not None}
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write_gguf(metadata))


def test_an_absent_or_damaged_file_is_a_tokenizers_fault(tmp_path):
    with pytest.raises(TokenizerError, match="must exist"):
        load_tokenizer(tmp_path / "none.gguf")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    with pytest.raises(TokenizerError, match="whole"):
        load_tokenizer(tmp_path / "cut.gguf")
