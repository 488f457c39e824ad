"""Lakes and reference numbers that the FrozenLake tests share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxrl_agent.envs.frozenlake_maps import random_map

_RATES = (1 / 3, 0.8, 1.0, 0.5, 0.0)


@pytest.fixture(scope="session")
def golden() -> dict:
    """Numbers made with independent numpy code; lists are rounded to the digits shown."""
    return json.loads((Path(__file__).parent / "golden" / "frozenlake.json").read_text())


@pytest.fixture(scope="session")
def mixed_lakes() -> list[tuple[list[str], float]]:
    """200 maps of sizes 2 to 10, both kinds of start, each with a success rate."""
    return [
        (
            random_map(seed, size=2 + seed % 9, frozen_prob=(0.6, 0.75, 0.9)[seed % 3], start=start),
            _RATES[seed % len(_RATES)],
        )
        for seed, start in zip(range(200), ("corner", "random") * 100, strict=True)
    ]


@pytest.fixture(scope="session")
def gymnasium_table():
    """Return gymnasium's own table of a map: P(s'|s,a) [X, 4, X], and per s' its reward and termination."""
    lake = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake")

    def tabulate(desc: list[str], success_rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = lake.FrozenLakeEnv(desc=desc, success_rate=success_rate).P
        n_cells = len(table)
        matrix_X4X = np.zeros((n_cells, 4, n_cells))
        reward_X4X = np.zeros((n_cells, 4, n_cells))
        terminated_X4X = np.zeros((n_cells, 4, n_cells), bool)
        for cell, moves in table.items():
            for action, outcomes in moves.items():
                for probability, following, reward, terminated in outcomes:
                    matrix_X4X[cell, action, following] += probability
                    reward_X4X[cell, action, following] = reward
                    terminated_X4X[cell, action, following] = terminated
        return matrix_X4X, reward_X4X, terminated_X4X

    return tabulate
