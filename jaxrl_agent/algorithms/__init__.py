"""Reinforcement-learning algorithms as pure functions on arrays.

An estimator turns a finished rollout into one advantage for each sampled token:

    estimator(rollout, *, counted_B=None, **options) -> advantages_BL

`rollout` is a `types.Rollout`. `counted_B`, bool [B], is False on rows that must not move any statistic (padding, an
episode that could not be checked); they get 0. `advantages_BL`, float32 [B, L], is 0 where the loss mask is False.
Token level is the common denominator: trajectory-level methods repeat one number along the row, turn-level methods
along the turn, PPO computes it token by token and takes the critic's values as one more keyword. The loss that
follows does not know which it was.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax

from jaxrl_agent.algorithms import grpo
from jaxrl_agent.errors import ConfigError

Estimator = Callable[..., jax.Array]

ALGORITHMS: dict[str, Estimator] = {
    "grpo": grpo.estimate_grpo,
    "rloo": grpo.estimate_rloo,
}

_ARRAY_ARGUMENTS = {"counted_B"}


def make_estimator(name: str, **options) -> Estimator:
    """Look an advantage estimator up and bind its options.

    Args:
        name: a key of `ALGORITHMS`.
        **options: static keyword arguments of that estimator, a subset of `estimator_options(name)`.

    Returns:
        A function `(rollout, *, counted_B=None) -> advantages_BL`.

    Raises:
        ConfigError: unknown name, or an option that the estimator does not take.
    """
    known = estimator_options(name)
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"algorithm {name} takes the options {sorted(known)}", value=unknown, remedy="Correct or drop the option."
        )
    return functools.partial(ALGORITHMS[name], **options)


def estimator_options(name: str) -> frozenset[str]:
    """Name the static options that an estimator takes, for example `scale` of grpo.

    Raises:
        ConfigError: unknown name; the message lists the known ones.
    """
    if name not in ALGORITHMS:
        raise ConfigError(
            "an algorithm must have a known name", value=name, remedy=f"Choose one of {', '.join(ALGORITHMS)}."
        )
    parameters = inspect.signature(ALGORITHMS[name]).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) - _ARRAY_ARGUMENTS
