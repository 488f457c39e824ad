"""Settings that one compiled program can hold many values of, and how each enters the training step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax

from jaxrl_agent.assemble import training_optimizer
from jaxrl_agent.config import Config, build_config, check_key, to_dict
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.learner.fused_step import StepSettings
from jaxrl_agent.learner.optimizer import make_optimizer

# What a traced number may replace. Every other setting decides shapes, loops, or which terms a program has.
SCALARS = {
    "optimizer.learning_rate": "the peak of the schedule",
    "optimizer.weight_decay": "the decay of matrices in AdamW",
    "optimizer.b1": "the first moment of AdamW",
    "optimizer.b2": "the second moment of AdamW",
    "optimizer.eps": "the denominator of AdamW",
    "algorithm.clip_low": "the clip of the surrogate loss",
    "algorithm.clip_high": "the clip of the surrogate loss",
    "algorithm.entropy_coefficient": "a factor in the loss",
    "algorithm.kl_coefficient": "a factor in the loss; above 0 throughout, since 0 is a program without a reference",
}
_SWITCHES = ("algorithm.kl_coefficient",)  # at 0 the term is left out of the program


@dataclasses.dataclass(frozen=True)
class _Positive:
    """A traced factor that is known to be above 0, so that the switch `factor > 0` stays a decision of the program."""

    value: jax.Array

    def __gt__(self, other: float) -> bool:
        if other != 0:
            raise TypeError("a traced factor can be held against 0 alone")
        return True

    def __mul__(self, other: Any) -> Any:
        return self.value * other

    __rmul__ = __mul__


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Read `KEY:VALUE,VALUE` items of `--vary`.

    Raises:
        ConfigError: an item of another form, no number, a key given twice or one that cannot vary.
    """
    varied: dict[str, tuple[float, ...]] = {}
    for text in texts:
        key, colon, values = text.partition(":")
        if not colon or key in varied:
            raise ConfigError("--vary is KEY:VALUE,VALUE, once for each key", value=text)
        try:
            varied[key] = tuple(float(value) for value in values.split(","))
        except ValueError:
            check_variable(key)  # a key that takes words is refused for what it is
            raise ConfigError("--vary takes numbers", value=text) from None
    return varied


def check_variable(key: str) -> None:
    """Refuse a key that cannot vary inside one program.

    Raises:
        ConfigError: it names no setting, or one that a program is built around.
    """
    check_key(key)
    if key not in SCALARS:
        raise ConfigError(
            f"only numbers that enter the program as data may vary inside one: {', '.join(SCALARS)}",
            value=key,
            remedy="Others decide shapes, loops or terms, so each value needs a program of its own: give compare.py "
            "a config file for each.",
        )


def settings_grid(config: Config, varied: Mapping[str, Sequence[float]]) -> list[tuple[dict[str, float], Config]]:
    """List every combination of the varied values with its validated configuration, the last key fastest.

    Raises:
        ConfigError: a key that cannot vary, a value out of its bounds or given twice, or a term that is on in some
            settings and off in others.
    """
    for key, values in varied.items():
        check_variable(key)
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"--vary={key} needs values, each once", value=tuple(values))
        if key in _SWITCHES and min(values) <= 0:
            raise ConfigError(
                f"values of {key} must be above 0: without the term it is another program",
                value=tuple(values),
                remedy="Leave 0 out, and run it as a sweep of its own.",
            )
    grid = []
    for combination in itertools.product(*varied.values()):
        point = dict(zip(varied, combination, strict=True))
        plain = to_dict(config)
        for key, value in point.items():
            section, name = _split(key)
            functools.reduce(operator.getitem, section, plain)[name] = value
        grid.append((point, build_config(plain)))
    return grid


def with_scalars(step: StepSettings, config: Config, values: Mapping[str, jax.Array]) -> StepSettings:
    """Put traced numbers into the settings of the training step.

    Args:
        step: settings of the sweep.
        config: what does not vary.
        values: traced float32 scalars by key of `SCALARS`.
    """
    given: dict[str, dict[str, Any]] = {"optimizer": {}, "algorithm": {}}
    for key, value in values.items():
        (section,), name = _split(key)
        given[section][name] = _Positive(value) if key in _SWITCHES else value
    algorithm = dataclasses.replace(step.update.algorithm, **given["algorithm"])
    update = dataclasses.replace(step.update, algorithm=algorithm)
    if given["optimizer"]:
        update = dataclasses.replace(update, optimizer=_optimizer(config, given["optimizer"]))
    return dataclasses.replace(step, update=update)


def _optimizer(config: Config, given: Mapping[str, Any]) -> optax.GradientTransformation:
    """What `assemble.build_step` makes of the settings, of which some are traced."""
    settings = to_dict(config.optimizer) | given
    settings.pop("max_bad_updates")
    return training_optimizer(config, lambda steps: make_optimizer(**settings, total_steps=max(steps, 1))[0])


def _split(key: str) -> tuple[list[str], str]:
    *section, name = key.split(".")
    return section, name
