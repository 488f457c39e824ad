"""Train the embedded tokenizer `code_bpe` on the words of DeepCoder-MT's small problems.

Run from the project's root, `python tests/golden/make_code_bpe.py`; it writes `jaxrl_agent/models/data/code_bpe.json`,
the same bytes each time. The file is made anew only when the vocabulary is to change, since every checkpoint that was
trained with it depends on it.

What an example shows is left out of the texts: letters and digits drawn at random should be single ids, which a small
model can copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers import decoders as byte_decoders

from jaxrl_agent.config import CodingConfig, TaskConfig
from jaxrl_agent.models.tokenizer_base import QWEN3_CONTROL
from jaxrl_agent.tasks import deepcoder_text
from jaxrl_agent.tasks.coding.problem import Problem
from jaxrl_agent.tasks.coding.sources import load_problems

FILE = Path(__file__).resolve().parents[2] / "jaxrl_agent/models/data/code_bpe.json"
VOCABULARY = 576  # control tokens included
TEMPLATES, OWN = 3000, 100  # problems read
STATEMENTS, WORDS, CHAT = 4, 2000, 25  # how often a statement and a sentence of either style count beside a program

# Where no merge may reach across. Operators, quotes and digits stay alone, so that a constant or an operator is the
# same id in a statement and in a program.
PIECES = "|".join(
    [
        r"\n?```(?:python)?\n?",  # a fence with its line break
        r"\d",
        r"\.?[A-Za-z_]+\(\)*",  # the name of a call
        r" ?[A-Za-z_]+",
        r" ?[-+*/%<>=!&|^~]+",
        r", ",
        r"[\[\](){}:,.;]+",
        r"\n+ *| +",
    ]
)


def texts() -> Iterator[str]:
    """Give everything that trajectories say, but for what is drawn at random."""
    for problem in load_problems(CodingConfig(source="templates"), "train", count=TEMPLATES):
        yield from [f"user\n{problem.statement.split(' Example')[0]} Example: "] * STATEMENTS
        yield from programs(problem)
    for problem in load_problems(CodingConfig(source="own"), "train", count=OWN):
        yield problem.statement
        yield from programs(problem)
    for style, often in (("words", WORDS), ("chat", CHAT)):
        yield from [sentence for sentence in sentences(style) for _ in range(often)]


def programs(problem: Problem) -> Iterator[str]:
    """Give a problem's programs as replies write them."""
    for program in (problem.solution, *problem.wrong):
        yield f"```\n{program}\n```"
    yield f"```python\n{problem.solution}\n```"


def sentences(style: str) -> Iterator[str]:
    """Give what does not depend on the problem."""
    example = Problem("x", "", (), (), "function", "f")
    yield from ("assistant\n", "user\n", "system\n", "\n\n", "\n", "f(0) == 1", "0 -> 1")
    yield from ("in 1 want 2 got 3\n", "in 1 want 2 error NameError: name")
    for visibility in ("total", "remaining"):
        config = TaskConfig(text=style, budget_visibility=visibility)
        yield f"user\n{deepcoder_text.problem_text(config, example, 3)}"
        yield f"user\n{deepcoder_text.unusable_text(config, 3)}"
    yield deepcoder_text.system_text(config) or ""


def train() -> dict:
    """Train, and return the contents of `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = byte_decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(QWEN3_CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens(list(QWEN3_CONTROL))
    return json.loads(tokenizer.to_str())


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(train(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
