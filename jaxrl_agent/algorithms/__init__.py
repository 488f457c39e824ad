"""Reinforcement-learning algorithms as pure functions on arrays.

An estimator turns a finished rollout into one advantage for each sampled token:

    estimate(rollout, *, counted_B=None, **options) -> advantages_BL

`rollout` is a `types.Rollout`. `counted_B`, bool [B], is False on rows that must not move any statistic (padding, an
episode that could not be checked); they get 0. `advantages_BL`, float32 [B, L], is 0 where the loss mask is False.
Token level is the common denominator: trajectory-level methods repeat one number along the row, turn-level methods
along the turn. One with a critic takes its values as one more keyword, `values_BL`, and returns a
`ppo.CriticEstimate`. The loss that follows does not know which it was.

A new algorithm is a file with such a function and a line in `ALGORITHMS`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxrl_agent.algorithms import gigpo, grpo, ppo, process_reward
from jaxrl_agent.errors import ConfigError

Estimator = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """How advantages are made, and what else the trainer must provide.

    Attributes:
        estimate: the estimator.
        section: part of config.algorithm that holds its own options; empty for those at its top.
        critic: it needs a critic's values.
        process: it needs a task that offers process rewards.
        sequence_ratio: its loss has one ratio for each row (GSPO).
        groups: it compares the trajectories of a group, so that a group without spread teaches nothing.
    """

    estimate: Estimator
    section: str = ""
    critic: bool = False
    process: bool = False
    sequence_ratio: bool = False
    groups: bool = True


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Algorithm(grpo.estimate_grpo),
    "rloo": Algorithm(grpo.estimate_rloo),
    "gspo": Algorithm(grpo.estimate_grpo, sequence_ratio=True),
    "gigpo": Algorithm(gigpo.estimate_gigpo, section="gigpo"),
    "process_reward": Algorithm(process_reward.estimate, section="process", process=True),
    "ppo": Algorithm(ppo.estimate_ppo, section="ppo", critic=True, groups=False),
}

_ARRAY_ARGUMENTS = {"counted_B", "values_BL"}


def make_estimator(name: str, **options) -> Estimator:
    """Look an advantage estimator up and bind its options.

    Args:
        name: a key of `ALGORITHMS`.
        **options: static keyword arguments of that estimator, a subset of `estimator_options(name)`.

    Returns:
        A function `(rollout, *, counted_B=None) -> advantages_BL`, see the head of this module.

    Raises:
        ConfigError: unknown name, or an option that the estimator does not take.
    """
    known = estimator_options(name)
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"algorithm {name} takes the options {sorted(known)}", value=unknown, remedy="Correct or drop the option."
        )
    return functools.partial(ALGORITHMS[name].estimate, **options)


def estimator_options(name: str) -> frozenset[str]:
    """Name the static options that an estimator takes, for example `scale` of grpo.

    Raises:
        ConfigError: unknown name; the message lists the known ones.
    """
    if name not in ALGORITHMS:
        raise ConfigError(
            "an algorithm must have a known name", value=name, remedy=f"Choose one of {', '.join(ALGORITHMS)}."
        )
    parameters = inspect.signature(ALGORITHMS[name].estimate).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - _ARRAY_ARGUMENTS
