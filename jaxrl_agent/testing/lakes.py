"""Games of FrozenLake on maps that a test writes down itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl_agent.assemble import Game
from jaxrl_agent.config import LakeConfig, TaskConfig
from jaxrl_agent.envs import frozenlake, frozenlake_exact, frozenlake_maps
from jaxrl_agent.models.tokenizer import Tokenizer, load_tokenizer
from jaxrl_agent.tasks.frozenlake import QUALITY_GAMMA, LakeData, LakeInstances, LakeTask
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES, make_text
from jaxrl_agent.testing.replies import TagTokenizer

# Small and large, with and without holes; shortest paths of 6, 1, 1 and 2 moves.
FOUR_LAKES = (
    ("SFFF", "FHFH", "FFFH", "HFFG"),
    ("FFF", "FSH", "FGF"),
    ("GFFF", "SFFF", "FFFF", "FFFF"),
    ("FS", "GF"),
)
SPARE_IDS = 3  # ids of `tag_game`'s models beyond its tokenizer's
CHAT = {"text": "chat", "tokenizer": "byte", "max_tokens": 40}  # settings of a game in chat messages


def lake_game(
    descs: Sequence[Sequence[str]],
    *,
    tokenizer: Tokenizer | str = "lake_words",
    spare_ids: int = 0,
    lake: dict[str, Any] | None = None,
    **task: Any,
) -> Game:
    """Build the game of exactly these maps.

    Args:
        descs: the maps.
        tokenizer: a tokenizer, or the name of one.
        spare_ids: ids of the model beyond the tokenizer's.
        lake: settings of `LakeConfig`; the largest size follows from the maps.
        task: settings of `TaskConfig`.
    """
    side = max(map(len, descs))
    config = TaskConfig(**task, lake=LakeConfig(max_size=side, **lake or {}))
    words = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    maps = frozenlake_maps.stack_maps(descs, side)
    rate = config.lake.success_rate
    data = LakeData(
        maps=maps,
        quality_NX4=frozenlake_exact.discounted_q_maps(maps, success_rate=rate, gamma=QUALITY_GAMMA, sweeps=400),
        horizon_NHX4=frozenlake_exact.finite_horizon_q_maps(maps, success_rate=rate, horizon=config.t_max),
        text=make_text(config, words, descs, vocab_size=words.vocab_size + spare_ids),
    )
    static = LakeTask(
        rules=frozenlake.LakeRules(success_rate=rate, foggy=config.lake.foggy),
        t_max=config.t_max,
        visibility=config.budget_visibility,
        max_tokens=config.max_tokens,
    )
    return Game(static, data, LakeInstances("test", [list(desc) for desc in descs], rules=str(static)), words)


def tag_game() -> Game:
    """The game in chat messages of at most four tokens, one of which can spell a whole tag."""
    tokenizer = TagTokenizer([f"<action>{name}</action>" for name in ACTION_NAMES])
    return lake_game(FOUR_LAKES, spare_ids=SPARE_IDS, t_max=4, **CHAT | {"tokenizer": tokenizer, "max_tokens": 4})
