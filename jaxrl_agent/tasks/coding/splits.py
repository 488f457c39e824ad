"""What decides order and split: the text of a problem, by SHA-256, never its place in a file or Python's own hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.tasks.coding.problem import Problem

SPLITS = ("train", "validation", "test")
TEMPLATE_SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}


def stable_fraction(*parts: object) -> float:
    """Number in [0, 1) that hangs on the text of the parts alone."""
    data = "\n".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") / 2**64


def split_of(content: str, shares: Mapping[str, float] = TEMPLATE_SHARES) -> str:
    """The split that a content belongs to, whatever the seed.

    Args:
        content: what is asked, as a text.
        shares: share of each split; they add up to 1.
    """
    left = stable_fraction("split", content)
    for split, share in shares.items():
        left -= share
        if left < 0.0:
            return split
    return list(shares)[-1]


def only_for_evaluation(source: str, split: str) -> None:
    """Refuse to train on a source that has only test problems.

    Raises:
        ConfigError: another split is asked for.
    """
    if split != "test":
        raise ConfigError(
            f"{source} is for evaluation only: all of it is split test",
            value=split,
            remedy="Train on mbpp, templates, own or deepcoder.",
        )


def select(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Keep `count` problems, in an order that hangs on their names alone; a smaller choice begins a larger one."""
    return sorted(problems, key=lambda problem: (stable_fraction(problem.problem_id), problem.problem_id))[:count]
