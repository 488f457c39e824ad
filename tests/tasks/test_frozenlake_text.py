from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake
from jaxrl_agent.errors import ConfigError, TokenizerError
from jaxrl_agent.models.tokenizer import LAKE_LOOKS, load_tokenizer
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES, cell_name
from jaxrl_agent.testing.lakes import CHAT, lake_game
from jaxrl_agent.testing.replies import read_tagged, read_words

LAKES = (
    ("SFFF", "FHFH", "FFFH", "HFFG"),
    ("FFFF", "FSHF", "FFFF", "FGFF"),
    ("GFFF", "FFFF", "FFFF", "FFFS"),
)
MIXED = (("SF", "FG"), ("FFS", "HHF", "GFF"), *LAKES, ("SFFFF", "FHFHF", "FFFFF", "FFHFF", "FGFFF"))
STOCK = {"lake": {"foggy": False}}


class Reader:
    """Texts of a game, decoded."""

    def __init__(self, descs, **settings):
        self.game = lake_game(descs, **settings)
        task, self.data = self.game.task, self.game.data
        self._prompt, self._observe = jax.jit(task.prompt), jax.jit(task.observe)
        self._reset, self._step = jax.jit(task.reset), jax.jit(task.step)

    def prompt_ids(self, instance, budget) -> list[int]:
        tokens_W, length = self._prompt(self.data, instance, budget)
        assert length <= self.game.task.prompt_width(self.data)
        return tokens_W[:length].tolist()

    def observation_ids(self, instance, state, turn=0, budget=3) -> list[int]:
        tokens_O, length = self._observe(self.data, instance, state, turn, budget)
        assert length <= self.game.task.observation_width(self.data)
        return tokens_O[:length].tolist()

    def prompt(self, instance, budget=3) -> str:
        return self.game.tokenizer.decode(self.prompt_ids(instance, budget))

    def observation(self, instance, state, turn=0, budget=3) -> str:
        return self.game.tokenizer.decode(self.observation_ids(instance, state, turn, budget))

    def state(self, instance, cell=None, action=None) -> frozenlake.LakeState:
        """The first state, moved to a cell, after an action."""
        state = self._reset(self.data, instance)
        if cell is not None:
            state = state.replace(cell=jnp.int32(cell))
        return state if action is None else self.step(instance, state, action)

    def step(self, instance, state, action) -> frozenlake.LakeState:
        return self._step(self.data, instance, state, jnp.int32(action), jax.random.key(0))[0]


def cells(desc, letters) -> list[tuple[int, int]]:
    return [(r, c) for r, row in enumerate(desc) for c, letter in enumerate(row) if letter in letters]


# ---- bare words


def test_words_read_as_the_documentation_says():
    reader = Reader(LAKES, t_max=16)
    assert reader.prompt(0, 16) == "<bos> goal d4 turns 16 :"
    assert reader.prompt(1, 2) == "<bos> goal b4 turns 2 :"
    assert reader.observation(0, reader.state(0)) == "a1 -"
    assert reader.observation(1, reader.state(1, action=frozenlake.LOOK), turn=1) == "b2 holes-R"
    stock = Reader(LAKES, **STOCK)
    assert stock.prompt(0, 16) == "<bos> goal d4 - b2 d2 d3 a4 turns 16 :"
    assert stock.prompt(2, 1) == "<bos> goal a1 turns 1 :"  # a lake without holes lists none


def test_words_of_the_stock_game_tell_the_whole_map():
    reader = Reader(LAKES, **STOCK)
    for index, desc in enumerate(LAKES):
        words = reader.prompt(index).split()
        named = words[2 : words.index("turns")]
        goal, holes = named[0], [word for word in named[1:] if word != "-"]
        assert [goal] == [cell_name(r, c) for r, c in cells(desc, "G")]
        assert holes == [cell_name(r, c) for r, c in cells(desc, "H")]
        assert reader.observation(index, reader.state(index)).split()[0] == cell_name(*cells(desc, "S")[0])


def test_words_of_smaller_lakes_name_cells_by_row_and_column():
    reader = Reader(MIXED[:3])
    for index, desc in enumerate(MIXED[:3]):
        for cell in range(len(desc) ** 2):
            assert reader.observation(index, reader.state(index, cell)) == f"{cell_name(*divmod(cell, len(desc)))} -"


@pytest.mark.parametrize(("visibility", "prompt", "shown"), [("hidden", "", ""), ("remaining", "", " 3")])
def test_words_tell_the_budget_as_the_setting_wants(visibility, prompt, shown):
    reader = Reader(LAKES, budget_visibility=visibility)
    assert reader.prompt(0, 5) == f"<bos> goal d4{prompt} :"
    assert reader.observation(0, reader.state(0), turn=2, budget=5) == f"a1 -{shown}"


