"""Policies of FrozenLake whose probabilities are known exactly: real networks that look only at the agent's cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_agent.assemble import Game, Policy
from jaxrl_agent.tasks.frozenlake_text import ACTION_NAMES, cell_name
from jaxrl_agent.tasks.pieces import make_table
from jaxrl_agent.testing.lakes import lake_game
from jaxrl_agent.testing.policies import SURE, leaning_policy


def tabular_game(descs: Sequence[Sequence[str]], **task: Any) -> Game:
    """The stock game of these maps, with a text in which the last word before a reply is the agent's cell.

    Args:
        descs: maps of one size.
        task: settings, see `lake_game`; the budget is hidden unless they say otherwise.
    """
    lake = {"foggy": False, **task.pop("lake", {})}
    game = lake_game(descs, **{"budget_visibility": "hidden", "lake": lake, **task})
    silent = make_table([[]] * len(game.data.text.look.lengths_R))
    return dataclasses.replace(game, data=game.data.replace(text=game.data.text.replace(look=silent)))


def tabular_policy(game: Game, policy_X4: np.ndarray) -> Policy:
    """A policy that moves by `policy_X4[cell]` whatever else stands in the row.

    Args:
        game: from `tabular_game`.
        policy_X4: probabilities of the four moves; they sum to 1, and 0 is a log-probability of about -SURE.
    """
    tokenizer = game.tokenizer
    moves = [tokenizer.encode(name)[0] for name in ACTION_NAMES[:4]]
    logits_VV = np.zeros((tokenizer.vocab_size,) * 2)
    side = round(len(policy_X4) ** 0.5)
    with np.errstate(divide="ignore"):
        log_X4 = np.maximum(np.log(policy_X4), -SURE)
    for cell, log_4 in enumerate(log_X4):
        word = tokenizer.encode(cell_name(cell // side, cell % side))[0]
        logits_VV[word] = -SURE
        logits_VV[word, moves] = log_4
    logits_VV[moves] = -SURE
    logits_VV[moves, tokenizer.encode(".")[0]] = SURE
    config, params = leaning_policy(logits_VV)
    return Policy(config, params, "lake_words")
