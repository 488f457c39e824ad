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

from jaxrl_agent.errors import ConfigError

VISIBILITIES = ("hidden", "total", "remaining")
THINK_POLICIES = ("off", "keep", "strip_by_rows")  # see models.chat_template.Dialogue
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")

_BOUNDS = {
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


def setting(default: Any, text: str, *, unit: str = "", choices: tuple = (), **bounds: float) -> Any:
    """A dataclass field with its help text, unit, allowed choices, and bounds: low, above, high, below."""
    return dataclasses.field(
        default=default, metadata={"help": text, "unit": unit, "choices": choices, "bounds": bounds}
    )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Which network, and how it computes. With `--init=hf:DIR` the checkpoint's own shape replaces the preset."""

    preset: str = setting("lake-tiny", "name in models/sizes.py")
    dtype: str = setting("float32", "compute dtype; parameters stay float32", choices=("float32", "bfloat16"))
    remat: bool = setting(False, "recompute each layer in the backward pass")
    attention: str = setting("xla", "attention kernel", choices=("xla", "cudnn"))


@dataclasses.dataclass(frozen=True)
class LakeConfig:
    """FrozenLake's maps and rules."""

    foggy: bool = setting(True, "hide the holes and add the action `look` (departs from the paper's four moves)")
    min_size: int = setting(4, "smallest side of a map", unit="cells", low=2)
    max_size: int = setting(4, "largest side of a map", unit="cells", low=2)
    frozen_prob: float = setting(0.8, "probability that a cell is ice", above=0.0, high=1.0)
    success_rate: float = setting(1.0, "probability of the intended direction", above=0.0, high=1.0)
    start: str = setting("random", "where start and goal lie", choices=("corner", "random"))
    min_path: int = setting(2, "smallest shortest path", unit="moves", low=1)
    min_holes: int = setting(1, "fewest holes", unit="cells", low=0)
    max_holes: int = setting(6, "most holes", unit="cells", low=0)
    map_seed: int = setting(0, "seed of the map pool", low=0)


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the agent does, in which words, and how many turns it may take at most."""

    name: str = setting("frozenlake", "name in tasks.TASKS")
    tokenizer: str = setting("lake_words", "embedded name, folder, or hub name; with --init=hf:DIR empty means DIR")
    text: str = setting("words", "prompt style: bare words, or chat messages", choices=("words", "chat"))
    think: str = setting(
        "off", "reasoning in chat: none, kept in the context, or left out of later rows", choices=THINK_POLICIES
    )
    t_max: int = setting(16, "largest budget", unit="turns", low=1)
    budget_visibility: str = setting("total", "what the agent is told of its budget", choices=VISIBILITIES)
    max_tokens: int = setting(2, "tokens that one reply may have", unit="tokens", low=1)
    n_train: int = setting(2048, "training instances", unit="tasks", low=1)
    n_test: int = setting(128, "held-out instances", unit="tasks", low=1)
    lake: LakeConfig = dataclasses.field(default_factory=LakeConfig)


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """How training trajectories are sampled."""

    prompts_per_update: int = setting(16, "groups in one update", unit="prompts", low=1)
    group_size: int = setting(8, "trajectories of one prompt", unit="trajectories", low=2)
    temperature: float = setting(1.0, "sampling temperature", low=0.0)
    top_k: int = setting(0, "keep the k likeliest tokens (the loss does not see it); 0 keeps all", unit="tokens", low=0)
    top_p: float = setting(1.0, "keep the smallest set with this probability (as top_k)", above=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """How each group's turn budget is drawn during training."""

    schedule: str = setting("fixed", "name in rollout.budget.BUDGET_SCHEDULES")
    caps: tuple[int, ...] = setting((), "budgets of the stages, for schedule curriculum alone", unit="turns", low=1)
    stage_updates: int = setting(50, "length of a stage, for schedule curriculum alone", unit="updates", low=1)


@dataclasses.dataclass(frozen=True)
class AlgorithmConfig:
    """From rewards to a loss."""

    name: str = setting("grpo", "name in algorithms.ALGORITHMS")
    scale: str = setting("group", "what advantages are divided by", choices=("group", "batch", "none"))
    clip_low: float = setting(0.2, "ratios below 1 - clip_low get no gradient", low=0.0)
    clip_high: float = setting(0.28, "ratios above 1 + clip_high get no gradient", low=0.0)
    dual_clip: float = setting(0.0, "bound of the loss for negative advantages; 0 turns it off", low=0.0)
    aggregation: str = setting("seq_mean_token_sum_norm", "how token losses become one number", choices=AGGREGATIONS)
    kl_coefficient: float = setting(0.0, "weight of k3 against the reference policy; 0 needs no reference", low=0.0)
    entropy_coefficient: float = setting(0.0, "weight of the entropy bonus", low=0.0)
    importance_cap: float = setting(0.0, "cap of token-level importance weights; 0 turns them off", low=0.0)
    train_on_cut_replies: bool = setting(False, "keep replies cut by the token or context limit in the loss")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = setting(7e-4, "peak learning rate", low=0.0)
    schedule: str = setting("constant", "shape after warm-up", choices=("constant", "linear", "cosine"))
    warmup: int = setting(0, "linear warm-up", unit="optimizer steps", low=0)
    final_fraction: float = setting(0.0, "last learning rate over the peak, for linear and cosine", low=0.0, high=1.0)
    b1: float = setting(0.9, "decay of the first moment", low=0.0, below=1.0)
    b2: float = setting(0.99, "decay of the second moment", low=0.0, below=1.0)
    eps: float = setting(1e-8, "added to the root of the second moment", low=0.0)
    weight_decay: float = setting(0.01, "decoupled decay of matrices", low=0.0)
    clip_norm: float = setting(1.0, "largest global gradient norm", low=0.0)
    max_bad_updates: int = setting(10, "stop after so many non-finite optimizer steps in a row", low=1)


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on imperfect demonstrations: the stand-in for a pretrained model."""

    updates: int = setting(800, "supervised updates; 0 skips the warm start", unit="optimizer steps", low=0)
    batch: int = setting(48, "fresh demonstrations in one update", unit="trajectories", low=1)
    turns: int = setting(12, "length of a demonstration, not cut by the budget that it shows", unit="turns", low=1)
    random_move: float = setting(0.05, "probability of a random action", low=0.0, high=1.0)
    repeat_mistake: float = setting(0.5, "probability of another after a random, not optimal one", low=0.0, high=1.0)
    look_base: float = setting(0.05, "probability of a look at budget 0", low=0.0, high=1.0)
    look_slope: float = setting(0.5, "what a full budget adds to it", low=0.0)
    log_every: int = setting(20, "updates between logged lines", unit="optimizer steps", low=1)
    checkpoint_every: int = setting(200, "updates between checkpoints", unit="optimizer steps", low=1)
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(
            learning_rate=5e-3, schedule="cosine", warmup=30, final_fraction=0.05, b2=0.999
        )
    )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The reinforcement-learning loop."""

    updates: int = setting(150, "policy updates (rollout + optimizer steps); 0 stops after the warm start", low=0)
    mini_batches: int = setting(2, "optimizer steps in one update, whatever the budgets were", low=1)
    micro_batch_tokens: int = setting(560, "token positions of one gradient piece on one device", unit="tokens", low=1)
    checkpoint_every: int = setting(50, "updates between checkpoints", unit="updates", low=1)
    keep_checkpoints: int = setting(2, "checkpoints kept", low=1)
    trajectories_every: int = setting(50, "updates between stored trajectories", unit="updates", low=1)
    stored_trajectories: int = setting(32, "trajectories stored each time", unit="trajectories", low=0)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Pass@(K,T) on held-out tasks."""

    samples: int = setting(16, "trajectories of each task and enforced budget", unit="trajectories", low=1)
    budget_fractions: tuple[float, ...] = setting(
        (0.25, 0.5, 0.75, 1.0), "enforced budgets over t_max", above=0.0, high=1.0
    )
    rows: int = setting(512, "trajectories in one compiled batch", unit="trajectories", low=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything an experiment depends on."""

    seed: int = setting(0, "root of all randomness but the map pool's", low=0)
    init: str = setting("", "initial policy: hf:DIR, run:DIR, or empty for random weights and a warm start")
    mesh: str = setting("", "AXIS:SIZE list over data, fsdp, tensor; empty = all devices on data")
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    rollout: RolloutConfig = dataclasses.field(default_factory=RolloutConfig)
    budget: BudgetConfig = dataclasses.field(default_factory=BudgetConfig)
    algorithm: AlgorithmConfig = dataclasses.field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    warm_start: WarmStartConfig = dataclasses.field(default_factory=WarmStartConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    @property
    def trajectories_per_update(self) -> int:
        """Rows of one rollout, B = P * G."""
        return self.rollout.prompts_per_update * self.rollout.group_size


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
