"""The embedded tokenizer of small programs: exact, short where it was trained, and constants in single ids."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from jaxrl_agent.config import CodingConfig
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.models.tokenizer import QWEN3_CONTROL, load_tokenizer
from jaxrl_agent.tasks.coding.sources import load_problems

AWKWARD = (
    *(
        "",
        " ",
        "\n\n  \t",
        "naïve café 東京 🙂 cafe\N{COMBINING ACUTE ACCENT}",
        "\x00\x7f",
        "a\r\nb\u2028c",
        "```",
        "````x\n",
    ),
    *(
        "def f(x):\n\treturn x ** 2  # done\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>",
        "<|endoftext|>",
        "0123456789",
    ),
)


@pytest.fixture(scope="module")
def code():
    return load_tokenizer("code_bpe")


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


@pytest.mark.parametrize("text", AWKWARD)
def test_any_text_comes_back_exactly_and_never_as_control(code, text):
    ids = code.encode(text)
    assert code.decode(ids) == text
    assert not any(map(code.is_control, ids))
    assert max(ids, default=0) < code.vocab_size


def test_random_bytes_and_letters_come_back_exactly(code):
    rng = np.random.default_rng(0)
    alphabet = [chr(point) for point in (*range(1, 128), 0xE9, 0x3BB, 0x6771, 0x1F642)] + ["print(", "\n```", "lambda"]
    for _ in range(300):
        text = "".join(rng.choice(alphabet, rng.integers(0, 60)))
        assert code.decode(code.encode(text)) == text


def test_the_vocabulary_is_small_and_ends_with_the_chat_tokens(code):
    assert code.vocab_size == 576
    assert [code.control_id(name) for name in QWEN3_CONTROL] == list(range(576 - len(QWEN3_CONTROL), 576))
    chat = ChatIds.of(code)
    assert code.stop_ids == chat.stop_ids == (code.control_id("<|im_end|>"), code.control_id("<|endoftext|>"))
    assert code.pad_id == code.control_id("<|endoftext|>")


def test_digits_operators_and_quotes_are_ids_of_their_own(code):
    assert pieces(code, "n*17-11") == ["n", "*", "1", "7", "-", "1", "1"]
    assert pieces(code, "s.count('f')")[2:] == ["'", "f", "'", ")"]
    digits = {token: code.decode([token]) for token in range(code.vocab_size - len(QWEN3_CONTROL))}
    assert sorted(text for text in digits.values() if any(map(str.isdigit, text))) == list("0123456789")


def test_fences_keep_their_line_break(code):
    assert pieces(code, "```\nprint(1)\n```") == ["```\n", "print(", "1", ")", "\n```"]
    assert pieces(code, "```python\nx\n```") == ["```python\n", "x", "\n```"]


def test_small_problems_and_programs_are_short(code):
    problems = load_problems(CodingConfig(source="templates"), "test", count=150)
    statements = [len(code.encode(problem.statement)) for problem in problems]
    programs = [len(code.encode(f"```\n{problem.solution}\n```")) for problem in problems]
    assert statistics.mean(statements) < 50
    assert statistics.mean(programs) < 20
    assert max(programs) <= 30
