"""Episodes of a player who gives one reply again and again, on the device and on the host, seen in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.tasks.frozenlake_host import HostLake
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES
from jaxrl_agent.testing.lakes import CHAT, SPARE_IDS, lake_game
from jaxrl_agent.testing.policies import leaning_policy, successions
from jaxrl_agent.testing.replay import play
from jaxrl_agent.testing.replies import TagTokenizer
from jaxrl_agent.types import Rollout, StopReason

T_MAX, MAX_TOKENS = 4, 4
# What becomes of one who goes up and up: the goal in two moves, a hole, a wall for ever, the goal in one.
FAR, HOLE, WALL, NEAR = range(4)
LAKES = (("GFF", "FFF", "SFF"), ("HFG", "SFF", "FFF"), ("SFF", "FFF", "FFG"), ("GF", "SF"))


@dataclasses.dataclass(frozen=True)
class Seen:
    """One episode, whoever played it."""

    ids: list[int]
    turns: list[int]  # turn of a sampled id, -1 elsewhere
    stop: StopReason
    n_turns: int
    actions: list[str | None]
    cells: list[int]  # before each turn
    reward: float

    def reply(self, turn: int) -> list[int]:
        """Ids that the policy sampled in a turn."""
        return [token for token, of in zip(self.ids, self.turns, strict=True) if of == turn]

    def before(self, turn: int) -> list[int]:
        """The context that the reply of a turn was sampled behind."""
        return self.ids[: self.turns.index(turn)]


class Table:
    """A game in chat with a token for each whole tag.

    A reply is a chain of different ids; without an end token its last id is repeated until the reply is cut.

    Args:
        task: settings of `TaskConfig`.
    """

    def __init__(self, **task: Any):
        self.tokenizer = TagTokenizer([f"<action>{name}</action>" for name in ACTION_NAMES])
        settings = {**CHAT, "tokenizer": self.tokenizer, "max_tokens": MAX_TOKENS, "t_max": T_MAX}
        self.game = lake_game(LAKES, spare_ids=SPARE_IDS, **settings, **task)
        self.chat = ChatIds.of(self.tokenizer)
        self.vocab_size = self.tokenizer.vocab_size + SPARE_IDS

    def tag(self, name: str) -> int:
        """The id that spells a whole tag."""
        return self.tokenizer.tag_ids[f"<action>{name}</action>"]

    @property
    def up(self) -> list[int]:
        """A reply that goes up."""
        return [self.tag("up"), self.chat.end]

    def text(self, ids: Sequence[int]) -> str:
        """Ids to read."""
        return self.tokenizer.decode(ids)

    def rollout(self, reply: Sequence[int], *, instance: int, budget: int = T_MAX, context: int = 2048) -> Rollout:
        """A group of two trajectories on the device, with rows of at most `context` tokens."""
        follows = {reply[-1]: reply[-1]} | dict(zip((*self.chat.newline, *reply), reply, strict=False))
        logits_VV = successions(self.vocab_size, follows)
        config, params = leaning_policy(logits_VV, num_hidden_layers=1, max_position_embeddings=context)
        return play(self.game, config, params, instances=[instance], budgets=[budget], rows=[0, 1])

    def device(self, reply: Sequence[int], **arguments: int) -> Seen:
        """Play on the device, arguments as in `rollout`."""
        row = jax.tree.map(lambda leaf: leaf[0], self.rollout(reply, **arguments))
        length, count = int(row.batch.lengths_B), int(row.n_turns_B)
        return Seen(
            ids=row.batch.tokens_BL[:length].tolist(),
            turns=row.batch.turn_BL[:length].tolist(),
            stop=StopReason.from_code(int(row.stop_B)),
            n_turns=count,
            actions=[ACTION_NAMES[a] if a >= 0 else None for a in row.turns.action_BT[:count].tolist()],
            cells=row.turns.state_BT[:count].tolist(),
            reward=float(row.return_B),
        )

    def host(self, reply: Sequence[int], *, instance: int, budget: int = T_MAX, context: int = 2048) -> Seen:
        """Play on the host, arguments as in `rollout`."""
        if reply[-1] not in self.chat.stop_ids:
            reply = [*reply, *[reply[-1]] * (MAX_TOKENS - len(reply))]
        lake = HostLake(self.game.task, self.game.data, self.tokenizer)
        context = min(context, self.game.task.context_width(self.game.data))
        episode = lake.reset(instance, budget=budget, key=jax.random.key(0), context=context)
        cells, answers = [], []
        while episode.stop is None:
            cells.append(int(episode.state.cell))
            answers.append(episode.step(reply))
        return Seen(
            ids=episode.row.ids,
            turns=episode.row.turns,
            stop=episode.stop,
            n_turns=episode.n_turns,
            actions=[answer.parsed_action for answer in answers],
            cells=cells,
            reward=sum(answer.reward for answer in answers),
        )
