"""From a validated config to objects: the one place where names become tasks, models, algorithms and schedules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from jaxrl_agent.algorithms import ALGORITHMS, estimator_options, make_estimator
from jaxrl_agent.checkpoint import load_policy, split_policy_name
from jaxrl_agent.config import Config, OptimizerConfig
from jaxrl_agent.errors import ConfigError, TokenizerError
from jaxrl_agent.learner.critic import CriticSettings
from jaxrl_agent.learner.experience import StepSettings, TaskShape
from jaxrl_agent.learner.optimizer import make_optimizer, with_critic
from jaxrl_agent.learner.rollouts import DeviceRollouts, HostRollouts, Rollouts
from jaxrl_agent.learner.update import UpdateSettings
from jaxrl_agent.learner.warm_start import DrawnRows, PlayedInside, WarmStartSettings, written_rows
from jaxrl_agent.methods import needs_exact_values
from jaxrl_agent.models.qwen3 import Qwen3Config, init_params, param_axes
from jaxrl_agent.models.sizes import get_preset
from jaxrl_agent.models.tokenizer import Tokenizer, load_tokenizer
from jaxrl_agent.models.value_head import ValueHead
from jaxrl_agent.parallel.distributed import replicate
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.rollout.budget import BudgetSchedule, make_schedule
from jaxrl_agent.rollout.collect import CollectSettings
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.stage import DeviceStage, HostStage, Stage
from jaxrl_agent.tasks import DEMONSTRATIONS, HOST_TASKS, TASKS
from jaxrl_agent.tasks.frozenlake_demos import Demonstrator

# Equal settings give the same object, so that the runs of one process share their compiled programs.
_make_schedule, _make_estimator = functools.cache(make_schedule), functools.cache(make_estimator)
_with_critic = functools.cache(with_critic)


@dataclasses.dataclass(frozen=True)
class Game:
    """One split of a task, ready to be played."""

    task: Any  # the static half: a DeviceTask; or a HostTask
    data: Any  # device arrays; None where host code plays
    instances: Any  # the host's view
    tokenizer: Any

    @property
    def on_host(self) -> bool:
        """Whether host code plays it."""
        return self.data is None

    @property
    def shape(self) -> Any:
        """What the learner must know of the task, static under jit."""
        return TaskShape(self.task.t_max, self.task.max_tokens) if self.on_host else self.task


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model with its parameters and the tokenizer that it speaks."""

    model: Qwen3Config
    params: Any
    tokenizer: str
    update: int = 0  # reinforcement-learning updates that it has seen


def check_think(config: Config) -> None:
    """Refuse dialogues whose rows begin anew: a trajectory is one row, to which is only ever appended.

    Raises:
        ConfigError: reasoning is to be left out of later rows.
    """
    if config.task.think == "strip_by_rows":
        raise ConfigError(
            "config.task.think=strip_by_rows needs several rows a trajectory, which no task here trains on",
            value=config.task.name,
            remedy="Set config.task.think=keep: reasoning stays in the context, and a trajectory is one row.",
        )


def build_game(config: Config, split: str, policy: Policy, mesh: jax.sharding.Mesh) -> Game:
    """Build one split of the config's task for a policy, its data on every device of the mesh.

    Args:
        config: the settings.
        split: "train" or "test".
        policy: gives the tokenizer and the size of the vocabulary.
        mesh: the device mesh.

    Raises:
        TokenizerError: the tokenizer has more ids than the model, or lacks a word.
        MapError: the settings allow too few maps.
        ConfigError: the device path cannot treat reasoning as the settings want.
    """
    check_think(config)
    tokenizer, vocab_size = fitting_tokenizer(policy.tokenizer, policy.model), policy.model.vocab_size
    make = functools.partial(TASKS[config.task.name], config.task, tokenizer, split, vocab_size=vocab_size)
    if config.task.name in HOST_TASKS:
        task, instances = make()
        return Game(task, None, instances, tokenizer)
    task, data, instances = make(exact=split == "train" and needs_exact_values(config))
    return Game(task, replicate(data, mesh), instances, tokenizer)


def fitting_tokenizer(name: str, model: Qwen3Config) -> Tokenizer:
    """Load the tokenizer that a model speaks.

    Raises:
        TokenizerError: nothing is found there, or it has more ids than the model.
    """
    tokenizer = load_tokenizer(name)
    if tokenizer.vocab_size > model.vocab_size:
        raise TokenizerError(
            f"the model's vocabulary ({model.vocab_size}) must hold every id of the tokenizer {name!r}",
            value=tokenizer.vocab_size,
            remedy="Set config.task.tokenizer to the tokenizer of the model.",
        )
    return tokenizer


