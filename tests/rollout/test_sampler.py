from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, NonFiniteError
from jaxrl_agent.learner.logprobs import token_logprobs
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.qwen3 import Qwen3Config, forward, init_params
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.rollout import sampler as sampler_module
from jaxrl_agent.rollout.buckets import bucket
from jaxrl_agent.rollout.decoding import UNROLLED_LAYERS, WINDOW, decode_window
from jaxrl_agent.rollout.sampler import Sampler, generate

VOCABULARY = 61
CONFIG = Qwen3Config(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.3,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)
DEEP = dataclasses.replace(CONFIG, num_hidden_layers=UNROLLED_LAYERS + 1, tie_word_embeddings=False)
SHORT = dataclasses.replace(CONFIG, max_position_embeddings=24)


@functools.cache
def weights(config):
    return init_params(config, jax.random.key(1))


def some_prompts(count, shortest=1, longest=14, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(shortest, longest + 1)).tolist() for _ in range(count)]


def sample(prompts, config=CONFIG, **settings):
    settings = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5} | settings
    return generate(config, weights(config), prompts, **settings)


def tokens_of(replies):
    return [reply.tokens for reply in replies]


def greedy_by_whole_rows(config, prompt, count):
    """Greedy decoding without a cache: run the whole row again for every token."""
    row_1L, tokens = np.zeros((1, 48), np.int32), list(prompt)
    for _ in range(count):
        row_1L[0, : len(tokens)] = tokens
        logits_1LV = forward(config, weights(config), row_1L, np.array([len(tokens)]))
        tokens.append(int(jnp.argmax(logits_1LV[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


def trainer_logprobs(config, prompt, reply, temperature):
    """What the learner says of the reply's tokens."""
    row = [*prompt, *reply.tokens]
    scores_1L = token_logprobs(config, weights(config), np.array([row]), np.array([len(row)]), temperature=temperature)
    return np.asarray(scores_1L[0, len(prompt) :])


@pytest.mark.parametrize("config", [CONFIG, DEEP])
def test_greedy_replies_are_the_argmax_of_whole_rows(config):
    prompts = some_prompts(5)
    replies = sample(prompts, config, temperature=0.0, max_new_tokens=10)
    assert tokens_of(replies) == [greedy_by_whole_rows(config, prompt, 10) for prompt in prompts]
    assert len({token for reply in replies for token in reply.tokens}) > 5


def test_greedy_replies_equal_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    save_hf(tmp_path, CONFIG, weights(CONFIG))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    prompts = some_prompts(4)
    expected = []
    for prompt in prompts:
        row = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        expected.append(row[0, len(prompt) :].tolist())
    assert tokens_of(sample(prompts, temperature=0.0, max_new_tokens=24)) == expected


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.6}, {"temperature": 1.7, "top_k": 5, "top_p": 0.8}, {"temperature": 0.0}],
)
def test_sampler_and_trainer_agree_on_log_probabilities(settings):
    prompts = some_prompts(4)
    for prompt, reply in zip(prompts, sample(prompts, **settings), strict=True):
        expected = trainer_logprobs(CONFIG, prompt, reply, settings["temperature"] or 1.0)
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)
        assert len(reply.logprobs) == len(reply.tokens) == 12


def test_a_row_gets_the_same_reply_alone_and_in_any_batch():
    prompts = some_prompts(16, seed=3)
    replies = sample(prompts)
    assert len({token for reply in replies for token in reply.tokens}) > 20
    for rows in ([3], [15, 0, 7], list(reversed(range(16)))):
        some = sample([prompts[row] for row in rows], row_ids=rows)
        assert tokens_of(some) == [replies[row].tokens for row in rows]
        for reply, row in zip(some, rows, strict=True):
            np.testing.assert_allclose(reply.logprobs, replies[row].logprobs, atol=1e-4)


