"""What is refused before a run costs anything: names, pairs, limits, and what of data and tokenizers can be read."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxrl_agent.algorithms import ALGORITHMS
from jaxrl_agent.assemble import (
    build_optimizer,
    build_schedule,
    check_enough,
    check_think,
    fitting_tokenizer,
    policy_optimizer,
    with_runtime,
)
from jaxrl_agent.checkpoint import split_policy_name
from jaxrl_agent.config import Config, unknown_name
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.methods import check_method
from jaxrl_agent.models.qwen3_config import Qwen3Config
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.parallel.mesh import parse_mesh
from jaxrl_agent.rollout.budget import BUDGET_SCHEDULES, N_LEVELS
from jaxrl_agent.rollout.collect import check_reply_fits
from jaxrl_agent.tasks import DEMONSTRATIONS, HOST_TASKS, TASKS, WORST_SECONDS


def check_names(config: Config) -> None:
    """Refuse unknown names and meaningless pairs before anything is built; `--dry_run` calls it too.

    Raises:
        ConfigError: a task, preset, algorithm or schedule of this name does not exist, or two of them do not go
            together.
    """
    for key, name, known in (
        ("task.name", config.task.name, TASKS),
        ("algorithm.name", config.algorithm.name, ALGORITHMS),
        ("budget.schedule", config.budget.schedule, BUDGET_SCHEDULES),
    ):
        if name not in known:
            raise unknown_name(f"config.{key} must be a known name", name, known)
    check_think(config)
    check_time(config)
    check_context(config)
    check_demonstrations(config)
    if config.init:
        split_policy_name(config.init)
    else:  # given weights bring a shape of their own
        with_runtime(get_preset(config.model.preset), config)
    parse_mesh(config.mesh)
    schedule = build_schedule(config)
    jax.eval_shape(lambda key: schedule(config.task.t_max, 1, key, 0, jnp.ones(N_LEVELS)), jax.random.key(0))
    check_method(config)
    policy_optimizer(config)
    if not config.init and config.warm_start.updates:
        build_optimizer(config.warm_start.optimizer, config.warm_start.updates)


def check_time(config: Config) -> None:
    """Refuse a time limit of environments that a grading may reach whose programs are all slow.

    Raises:
        ConfigError: names the smallest limit.
    """
    if config.task.name not in WORST_SECONDS:
        return
    worst = WORST_SECONDS[config.task.name](config.task)
    if config.rollout.environment_seconds <= worst:
        raise ConfigError(
            f"config.rollout.environment_seconds must exceed {worst:g}, the longest that a turn can take",
            value=config.rollout.environment_seconds,
            remedy="A policy could escape its grades by slow programs, since turns that outlast the limit are masked; "
            "raise it, or lower config.task.coding.cpu_seconds.",
        )


def check_demonstrations(config: Config) -> None:
    """Refuse a warm start on a task of host code that nobody demonstrates.

    Raises:
        ConfigError: `config.init` names no policy, and no demonstrations were registered.
    """
    name, warm = config.task.name, config.warm_start.updates and not config.init
    if warm and name in HOST_TASKS and name not in DEMONSTRATIONS:
        raise ConfigError(
            "a warm start needs demonstrations of the task",
            value=name,
            remedy="Give --init, set config.warm_start.updates=0, or register them (tasks.register_host_task).",
        )


def check_context(config: Config) -> None:
    """Refuse trajectories of host code that have no room for a reply, before a warm start is paid for.

    Raises:
        ConfigError: a reply may be longer than `config.task.max_context`, or than all that a fresh model has.
    """
    if config.task.name in HOST_TASKS:
        fresh = 0 if config.init else get_preset(config.model.preset).max_position_embeddings
        check_reply_fits(config.task.max_tokens, min(filter(None, (config.task.max_context, fresh)), default=math.inf))


def check_start(config: Config) -> None:
    """Refuse to train from random weights without a warm start.

    Raises:
        ConfigError: no policy is named and there are no supervised updates.
    """
    if not config.init and not config.warm_start.updates and config.train.updates:
        raise ConfigError(
            "reinforcement learning needs a policy that sometimes succeeds",
            value="no --init and config.warm_start.updates=0",
            remedy="Give --init=hf:DIR or --init=run:DIR, or set config.warm_start.updates.",
        )


def check_task(config: Config) -> bool:
    """Refuse a tokenizer with more ids than the model, and for host tasks what building the task refuses.

    No device is touched: tasks that are played inside jit are not built.

    Returns:
        Whether that could be checked: a policy named by `config.init` brings its own tokenizer, and may lie elsewhere.

    Raises:
        TokenizerError, DataError, ConfigError: as at the start of a run.
    """
    if not config.init and config.task.tokenizer:
        name, model = config.task.tokenizer, get_preset(config.model.preset)
    elif config.init and (found := _hf_config(config.init)):
        name, model = config.task.tokenizer or split_policy_name(config.init)[1], found
    else:
        return False
    tokenizer = fitting_tokenizer(name, model)
    if config.task.name in HOST_TASKS:
        drawn = config.rollout.prompts_per_update * config.rollout.candidates  # reading more would take longer
        few = dataclasses.replace(config.task, n_train=min(config.task.n_train, drawn))
        _, instances = HOST_TASKS[config.task.name](few, tokenizer, "train", vocab_size=model.vocab_size)
        if config.train.updates:
            check_enough(config, len(instances))
    return True


def _hf_config(init: str) -> Qwen3Config | None:
    """The shape of the model in a Hugging Face folder, if that is what a policy's name means and it is here."""
    kind, path = split_policy_name(init)
    file = Path(path).expanduser() / "config.json"
    return Qwen3Config.from_hf(json.loads(file.read_text("utf-8"))) if kind == "hf" and file.is_file() else None
