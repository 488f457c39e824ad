"""The words of FrozenLake, made from the settings that the environment itself obeys, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence

from flax import struct

from jaxrl_agent.config import TaskConfig
from jaxrl_agent.envs.frozenlake import N_MOVES
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models import chat_template
from jaxrl_agent.models.tokenizer import LAKE_ACTIONS, LAKE_LOOKS
from jaxrl_agent.tasks.pieces import PieceTable, make_table
from jaxrl_agent.tasks.reply import ReplyAutomaton, fixed_words, tagged_action

ACTION_NAMES = LAKE_ACTIONS


@struct.dataclass
class LakeText:
    """Token pieces of prompt, observations and replies."""

    prompt_start: PieceTable  # 1 row
    lake: PieceTable  # a row for each instance
    budget: PieceTable  # row b: the sentence that tells a budget of b turns
    prompt_end: PieceTable  # 1 row
    turn_start: PieceTable  # row 0 before the first observation, row 1 before any later one
    place: PieceTable  # row r * largest size + c: the agent's place
    look: PieceTable  # row 0 no look, row 1 + m: holes in the directions of bit mask m
    turns_left: PieceTable  # row t: the sentence that tells t turns left
    turn_end: PieceTable  # 1 row
    replies: PieceTable  # row a: a well-formed reply with action a, its end token included
    grammar: ReplyAutomaton


def make_text(config: TaskConfig, tokenizer, descs: Sequence[Sequence[str]], *, vocab_size: int) -> LakeText:
    """Encode everything that the task can say.

    Args:
        config: task settings; `config.text` picks bare words or chat messages.
        tokenizer: as `load_tokenizer` gives it.
        descs: the maps.
        vocab_size: ids that the policy can emit.

    Raises:
        TokenizerError: the tokenizer lacks a word.
    """
    return {"words": _word_text, "chat": _chat_text}[config.text](config, tokenizer, descs, vocab_size)


def _word_text(config: TaskConfig, tokenizer, descs: Sequence[Sequence[str]], vocab_size: int) -> LakeText:
    """One token a word: `<bos> goal d4 turns 16 :`, then `<cell> <look or ->` and the reply `<action> .`

    On the stock lake the holes follow the goal: `goal d4 - a2 c3`.
    """
    if config.max_tokens != 2:
        raise ConfigError(
            "a reply in bare words has exactly two tokens (config.task.max_tokens)", value=config.max_tokens
        )
    encode = tokenizer.encode
    actions = ACTION_NAMES[: N_MOVES + config.lake.foggy]
    numbers = [encode(str(n)) for n in range(1, config.t_max + 1)]
    side = config.lake.max_size
    return LakeText(
        prompt_start=make_table([[tokenizer.control_id("<bos>")]]),
        lake=make_table([encode(_lake_words(desc, foggy=config.lake.foggy)) for desc in descs]),
        budget=make_table([[], *([*encode("turns"), *number] for number in numbers)]),
        prompt_end=make_table([encode(":")]),
        turn_start=make_table([[], []]),
        place=make_table([encode(cell_name(r, c)) for r in range(side) for c in range(side)]),
        look=make_table([encode("-"), *(encode(word) for word in LAKE_LOOKS)]),
        turns_left=make_table([[], *numbers]),
        turn_end=make_table([[]]),
        replies=make_table([encode(f"{name} .") for name in actions]),
        grammar=fixed_words(vocab_size, [encode(name)[0] for name in actions], encode(".")[0]),
    )


def cell_name(row: int, col: int) -> str:
    """Name a cell as on a chess board, rows counted from the top: row 0, column 0 is `a1`."""
    return f"{'abcdefghij'[col]}{row + 1}"


def _lake_words(desc: Sequence[str], *, foggy: bool) -> str:
    cells = [(r, c, letter) for r, row in enumerate(desc) for c, letter in enumerate(row)]
    goal = next(cell_name(r, c) for r, c, letter in cells if letter == "G")
    holes = [] if foggy else [cell_name(r, c) for r, c, letter in cells if letter == "H"]
    return " ".join(["goal", goal, *(["-", *holes] if holes else [])])


def _chat_text(config: TaskConfig, tokenizer, descs: Sequence[Sequence[str]], vocab_size: int) -> LakeText:
    """Chat messages: the rules as system text, the lake and every observation as user text, a tagged action back.

    Pieces end where a line ends, so that joining them gives the ids that the whole text would.
    """
    encode = tokenizer.encode
    chat = chat_template.ChatIds.of(tokenizer)
    actions = ACTION_NAMES[: N_MOVES + config.lake.foggy]
    turns = range(1, config.t_max + 1)
    side = config.lake.max_size
    return LakeText(
        prompt_start=make_table([[*chat.message("system", _rules_text(config)), *chat.open("user")]]),
        lake=make_table([encode(_lake_lines(desc, foggy=config.lake.foggy)) for desc in descs]),
        budget=make_table([[], *(encode(f"You may take at most {n} turns.\n") for n in turns)]),
        prompt_end=make_table([[]]),
        turn_start=make_table([[], [*chat.newline, *chat.open("user")]]),
        place=make_table(
            [encode(f"You are at row {r + 1}, column {c + 1}.\n") for r in range(side) for c in range(side)]
        ),
        look=make_table([[], *(encode(_look_sentence(mask)) for mask in range(2**N_MOVES))]),
        turns_left=make_table([[], *(encode(f"Turns left: {n}.\n") for n in turns)]),
        turn_end=make_table([[*encode("Your move?"), *chat.close, *chat.open_reply(thinking=config.think != "off")]]),
        replies=make_table([[*encode(f"<action>{name}</action>"), chat.end] for name in actions]),
        grammar=tagged_action(tokenizer, actions, chat.stop_ids, vocab_size=vocab_size, think_ids=chat.think_ids),
    )


def _rules_text(config: TaskConfig) -> str:
    lake = config.lake
    moves = "left, down, right or up" + (", or look" if lake.foggy else "")
    letters = "S is where you start and G is the goal" + (
        "; all other cells may be ice or holes, which you cannot see" if lake.foggy else ", F is ice and H is a hole"
    )
    slips = (
        f" The ice is slippery: a move goes where you mean it with probability {lake.success_rate:.3g}, and otherwise "
        "slides to one of the two sides, each equally likely."
        if lake.success_rate < 1
        else ""
    )
    look = " To look costs a turn and tells which of the four cells around you are holes." if lake.foggy else ""
    return (
        "You walk over a frozen lake, a square grid. Rows are counted from the top and columns from the left, both "
        f"from 1. On the map {letters}. Reach the goal; a hole ends the game. Each reply makes one move: {moves}. A "
        f"move against the edge leaves you where you are.{slips}{look} End your reply with the move in tags, for "
        "example <action>down</action>; the first tag counts. A reply without one uses up a turn, and a reply that is "
        f"not over after {config.max_tokens} tokens ends the game."
    )


def _lake_lines(desc: Sequence[str], *, foggy: bool) -> str:
    rows = ["".join(letter if letter in "SG" else "?" for letter in row) for row in desc] if foggy else desc
    return "Map:\n" + "\n".join(rows) + "\n"


def _look_sentence(mask: int) -> str:
    directions = [name for bit, name in enumerate(ACTION_NAMES[:N_MOVES]) if mask >> bit & 1]
    if not directions:
        return "You look: no hole around you.\n"
    return f"You look: holes around you: {', '.join(directions)}.\n"