def test_a_long_limit_changes_no_token_before_it():
    prompts = some_prompts(3)
    short, long = sample(prompts, max_new_tokens=5), sample(prompts, max_new_tokens=WINDOW + 9)
    assert [len(reply.tokens) for reply in long] == [WINDOW + 9] * 3
    assert tokens_of(short) == [reply.tokens[:5] for reply in long]
    for prompt, reply in zip(prompts, long, strict=True):
        np.testing.assert_allclose(reply.logprobs, trainer_logprobs(CONFIG, prompt, reply, 1.0), atol=1e-4)


def test_members_of_a_group_share_the_prompt_and_differ_by_their_ids():
    prompt, other = some_prompts(2, seed=9)
    group = sample([prompt, other, prompt, prompt], row_ids=[10, 11, 12, 10])
    assert group[0] == group[3]
    assert group[0].tokens != group[2].tokens
    assert group[2].tokens == sample([prompt], row_ids=[12])[0].tokens


def test_the_seed_decides_the_replies():
    prompts = some_prompts(2)
    assert sample(prompts, seed=1) == sample(prompts, seed=1)
    assert tokens_of(sample(prompts, seed=1)) != tokens_of(sample(prompts, seed=2))


def test_a_stop_token_ends_the_reply_and_belongs_to_it():
    prompts = some_prompts(6)
    free = sample(prompts, max_new_tokens=20)
    stops = [free[0].tokens[4], free[1].tokens[7]]
    for reply, whole in zip(sample(prompts, max_new_tokens=20, stop_ids=stops), free, strict=True):
        first = next((i for i, token in enumerate(whole.tokens) if token in stops), None)
        if first is None:
            assert (reply.tokens, reply.stop_reason) == (whole.tokens, "length")
        else:
            assert (reply.tokens, reply.stop_reason) == (whole.tokens[: first + 1], "stop")
            assert len(reply.logprobs) == first + 1


def test_a_stop_token_in_the_prompt_or_equal_to_the_padding_stops_nothing_early():
    prompts = [[0], [5, 0, 0], [0, 0, 7, 0, 9]]
    free = sample(prompts, max_new_tokens=16)
    assert all(0 not in reply.tokens for reply in free), "choose another seed: this test needs replies without a 0"
    assert tokens_of(sample(prompts, max_new_tokens=16, stop_ids=[0])) == tokens_of(free)


def test_a_stop_token_as_the_last_allowed_one_counts_as_stop():
    (free,) = sample([[4, 2]], max_new_tokens=3)
    assert free.stop_reason == "length"
    stop = free.tokens[2]
    assert stop not in free.tokens[:2]
    assert sample([[4, 2]], max_new_tokens=3, stop_ids=[stop])[0].stop_reason == "stop"


def test_the_context_ends_a_reply_and_a_full_prompt_gets_an_empty_one():
    lengths = (24, 23, 20, 2)
    prompts = [list(range(1, length + 1)) for length in lengths]
    replies = sample(prompts, SHORT, max_new_tokens=4)
    assert [(len(reply.tokens), reply.stop_reason) for reply in replies] == [
        (0, "context"),
        (1, "context"),
        (4, "length"),
        (4, "length"),
    ]
    assert replies[0].logprobs == []
    (reply,) = sample([prompts[3]], SHORT, max_new_tokens=100)
    assert (len(reply.tokens), reply.stop_reason) == (22, "context")
    np.testing.assert_allclose(reply.logprobs, trainer_logprobs(SHORT, prompts[3], reply, 1.0), atol=1e-4)


@pytest.fixture
def decoded_rows(monkeypatch):
    """Rows of each window that was decoded."""
    rows = []

    def record(*args, last_B, **kwargs):
        rows.append(len(last_B))
        return decode_window(*args, last_B=last_B, **kwargs)

    monkeypatch.setattr(sampler_module, "decode_window", record)
    return rows


def test_waiting_prompts_take_the_places_of_finished_rows_and_change_nothing(decoded_rows):
    prompts = some_prompts(11, seed=4)
    settings = {"temperature": 1.0, "stop_ids": range(8), "seed": 5}
    at_once = sample(prompts, max_new_tokens=200, stop_ids=range(8))
    assert max(decoded_rows) == 16
    decoded_rows.clear()
    in_turns = Sampler(CONFIG, weights(CONFIG), max_rows=3, **settings).generate(prompts, max_new_tokens=200)
    assert max(decoded_rows) <= 4
    assert tokens_of(in_turns) == tokens_of(at_once)