def test_words_for_every_result_of_a_look():
    reader = Reader(LAKES)
    for mask, word in enumerate(LAKE_LOOKS):
        state = reader.state(0).replace(last_look=jnp.int32(mask))
        letters = "".join(name[0].upper() for bit, name in enumerate(ACTION_NAMES[:4]) if mask >> bit & 1)
        assert reader.observation(0, state) == f"a1 {word}"
        assert word == f"holes-{letters or 'none'}"


def test_a_reply_in_words_has_two_tokens_or_the_settings_are_refused():
    with pytest.raises(ConfigError, match="exactly two tokens"):
        lake_game(LAKES, max_tokens=3)


def test_what_the_words_cannot_say_is_refused():
    with pytest.raises(TokenizerError, match="'17'"):
        lake_game(LAKES, t_max=17)
    with pytest.raises(TokenizerError, match=r"'[be]5'"):
        lake_game(MIXED)


# ---- chat


def chat_reader(descs=LAKES, **settings) -> Reader:
    return Reader(descs, **{**CHAT, **settings})


def test_the_first_messages_read_as_the_documentation_says():
    reader = chat_reader(budget_visibility="total")
    text = reader.prompt(0, 7) + reader.observation(0, reader.state(0))
    system, user = re.fullmatch(
        r"<\|im_start\|>system\n(.*)<\|im_end\|>\n<\|im_start\|>user\n(.*)<\|im_end\|>\n"
        r"<\|im_start\|>assistant\n<think>\n\n</think>\n\n",
        text,
        re.DOTALL,
    ).groups()
    assert "left, down, right or up, or look" in system
    assert user == (
        "Map:\nS???\n????\n????\n???G\nYou may take at most 7 turns.\nYou are at row 1, column 1.\nYour move?"
    )


