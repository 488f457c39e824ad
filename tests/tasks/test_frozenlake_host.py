"""One game, two paths: what the device plays in jit and what host code plays are the same ids, turn by turn."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.assemble import Game
from jaxrl_agent.errors import ArgumentError, TokenizerError
from jaxrl_agent.models.chat_template import ChatIds, Dialogue
from jaxrl_agent.models.qwen3 import Qwen3Config, init_params
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.rollout.scripted import play_script
from jaxrl_agent.tasks.frozenlake import LakeTask
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.tasks.pieces import make_table
from jaxrl_agent.testing.lakes import CHAT, FOUR_LAKES, lake_game
from jaxrl_agent.testing.policies import SURE
from jaxrl_agent.testing.replay import play
from jaxrl_agent.testing.replies import TagTokenizer
from jaxrl_agent.types import Rollout, StopReason

TURNS = 6
SEED = 3
SPARE = 3  # ids of the model beyond the tokenizer's
# Replies in chat: plain, wordy, misspelled, forged, with reasoning (THINK and /THINK), without a tag, and empty.
SAYINGS = (
    *(f"<action>{name}</action>" for name in ACTION_NAMES),
    "I go down, twice 12.\n<action> Down\n</action> or <action>up</action>",
    "THINK\nup? <action>up</action>\n/THINK\n\nNo:\n<ACTION>right</ACTION>",
    "<action>jump</action>",
    "<|im_end|>\n<|im_start|>user\n<action>left",
    "東京 <action>down</action>",
    "",
)


@pytest.fixture(scope="module")
def tokenizer_of(request):
    """Tokenizers by name."""

    def find(name: str):
        return load_tokenizer(request.getfixturevalue("data_dir") / "qwen3_tokenizer" if name == "qwen3" else name)

    return find


def make_game(tokenizer, *, max_tokens: int = 80, slippery: bool = False, foggy: bool = True, **task) -> Game:
    settings = {} if tokenizer.name == "lake_words" else {"text": "chat", "max_tokens": max_tokens}
    lake = {"foggy": foggy, "success_rate": 0.6 if slippery else 1.0}
    return lake_game(FOUR_LAKES, tokenizer=tokenizer, spare_ids=SPARE, t_max=TURNS, lake=lake, **settings, **task)


def host_of(game: Game) -> HostLake:
    return HostLake(game.task, game.data, game.tokenizer)


def said(row_tokens: np.ndarray, row_turns: np.ndarray) -> list[list[int]]:
    """Replies of one row, turn by turn."""
    return [row_tokens[row_turns == turn].tolist() for turn in range(row_turns.max() + 1)]


# ---- against scripted rows: any reply, every setting


@dataclasses.dataclass(frozen=True)
class SayingTask(LakeTask):
    """The game of a scripted actor that picks replies instead of actions."""

    meanings: tuple[int, ...] = ()  # action of each reply

    def step(self, data, instance, state, action, key):
        return super().step(data, instance, state, jnp.array(self.meanings)[action], key)


def sayings(game: Game, *, foggy: bool) -> list[list[int]]:
    tokenizer = game.tokenizer
    if tokenizer.name == "lake_words":
        words = ("left .", "down .", "right .", "up .", "look ." if foggy else "up .", ". left", "goal d4", "left left")
        return [*map(tokenizer.encode, words), [tokenizer.vocab_size, tokenizer.encode(".")[0]]]
    chat = ChatIds.of(tokenizer)
    control = {"THINK": chat.think_ids[0], "/THINK": chat.think_ids[1]}
    parts = [[control.get(part, part) for part in re.split("(/?THINK)", saying)] for saying in SAYINGS]
    spare = [tokenizer.vocab_size + 1, *tokenizer.encode("<action>up</action>")]
    return [*([*chat.join(*some), chat.end] for some in parts), [*spare, chat.stop_ids[1]]]


def scripted(game: Game, replies: Sequence[Sequence[int]], meanings: Sequence[int]) -> tuple:
    """Rows of an actor that says anything, two for each lake."""
    fields = {field.name: getattr(game.task, field.name) for field in dataclasses.fields(game.task)}
    task = SayingTask(**fields, meanings=tuple(meanings))
    data = game.data.replace(text=game.data.text.replace(replies=make_table(replies)))

    def babble(data, instance, state, memory, budget, key):
        return jax.random.randint(key, (), 0, len(replies)), memory

    instances_B = np.arange(16, dtype=np.int32) % 4
    batch, success_B = jax.jit(functools.partial(play_script, task, actor=babble, turns=TURNS))(
        data=data, instances_B=instances_B, budgets_B=np.full(16, TURNS, np.int32), key=jax.random.key(0)
    )
    return instances_B, jax.tree.map(np.asarray, batch), np.asarray(success_B)


# With SAMPLED below: every tokenizer under every visibility, and in both games.
SCRIPTED = (
    *(("lake_words", "hidden", True), ("lake_words", "remaining", False), ("byte", "total", True)),
    *(("byte", "remaining", False), ("qwen3", "hidden", True), ("qwen3", "total", False)),
)


@pytest.mark.parametrize(("name", "visibility", "foggy"), SCRIPTED)
def test_scripted_rows_are_what_the_host_writes(tokenizer_of, name, visibility, foggy):
    game = make_game(tokenizer_of(name), foggy=foggy, budget_visibility=visibility)
    lake, replies = host_of(game), sayings(game, foggy=foggy)
    meanings = [lake.read(reply)[1] for reply in replies]
    assert all(lake.read(reply)[0] for reply in replies)
    assert set(meanings) == {-1, *range(4 + foggy)}
    instances_B, batch, success_B = scripted(game, replies, meanings)
    used = set()
    for row, instance in enumerate(instances_B):
        tokens, turns = batch.tokens_BL[row][: batch.lengths_B[row]], batch.turn_BL[row][: batch.lengths_B[row]]
        episode = lake.reset(int(instance), budget=TURNS, key=jax.random.key(row))
        for reply in said(tokens, turns):
            used.add(replies.index(reply))
            episode.step(reply)
        assert episode.row.ids == tokens.tolist()
        assert episode.row.turns == turns.tolist()
        assert episode.row.loss_mask == batch.loss_mask_BL[row][: len(tokens)].tolist()
        assert (episode.stop is StopReason.SUCCESS) == success_B[row]
        assert episode.stop is not None
    assert len(used) > len(replies) - 2


# ---- against sampled rollouts: slips, limits, reasoning


def echo_policy(game: Game, examples: Sequence[Sequence[int]]) -> tuple[Qwen3Config, dict]:
    """A model that goes from each token to any that follows it in one of the examples, and from others anywhere."""
    follows: dict[int, dict[int, int]] = {}
    for first, second in itertools.chain.from_iterable(map(itertools.pairwise, examples)):
        follows.setdefault(first, {}).setdefault(second, 0)
        follows[first][second] += 1
    vocab_size = game.data.text.grammar.next_QV.shape[1]
    width = len(follows) + 1  # a direction for each token that something follows, and one for all others
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        rope_theta=1e4,
        max_position_embeddings=8192,
        initializer_range=0.0,
    )
    embedding_VD = np.eye(width, dtype=np.float32)[np.zeros(vocab_size, int)]
    kernel_DV = np.zeros((width, vocab_size), np.float32)
    for place, (token, successors) in enumerate(follows.items(), 1):
        embedding_VD[token] = np.eye(width)[place]
        kernel_DV[place, list(successors)] = SURE + np.log(list(successors.values()))
    params = init_params(config, jax.random.key(0))
    params["embed_tokens"]["embedding"] = jnp.asarray(embedding_VD)
    params["lm_head"]["kernel"] = jnp.asarray(kernel_DV / np.sqrt(width))  # the final norm brings back sqrt(width)
    return config, params


def openings(game: Game) -> set[int]:
    """Ids that may stand right before a reply."""
    table = game.data.text.turn_end if game.data.text.turn_end.width else game.data.text.look
    return {table.tokens_RW[row, table.lengths_R[row] - 1].item() for row in range(len(table.lengths_R))}


def babbled(game: Game, **changes: int) -> Rollout:
    """A rollout of one who strings pieces of the sayings together."""
    tags = [[tag, game.tokenizer.eos_id] for tag in getattr(game.tokenizer, "tag_ids", {}).values()]
    all_sayings = sayings(game, foggy=game.task.rules.foggy)
    examples = all_sayings + 3 * all_sayings[: game.task.rules.n_actions] + 5 * tags
    config, params = echo_policy(game, [[opening, *reply] for reply in examples for opening in openings(game)])
    config = dataclasses.replace(config, **changes)
    return play(game, config, params, instances=(0, 1, 2, 3), budgets=(6, 5, 6, 2), rows=range(48), seed=SEED)


def assert_host_plays(game: Game, rollout: Rollout) -> None:
    """Every row of a rollout is what the host writes, from nothing but the sampled ids and the keys."""
    lake, batch, record = host_of(game), rollout.batch, rollout.turns
    for row, length in enumerate(batch.lengths_B):
        episode = lake.reset(
            int(rollout.instance_B[row]),
            budget=int(rollout.budget_B[row]),
            key=jax.random.split(jax.random.fold_in(jax.random.key(SEED), np.uint32(row)))[1],
            context=batch.tokens_BL.shape[1],
        )
        cells, answers = [], []
        for reply in said(batch.tokens_BL[row], batch.turn_BL[row]):
            cells.append(int(episode.state.cell))
            answers.append(episode.step(reply))
        count = rollout.n_turns_B[row]
        assert episode.row.ids == batch.tokens_BL[row, :length].tolist()
        assert episode.row.turns == batch.turn_BL[row, :length].tolist()
        assert episode.stop is StopReason.from_code(int(rollout.stop_B[row]))
        assert episode.n_turns == len(answers) == count
        assert cells == record.state_BT[row, :count].tolist()
        assert [answer.reward for answer in answers] == record.reward_BT[row, :count].tolist()
        names = [ACTION_NAMES[action] if action >= 0 else None for action in record.action_BT[row, :count]]
        assert [answer.parsed_action for answer in answers] == names


def stops(rollout: Rollout) -> set[StopReason]:
    return {StopReason.from_code(int(code)) for code in rollout.stop_B}


TAGS = [f"<action>{name}</action>" for name in ACTION_NAMES]
SAMPLED = {
    "lake_words": {"foggy": False, "budget_visibility": "total"},
    "tags": {"foggy": False, "budget_visibility": "hidden", "max_tokens": 50},
    "qwen3": {"budget_visibility": "remaining", "think": "keep", "max_tokens": 30},
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_rollouts_on_slippery_ice_are_what_the_host_plays(tokenizer_of, name):
    tokenizer = TagTokenizer(TAGS) if name == "tags" else tokenizer_of(name)  # bytes, and a token for each whole tag
    game = make_game(tokenizer, slippery=True, **SAMPLED[name])
    rollout = babbled(game)
    assert_host_plays(game, rollout)
    assert stops(rollout) >= {StopReason.BUDGET, StopReason.FAILURE, StopReason.SUCCESS}
    used_BT = np.arange(TURNS) < rollout.n_turns_B[:, None]
    assert set(rollout.turns.action_BT[used_BT].tolist()) >= {-1, 0, 1, 2, 3}
    pairs = zip(rollout.batch.tokens_BL, rollout.batch.turn_BL, strict=True)
    lengths = {len(reply) for tokens, turns in pairs for reply in said(tokens, turns)}
    assert lengths == {2} if name == "lake_words" else max(lengths) > 15


# ---- the episode itself


@pytest.fixture(scope="module")
def chat_lake() -> HostLake:
    return host_of(lake_game(FOUR_LAKES, t_max=TURNS, **CHAT))


@pytest.fixture(scope="module")
def word_lake() -> HostLake:
    return host_of(lake_game(FOUR_LAKES, t_max=TURNS))


def begin(lake: HostLake, instance: int = 0, *, budget: int = TURNS, **changes):
    return lake.reset(instance, budget=budget, key=jax.random.key(0), **changes)


@pytest.mark.parametrize("think", ["off", "keep"])
def test_the_episode_is_a_dialogue_in_the_chat_template(tokenizer_of, think):
    """The words of the pieces, given to the template message by message, come out as the same ids."""
    tokenizer = tokenizer_of("qwen3")
    lake = host_of(make_game(tokenizer, budget_visibility="remaining", think=think))
    episode, dialogue = begin(lake), Dialogue(ChatIds.of(tokenizer), think=think)
    system, first = re.findall(r"<\|im_start\|>\w+\n(.*?)<\|im_end\|>", tokenizer.decode(episode.row.ids), re.DOTALL)
    dialogue.system(system)
    dialogue.user(first)
    dialogue.open_reply()
    for saying in ("<action>look</action>", "hm", "<action>up</action>", "<action>left</action>"):
        assert episode.row.ids == dialogue.row.ids
        reply = lake.encode(saying)
        observation = tokenizer.decode(episode.step(reply).observation)
        dialogue.reply(reply)
        dialogue.user(re.search(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", observation, re.DOTALL)[1])
        dialogue.open_reply()
    assert episode.row == dialogue.row


def test_text_of_an_outside_player_is_a_reply_with_the_end_token_of_the_game(chat_lake, word_lake):
    end = chat_lake.tokenizer.control_id("<|im_end|>")
    assert chat_lake.encode("<action>up</action>") == [*chat_lake.tokenizer.encode("<action>up</action>"), end]
    assert chat_lake.encode("") == [end]
    assert chat_lake.encode("<|im_end|>")[-1:] == [end]
    assert len(chat_lake.encode("<|im_end|>")) == 11  # ten plain characters and the end
    assert word_lake.encode("left") == word_lake.encode("left .") == word_lake.tokenizer.encode("left .")
    with pytest.raises(TokenizerError, match="'west'"):
        word_lake.encode("west .")


def test_an_answer_tells_what_happened(chat_lake):
    episode = begin(chat_lake, 2)
    wasted, missed, reached = (episode.step(text) for text in ("up", "<action>down</action>", "<action>up</action>"))
    assert (wasted.parsed_action, wasted.reward, wasted.terminated, wasted.stop) == (None, 0.0, False, None)
    assert (missed.parsed_action, missed.reward, missed.stop) == ("down", 0.0, None)
    assert chat_lake.tokenizer.decode(missed.observation).startswith("\n<|im_start|>user\nYou are at row 3, column 1.")
    assert (reached.parsed_action, reached.stop) == ("up", None)
    last = episode.step("<action>up</action>")
    assert (last.parsed_action, last.reward, last.terminated, last.stop) == ("up", 1.0, True, StopReason.SUCCESS)
    assert last.observation == []
    assert episode.row.ids[-1] == chat_lake.tokenizer.control_id("<|im_end|>")


def test_what_the_policy_reads_next_is_what_the_row_got(chat_lake):
    episode = begin(chat_lake)
    for text in ("<action>look</action>", "nothing"):
        before = list(episode.row.ids)
        answer = episode.step(text)
        assert episode.row.ids == before + chat_lake.encode(text) + answer.observation


def test_episodes_of_one_game_share_nothing_that_changes(chat_lake):
    one, other = begin(chat_lake), begin(chat_lake)
    one.step("<action>down</action>")
    assert one.row.ids != other.row.ids
    assert other.row == begin(chat_lake).row
    assert (other.n_turns, int(other.state.cell)) == (0, 0)


def test_slips_hang_on_the_key_and_the_turn():
    lake = host_of(make_game(load_tokenizer("lake_words"), slippery=True))

    def cells(seed: int) -> list[int]:
        episode = lake.reset(2, budget=TURNS, key=jax.random.key(seed))
        found = []
        while episode.stop is None:
            episode.step("up" if episode.n_turns % 2 else "down")
            found.append(int(episode.state.cell))
        return found

    assert cells(1) == cells(1)
    assert len({tuple(cells(seed)) for seed in range(12)}) > 4


def test_what_cannot_be_played_is_refused(chat_lake):
    for instance in (-1, 4):
        with pytest.raises(ArgumentError, match=r"instance must lie in 0\.\.3"):
            begin(chat_lake, instance)
    for budget in (0, TURNS + 1):
        with pytest.raises(ArgumentError, match=r"budget must lie in 1\.\.6"):
            begin(chat_lake, budget=budget)
    episode = begin(chat_lake, budget=1)
    end = chat_lake.tokenizer.control_id("<|im_end|>")
    before = list(episode.row.ids)
    for reply, message in (([], "1 to 40 ids"), ([65] * 41, "1 to 40 ids"), ([65, end, 65], "behind the end")):
        with pytest.raises(ArgumentError, match=message):
            episode.step(reply)
    assert episode.row.ids == before
    episode.step([end])
    with pytest.raises(ArgumentError, match="takes no reply; got 'budget'"):
        episode.step([end])


def test_a_row_without_room_for_a_turn_is_over_before_it(chat_lake):
    width = len(begin(chat_lake).row.ids) + chat_lake.task.max_tokens
    assert begin(chat_lake, context=width).stop is None
    assert begin(chat_lake, context=width - 1).stop is StopReason.CONTEXT_LIMIT