def test_rows_of_different_age_are_decoded_together(decoded_rows):
    # The context ends the first reply early; the fifth prompt joins rows that have a window behind them.
    prompts = [[1] * 505, *some_prompts(5, seed=4)]
    expected = [sample([prompt], max_new_tokens=WINDOW + 3, row_ids=[row])[0] for row, prompt in enumerate(prompts)]
    decoded_rows.clear()
    sampler = Sampler(CONFIG, weights(CONFIG), temperature=1.0, seed=5, max_rows=4)
    replies = sampler.generate(prompts, max_new_tokens=WINDOW + 3)
    assert decoded_rows == [4, 4, 2, 1]
    assert tokens_of(replies) == tokens_of(expected)
    assert [reply.stop_reason for reply in replies] == ["context"] + ["length"] * 5


def test_finished_rows_are_dropped_between_windows(decoded_rows):
    prompts = some_prompts(4, seed=4)
    free = sample(prompts, max_new_tokens=WINDOW + 40)
    last_one = set(free[2].tokens)
    stops = [next(token for token in free[row].tokens if token not in last_one) for row in (0, 1, 3)]
    decoded_rows.clear()
    replies = sample(prompts, max_new_tokens=WINDOW + 40, stop_ids=stops)
    assert decoded_rows == [4, 1]
    assert replies[2].tokens == free[2].tokens
    assert all(reply.tokens == whole.tokens[: len(reply.tokens)] for reply, whole in zip(replies, free, strict=True))


def test_a_dialogue_continues_its_rows_without_reading_them_again():
    prompts = some_prompts(3, seed=6)
    observations = [[3, 1, 4], [], [9, 2, 6, 5, 3, 5]]
    sampler = Sampler(CONFIG, weights(CONFIG), temperature=1.0, seed=5)
    batch = sampler.start(prompts)
    first = sampler.decode(batch, 6)
    assert tokens_of(first) == tokens_of(sample(prompts, max_new_tokens=6))
    sampler.append(batch, observations)
    second = sampler.decode(batch, [4, 0, 4])
    assert [len(reply.tokens) for reply in second] == [4, 0, 4]
    for row in (0, 2):
        context = prompts[row] + first[row].tokens + observations[row]
        assert batch.rows[row].tokens == context + second[row].tokens
        (alone,) = sample([context], max_new_tokens=4, row_ids=[row])
        assert alone.tokens == second[row].tokens
        np.testing.assert_allclose(second[row].logprobs, alone.logprobs, atol=1e-4)
    assert batch.rows[1].tokens == prompts[1] + first[1].tokens
    batch = sampler.select(batch, [2])
    third = sampler.decode(batch, 3)
    (alone,) = sample([context + second[2].tokens], max_new_tokens=3, row_ids=[2])
    assert third[0].tokens == alone.tokens


def test_a_long_prompt_is_read_in_chunks(monkeypatch):
    prompts = [*some_prompts(2, shortest=90, longest=100), [7]]
    whole = sample(prompts)
    monkeypatch.setattr(sampler_module, "_PREFILL_TOKENS", 64)
    assert tokens_of(sample(prompts)) == tokens_of(whole)


def test_new_weights_are_used_after_load():
    prompts = some_prompts(2)
    sampler = Sampler(CONFIG, weights(CONFIG), temperature=0.0)
    before = sampler.generate(prompts, max_new_tokens=6)
    others = init_params(CONFIG, jax.random.key(2))
    sampler.load(others)
    after = sampler.generate(prompts, max_new_tokens=6)
    assert tokens_of(after) != tokens_of(before)
    assert after == generate(CONFIG, others, prompts, max_new_tokens=6, temperature=0.0)