def build_stage(config: Config, model: Qwen3Config, game: Game, sampling: SamplingSettings) -> Stage:
    """Where trajectories of a game are played, under any policy of one shape."""
    if game.on_host:
        settings = collect_settings(config)
        return HostStage(model, game.task, game.instances, game.tokenizer, sampling, settings)
    return DeviceStage(model, game.task, game.data, game.instances, game.tokenizer, sampling)


def collect_settings(config: Config) -> CollectSettings:
    """How many trajectories of a task that host code plays are under way at one time."""
    rollout = config.rollout
    return CollectSettings(
        lanes=rollout.lanes,
        shelf=rollout.shelf,
        environments=rollout.environments,
        environment_seconds=rollout.environment_seconds,
        answer_steps=rollout.answer_steps,
        max_context=config.task.max_context,
    )


def initial_policy(config: Config, mesh: jax.sharding.Mesh, key: jax.Array) -> Policy:
    """Load the policy that `config.init` names, or draw fresh parameters of the preset, sharded over `mesh`.

    Raises:
        ConfigError: the run that it comes from treated reasoning otherwise.
    """
    if not config.init:
        model = with_runtime(get_preset(config.model.preset), config)
        draw = jax.jit(init_params, static_argnums=0, out_shardings=param_shardings(model, mesh))
        return Policy(model, draw(model, key), config.task.tokenizer)
    found = load_policy(config.init, mesh=mesh)
    if found.think not in (None, config.task.think):
        raise ConfigError(
            f"config.task.think must be that of {config.init} ({found.think})",
            value=config.task.think,
            remedy="What two treatments of reasoning yield is not comparable; to mix them on purpose, export the "
            "weights and give them as hf:DIR.",
        )
    wanted = config.task.tokenizer
    if found.tokenizer and wanted and wanted != found.tokenizer:
        raise TokenizerError(
            f"config.task.tokenizer must be the tokenizer of the policy that a run begins with, {found.tokenizer!r}",
            value=wanted,
            remedy="Set it to that name, or to nothing.",
        )
    tokenizer = found.tokenizer or wanted or split_policy_name(config.init)[1]
    return Policy(with_runtime(found.model, config), found.params, tokenizer, found.update)


def with_runtime(model: Qwen3Config, config: Config) -> Qwen3Config:
    """Put the settings of how to compute into a model's configuration."""
    settings = config.model
    return dataclasses.replace(model, dtype=settings.dtype, remat=settings.remat, attention=settings.attention)


def param_shardings(model: Qwen3Config, mesh: jax.sharding.Mesh) -> Any:
    """NamedShardings of the model's parameters."""
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    return tree_shardings(param_axes(model), shapes, mesh)


@functools.cache  # for the same reason
def build_optimizer(settings: OptimizerConfig, total_steps: int):
    """The optimizer and its schedule for a run of `total_steps` optimizer steps."""
    values = dataclasses.asdict(settings)
    values.pop("max_bad_updates")
    return make_optimizer(**values, total_steps=max(total_steps, 1))


def build_schedule(config: Config) -> BudgetSchedule:
    """The budget schedule with its options.

    Raises:
        ConfigError: a curriculum without caps within 1..t_max, or caps for another schedule.
    """
    budget, options = config.budget, {}
    if budget.schedule == "headroom":
        options = {"uniform_share": budget.uniform_share}
    if budget.schedule == "curriculum":
        options = {"caps": budget.caps, "every": budget.stage_updates}
    elif budget.caps:
        raise ConfigError(
            "config.budget.caps belong to schedule curriculum",
            value=budget.caps,
            remedy=f"Set config.budget.schedule=curriculum, or leave them out with {budget.schedule}.",
        )
    return _make_schedule(budget.schedule, **options)


