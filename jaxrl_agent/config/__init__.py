"""Frozen, typed settings of an experiment, each with its unit; unknown keys and wrong types are errors.

`configs/*.py` fill a locked ConfigDict made by `default_config()`, flags override it, and `build_config` turns it
into one `Config`, validated. Names of tasks, algorithms, presets and schedules are checked where they are assembled.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import typing
from typing import Any

import ml_collections

from jaxrl_agent.config.sections import (
    AGGREGATIONS,
    THINK_POLICIES,
    VISIBILITIES,
    AlgorithmConfig,
    BudgetConfig,
    CodingConfig,
    Config,
    EvaluationConfig,
    GigpoConfig,
    LakeConfig,
    ModelConfig,
    OptimizerConfig,
    PpoConfig,
    ProcessConfig,
    RolloutConfig,
    TaskConfig,
    TrainConfig,
    WarmStartConfig,
)
from jaxrl_agent.errors import ConfigError

__all__ = [
    "AGGREGATIONS",
    "THINK_POLICIES",
    "VISIBILITIES",
    "AlgorithmConfig",
    "BudgetConfig",
    "CodingConfig",
    "Config",
    "EvaluationConfig",
    "GigpoConfig",
    "LakeConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PpoConfig",
    "ProcessConfig",
    "RolloutConfig",
    "TaskConfig",
    "TrainConfig",
    "WarmStartConfig",
    "build_config",
    "check_key",
    "default_config",
    "describe",
    "to_dict",
    "unknown_name",
]

_BOUNDS = {
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


def default_config() -> ml_collections.ConfigDict:
    """A locked ConfigDict with every setting at its default: what a file in `configs/` starts from."""
    return ml_collections.ConfigDict(to_dict(Config())).lock()


def to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dict of a config or of one of its sections (tuples kept)."""
    return {
        field.name: to_dict(value) if dataclasses.is_dataclass(value := getattr(config, field.name)) else value
        for field in dataclasses.fields(config)
    }


def build_config(values: Any) -> Config:
    """Make the validated `Config` from a ConfigDict, or from the dict of a stored config.json.

    Raises:
        ConfigError: unknown key (names the nearest known one), wrong type, value out of range, or settings that
            contradict each other.
    """
    values = values.to_dict() if isinstance(values, ml_collections.ConfigDict) else values
    config = _build(Config, values, "config")
    _check_consistency(config)
    return config


def _build(cls: type, values: dict[str, Any], path: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a section", value=values, remedy=f"Set one of its keys, {path}.KEY.")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise unknown_name(f"{path} has no key of this name", key, fields)
    built = {}
    for name, value in values.items():
        where = f"{path}.{name}"
        if dataclasses.is_dataclass(hints[name]):
            built[name] = _build(hints[name], value, where)
        else:
            built[name] = _checked(value, hints[name], fields[name].metadata, where)
    return cls(**built)


def check_key(dotted: str) -> None:
    """Check that a dotted key such as `optimizer.learning_rate` names a setting or a section.

    Raises:
        ConfigError: it does not; the remedy names the nearest key.
    """
    cls, path = Config, "config"
    for key in dotted.split("."):
        hints = typing.get_type_hints(cls) if dataclasses.is_dataclass(cls) else {}
        if key not in hints:
            raise unknown_name(f"{path} has no key of this name", key, hints)
        cls, path = hints[key], f"{path}.{key}"


def unknown_name(rule: str, name: str, known: typing.Iterable[str]) -> ConfigError:
    """The error for a name that is not in `known`; the remedy gives the nearest one, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return ConfigError(rule, value=name, remedy=remedy)


def _checked(value: Any, expected: Any, metadata: Any, where: str) -> Any:
    """Return `value` in its declared type, or refuse it."""
    if typing.get_origin(expected) is tuple:
        inner = typing.get_args(expected)[0]
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{where} must be a list of {inner.__name__}", value=value)
        return tuple(_checked(item, inner, metadata, where) for item in value)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {expected.__name__}", value=value, remedy=metadata["help"] + ".")
    if metadata["choices"] and value not in metadata["choices"]:
        raise ConfigError(f"{where} must be one of {', '.join(metadata['choices'])}", value=value)
    for bound, limit in metadata["bounds"].items():
        holds, words = _BOUNDS[bound]
        if not holds(value, limit):
            raise ConfigError(f"{where} must be {words} {limit}", value=value)
    if expected is float and not math.isfinite(value):  # JSON has no infinity to store
        raise ConfigError(f"{where} must be finite", value=value)
    return value


def _check_consistency(config: Config) -> None:
    """Refuse settings that are each fine but contradict one another."""
    rollout, task, lake = config.rollout, config.task, config.task.lake
    if rollout.temperature == 0:
        raise ConfigError(
            "config.rollout.temperature must be above 0 in training",
            value=0.0,
            remedy="Greedy groups have no spread to learn from; use 1.0.",
        )
    if lake.min_size > lake.max_size or lake.min_holes > lake.max_holes:
        raise ConfigError("config.task.lake: a smallest value must not exceed its largest one", value=to_dict(lake))
    if task.text == "words" and task.think != "off":
        raise ConfigError(
            "config.task.think must be off with config.task.text=words",
            value=task.think,
            remedy="A reply in bare words has no room for reasoning; set config.task.text=chat.",
        )
    if rollout.prompts_per_update > task.n_train:
        raise ConfigError(
            f"config.rollout.prompts_per_update must not exceed config.task.n_train ({task.n_train})",
            value=rollout.prompts_per_update,
            remedy="One update would meet a task twice.",
        )
    if config.trajectories_per_update % config.train.mini_batches:
        raise ConfigError(
            f"config.train.mini_batches must divide the trajectories of an update ({config.trajectories_per_update})",
            value=config.train.mini_batches,
        )
    if 0 < config.algorithm.dual_clip <= 1:
        raise ConfigError("config.algorithm.dual_clip must be 0 or above 1", value=config.algorithm.dual_clip)
    if config.algorithm.overlong_buffer > task.max_tokens:
        raise ConfigError(
            f"config.algorithm.overlong_buffer must not exceed config.task.max_tokens ({task.max_tokens})",
            value=config.algorithm.overlong_buffer,
        )
    if 0 < config.budget.balance < 1:
        raise ConfigError("config.budget.balance must be 0 or at least 1", value=config.budget.balance)
    if config.algorithm.clip_low >= 1:
        raise ConfigError("config.algorithm.clip_low must be below 1", value=config.algorithm.clip_low)
    if not config.evaluation.budget_fractions:
        raise ConfigError("config.evaluation.budget_fractions must name at least one budget", value=())


def describe(config: Any, path: str = "config") -> list[str]:
    """Lines `path = value unit  # help`, one for each setting: what `--dry_run` prints."""
    lines = []
    for field in dataclasses.fields(config):
        value, where = getattr(config, field.name), f"{path}.{field.name}"
        if dataclasses.is_dataclass(value):
            lines += describe(value, where)
        else:
            unit = f" {field.metadata['unit']}" if field.metadata["unit"] else ""
            lines.append(f"{where} = {value!r}{unit}  # {field.metadata['help']}")
    return lines