def test_a_later_observation_is_a_message_of_its_own_behind_the_template_line_break():
    reader = chat_reader(budget_visibility="remaining")
    state = reader.state(1, action=frozenlake.LOOK)
    assert reader.observation(1, state, turn=2, budget=9) == (
        "\n<|im_start|>user\nYou are at row 2, column 2.\nYou look: holes around you: right.\nTurns left: 7.\n"
        "Your move?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert "You look: no hole around you.\n" in reader.observation(2, reader.state(2, action=frozenlake.LOOK), turn=1)


def test_the_stock_game_shows_its_map_and_offers_no_look():
    reader = chat_reader(**STOCK)
    for index, desc in enumerate(LAKES):
        text = reader.prompt(index)
        assert "Map:\n" + "\n".join(desc) + "\n" in text
        assert "look" not in text
        assert "F is ice and H is a hole" in text


@pytest.mark.parametrize("rate", [1.0, 0.8, 1 / 3])
def test_the_slip_in_the_text_is_the_environments(rate):
    reader = chat_reader(lake={"foggy": False, "success_rate": rate})
    told = re.findall(r"with probability ([\d.]+)", reader.prompt(0))
    assert told == ([] if rate == 1 else [f"{reader.game.task.rules.success_rate:.3g}"])
    assert ("slippery" in reader.prompt(0)) == (rate < 1)


@pytest.mark.parametrize("visibility", ["hidden", "total", "remaining"])
def test_the_budget_is_told_where_the_setting_wants_it_and_nowhere_else(visibility):
    reader = chat_reader(t_max=12, budget_visibility=visibility)
    state = reader.state(0)
    for budget in (1, 2, 11, 12):
        prompt = reader.prompt(0, budget)
        assert re.findall(r"at most (\d+) turns", prompt) == ([str(budget)] if visibility == "total" else [])
        assert prompt.replace(f"You may take at most {budget} turns.\n", "") == reader.prompt(0, 5).replace(
            "You may take at most 5 turns.\n", ""
        )
        for turn in range(budget):
            left = re.findall(r"Turns left: (\d+)\.", reader.observation(0, state, turn, budget))
            assert left == ([str(budget - turn)] if visibility == "remaining" else [])


def test_cells_of_mixed_sizes_are_named_by_row_and_column():
    reader = chat_reader(MIXED)
    for index, desc in enumerate(MIXED):
        size = len(desc)
        assert "Map:\n" + re.sub("[FH]", "?", "\n".join(desc)) + "\n" in reader.prompt(index)
        for cell in range(size**2):
            text = reader.observation(index, reader.state(index, cell))
            assert f"You are at row {cell // size + 1}, column {cell % size + 1}.\n" in text


# ---- the foggy lake keeps its secret


HOLE = 9  # the one cell in which the two maps differ
TWINS = (("SFFF", "FFFF", "FHFF", "FFFG"), ("SFFF", "FFFF", "FFFF", "FFFG"))


@pytest.mark.parametrize("settings", [{}, CHAT], ids=["words", "chat"])
def test_maps_that_differ_in_a_hole_look_the_same_until_it_is_looked_at(settings):
    reader = Reader(TWINS, **settings)
    assert reader.prompt_ids(0, 5) == reader.prompt_ids(1, 5)
    for cell in set(range(15)) - {HOLE}:
        near = abs(cell // 4 - HOLE // 4) + abs(cell % 4 - HOLE % 4) == 1
        first, second = (reader.state(index, cell) for index in range(2))
        assert reader.observation_ids(0, first) == reader.observation_ids(1, second)
        first, second = (reader.state(index, cell, frozenlake.LOOK) for index in range(2))
        told = reader.observation_ids(0, first, 1) != reader.observation_ids(1, second, 1)
        assert told == near
        # A look is shown once: after a wasted turn the place stands alone again, on both lakes.
        first, second = (reader.step(index, s, frozenlake.UNUSABLE) for index, s in enumerate((first, second)))
        assert reader.observation_ids(0, first, 2) == reader.observation_ids(1, second, 2)


def test_maps_that_differ_in_a_hole_have_different_prompts_in_the_stock_game():
    for settings in ({}, CHAT):
        reader = Reader(TWINS, **settings, **STOCK)
        assert reader.prompt_ids(0, 5) != reader.prompt_ids(1, 5)


# ---- replies


@pytest.mark.parametrize("foggy", [True, False])
def test_well_formed_replies_mean_their_action_to_the_automaton_and_to_a_reader(foggy):
    names = ACTION_NAMES[: 4 + foggy]
    for settings in ({}, CHAT):
        game = lake_game(LAKES, **settings, lake={"foggy": foggy})
        replies, grammar = game.data.text.replies, game.data.text.grammar
        assert len(replies.lengths_R) == len(names)
        for action, name in enumerate(names):
            ids = replies.tokens_RW[action, : replies.lengths_R[action]].tolist()
            state = 0
            for place, token in enumerate(ids):
                assert not grammar.final_Q[state], place
                state = int(grammar.next_QV[state, token])
            assert grammar.final_Q[state]
            assert int(grammar.action_Q[state]) == action
            if settings:
                stops = game.tokenizer.stop_ids
                assert read_tagged(game.tokenizer, names, stops, None, ids) == (True, action), name
            else:
                assert read_words(game.tokenizer, names, ids) == (True, action), name


# ---- Qwen3's tokenizer and template


def split_at_control(tokenizer, ids: list[int]) -> list[list[int]]:
    """Runs of plain text between control tokens."""
    runs = [[]]
    for token in ids:
        if tokenizer.is_control(token):
            runs.append([])
        else:
            runs[-1].append(token)
    return runs


@pytest.fixture(scope="module")
def qwen_folder(data_dir):
    return data_dir / "qwen3_tokenizer"


@pytest.fixture(scope="module")
def official(qwen_folder):
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(qwen_folder, local_files_only=True)


@pytest.fixture(scope="module", params=["total", "remaining"])
def qwen_reader(request, qwen_folder) -> Reader:
    tokenizer = load_tokenizer(qwen_folder)
    return chat_reader(MIXED, tokenizer=tokenizer, budget_visibility=request.param, lake={"success_rate": 0.8})


def test_joined_pieces_are_the_ids_of_the_whole_text(qwen_reader):
    tokenizer = qwen_reader.game.tokenizer
    rng = np.random.default_rng(0)
    for index, desc in enumerate(MIXED):
        for budget in (1, 4, 10, 16):
            for look in (-1, 0, 1, 6, 15):
                state = qwen_reader.state(index, rng.integers(len(desc) ** 2)).replace(last_look=jnp.int32(look))
                turn = int(rng.integers(budget))
                first = qwen_reader.prompt_ids(index, budget) + qwen_reader.observation_ids(index, state, 0, budget)
                later = qwen_reader.observation_ids(index, state, turn, budget)
                for run in (*split_at_control(tokenizer, first), *split_at_control(tokenizer, later)):
                    assert tokenizer.encode(tokenizer.decode(run)) == run


def test_the_whole_dialogue_is_what_the_official_template_renders(qwen_reader, official):
    """But for the empty reasoning of earlier turns, which the template drops and an append-only dialogue keeps."""
    tokenizer, replies = qwen_reader.game.tokenizer, qwen_reader.game.data.text.replies
    block = "<think>\n\n</think>\n\n"
    for index in range(len(MIXED)):
        state, budget = qwen_reader.state(index), 5
        ids, messages = qwen_reader.prompt_ids(index, budget), []
        for turn, action in enumerate((frozenlake.LOOK, frozenlake.DOWN, frozenlake.LEFT)):
            ids = ids + qwen_reader.observation_ids(index, state, turn, budget)
            text = tokenizer.decode(ids)
            contents = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
            messages = [{"role": role, "content": content.removeprefix(block)} for role, content in contents]
            options = {"add_generation_prompt": True, "enable_thinking": False}
            rendered = official.apply_chat_template(messages, tokenize=False, **options)
            assert [message["role"] for message in messages[2::2]] == ["assistant"] * turn
            assert rendered == text.replace(block, "", turn)
            if turn == 0:
                assert official.apply_chat_template(messages, **options, return_dict=False) == ids
            ids = ids + replies.tokens_RW[action, : replies.lengths_R[action]].tolist()
            state = qwen_reader.step(index, state, action)