def test_nothing_compiles_after_warm_up():
    def play(seed, **settings):
        prompts = some_prompts(6, shortest=2, longest=14, seed=seed)
        prompts[5] = prompts[0]
        return sample(prompts, seed=seed, **settings)

    play(0)
    warm = compiled_programs()
    for seed in range(1, 5):
        play(seed, max_new_tokens=9 + seed, stop_ids=[seed, 40], row_ids=list(range(seed, seed + 6)))
    assert compiled_programs() == warm
    play(0, temperature=0.9)
    assert compiled_programs() > warm, "the counter must see a new program"


def test_a_dialogue_compiles_nothing_in_its_second_episode():
    def play(seed):
        sampler = Sampler(CONFIG, weights(CONFIG), temperature=1.0, seed=seed)
        batch = sampler.start(some_prompts(4, shortest=5, longest=12, seed=seed))
        for turn in range(4):
            sampler.decode(batch, 3 + turn)
            sampler.append(batch, some_prompts(4, longest=9, seed=seed + turn))

    play(0)
    warm = compiled_programs()
    play(1)
    assert compiled_programs() == warm


def test_top_k_and_top_p_restrict_what_is_drawn():
    prompts = [[3, 1]] * 64
    width = {
        name: len({reply.tokens[0] for reply in sample(prompts, temperature=3.0, max_new_tokens=1, **settings)})
        for name, settings in {"free": {}, "k": {"top_k": 3}, "p": {"top_p": 0.05}}.items()
    }
    assert width["free"] > 15
    assert 1 < width["k"] <= 3
    assert width["p"] < 6
    greedy = sample(prompts[:1], temperature=0.0)
    assert tokens_of(sample(prompts[:3], top_k=1)) == tokens_of(greedy) * 3


def test_rows_split_over_devices_give_the_same_replies():
    prompts = some_prompts(8, seed=8)
    expected = sample(prompts)
    with jax.set_mesh(make_mesh("data:2,fsdp:2,tensor:2")):
        split = sample(prompts)
    assert tokens_of(split) == tokens_of(expected)
    for reply, other in zip(split, expected, strict=True):
        np.testing.assert_allclose(reply.logprobs, other.logprobs, atol=1e-4)


def test_weights_of_nan_end_with_an_error():
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, weights(CONFIG))
    with pytest.raises(NonFiniteError, match="finite"):
        generate(CONFIG, broken, [[1, 2]], max_new_tokens=2, temperature=1.0)


def test_no_prompts_give_no_replies():
    assert sample([]) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompts": [[1], []]}, "at least one token"),
        ({"prompts": [[1, VOCABULARY]]}, "token ids"),
        ({"prompts": [[-1]]}, "token ids"),
        ({"prompts": [[1.5]]}, "token ids"),
        ({"prompts": [[1] * 25]}, "24 positions"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop_ids": [VOCABULARY]}, "token ids"),
        ({"row_ids": [1, 2]}, "row_ids"),
        ({"row_ids": [-1]}, "row id"),
        ({"row_ids": [2**32]}, "row id"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_refused_with_its_rule(changed, message):
    arguments = {"prompts": [[1]], "max_new_tokens": 2, "temperature": 1.0} | changed
    with pytest.raises(ArgumentError, match=message):
        generate(SHORT, weights(SHORT), **arguments)


def test_dialogue_calls_refuse_what_does_not_fit():
    sampler = Sampler(SHORT, weights(SHORT), temperature=1.0)
    with pytest.raises(ArgumentError, match="at least one prompt"):
        sampler.start([])
    batch = sampler.start([[1, 2], [3]])
    with pytest.raises(ArgumentError, match="one piece"):
        sampler.append(batch, [[1]])
    with pytest.raises(ArgumentError, match="24 positions"):
        sampler.append(batch, [[1] * 23, []])
    with pytest.raises(ArgumentError, match="max_new_tokens"):
        sampler.decode(batch, [1])
    with pytest.raises(ArgumentError, match="max_rows"):
        Sampler(SHORT, weights(SHORT), temperature=1.0, max_rows=0)


def test_buckets_are_few_and_hold_what_they_must():
    sizes = [bucket(n, 16) for n in range(1, 1025)]
    assert sorted(set(sizes)) == [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(size >= n for n, size in enumerate(sizes, start=1))