def build_step(config: Config, policy: Policy, game: Game) -> StepSettings:
    """Static settings of the reinforcement-learning step.

    Raises:
        ConfigError: there are fewer instances than one update draws.
    """
    check_enough(config, len(game.instances))
    algorithm, rollout = ALGORITHMS[config.algorithm.name], config.rollout
    own = getattr(config.algorithm, algorithm.section, None)
    options = {
        name: getattr(own if hasattr(own, name) else config.algorithm, name)
        for name in estimator_options(config.algorithm.name)
    }
    return StepSettings(
        task=game.shape,
        sampling=SamplingSettings(rollout.temperature, rollout.top_k, rollout.top_p),
        update=UpdateSettings(
            model=policy.model,
            algorithm=config.algorithm,
            optimizer=policy_optimizer(config),
            temperature=rollout.temperature,
            mini_batches=config.train.mini_batches,
            micro_batch_tokens=config.train.micro_batch_tokens,
            sequence_ratio=algorithm.sequence_ratio,
            critic=build_critic(config),
        ),
        schedule=build_schedule(config),
        estimator=_make_estimator(config.algorithm.name, **options),
        n_instances=len(game.instances),
        prompts=rollout.prompts_per_update,
        group_size=rollout.group_size,
        marginal_reward=config.budget.schedule == "budget_mix_marginal",
        candidates=rollout.candidates,
        balance=config.budget.balance,
    )


def check_enough(config: Config, instances: int) -> None:
    """Refuse to draw more instances in one update than there are.

    Raises:
        ConfigError: says how many there are.
    """
    drawn = config.rollout.prompts_per_update * config.rollout.candidates
    if drawn > instances:
        raise ConfigError(
            f"an update must not draw more instances than the {instances} that there are",
            value=drawn,
            remedy="Lower config.rollout.prompts_per_update (times candidates), or take a larger source of instances.",
        )


def build_rollouts(config: Config, step: StepSettings, policy: Policy, game: Game) -> Rollouts:
    """What plays the trajectories of each update."""
    if game.on_host:
        return HostRollouts(step, build_stage(config, policy.model, game, step.sampling))
    return DeviceRollouts(step, game.data, game.instances, game.tokenizer)


def build_critic(config: Config) -> CriticSettings | None:
    """Static settings of the critic; None for algorithms without one."""
    if not ALGORITHMS[config.algorithm.name].critic:
        return None
    ppo = config.algorithm.ppo
    return CriticSettings(
        head=ValueHead(width=ppo.width, turns=config.task.t_max if ppo.turns_visible else 0),
        separate=ppo.trunk == "separate",
        coefficient=ppo.value_coefficient,
        clip=ppo.value_clip,
        warmup=ppo.warmup_updates,
    )


def training_optimizer(config: Config, make: Callable[[int], optax.GradientTransformation]):
    """The optimizer of reinforcement learning, with parts for the critic where there is one.

    Args:
        config: the settings.
        make: the optimizer of `config.optimizer` for a number of optimizer steps.
    """
    ppo, updates, per_update = config.algorithm.ppo, config.train.updates, config.train.mini_batches
    if not ALGORITHMS[config.algorithm.name].critic:
        return make(updates * per_update)
    return _with_critic(
        make((updates - ppo.warmup_updates) * per_update),  # the policy's schedule begins when the policy does
        learning_rate=ppo.learning_rate,
        clip_norm=config.optimizer.clip_norm,
        trunk=make(updates * per_update) if ppo.trunk == "separate" else None,
    )


def policy_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimizer that reinforcement learning uses; equal settings give the same object."""
    return training_optimizer(config, lambda steps: build_optimizer(config.optimizer, steps)[0])


def build_warm_start(config: Config, policy: Policy, game: Game) -> tuple[WarmStartSettings, Any]:
    """Static settings of the supervised step, and the data that it draws from.

    Demonstrations of a task that host code plays are made here, all of them: that may take minutes.
    """
    warm = config.warm_start
    optimizer, _ = build_optimizer(warm.optimizer, warm.updates)
    if game.on_host:
        make = DEMONSTRATIONS[config.task.name]
        own = policy.model.max_position_embeddings
        context = min(config.task.max_context or own, own)
        rows = make(game.task, warm.demonstrations, seed=config.seed, config=warm, context=context)
        written = written_rows(rows)
        width = int(np.asarray(written.batch.loss_mask_BL).sum(axis=1).max())
        return WarmStartSettings(policy.model, DrawnRows(warm.batch, width), optimizer), written
    source = PlayedInside(
        task=game.task,
        actor=Demonstrator.of(game.task, warm),
        n_instances=len(game.instances),
        batch=warm.batch,
        turns=warm.turns,
        width=warm.turns * game.data.text.replies.width,
    )
    return WarmStartSettings(policy.model, source, optimizer), game.data
