"""Which algorithm goes with which budget schedule, reward and option; a meaningless pair is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl_agent.algorithms import ALGORITHMS, Algorithm, estimator_options
from jaxrl_agent.config import AlgorithmConfig, BudgetConfig, Config
from jaxrl_agent.errors import ConfigError

SECTIONS = ("ppo", "gigpo", "process")  # parts of config.algorithm that belong to one algorithm
_NOT_READ = {"turn": ("gamma", "lam"), "token": ("gamma_turn", "lam_turn")}  # by level of PPO's advantages
_MIXED = ("budget_mix", "headroom")  # schedules that draw several budgets in one update


def check_method(config: Config) -> None:
    """Refuse settings that would mean nothing together.

    Raises:
        ConfigError: names the settings, and why they do not go together.
    """
    algorithm = ALGORITHMS[config.algorithm.name]
    for rule, value, remedy in _faults(config, algorithm):
        raise ConfigError(rule, value=value, remedy=remedy)


def needs_exact_values(config: Config) -> bool:
    """Whether training reads exact values of its tasks: for process rewards, or for the headroom of budgets."""
    return ALGORITHMS[config.algorithm.name].process or config.budget.schedule == "headroom"


def _faults(config: Config, algorithm: Algorithm) -> Iterator[tuple[str, object, str]]:
    """(rule, value, remedy) of everything that is wrong."""
    yield from _strange_options(config, algorithm)
    yield from _strange_levels(config)
    yield from _strange_schedule(config, algorithm)
    name = config.algorithm.name
    if config.rollout.candidates > 1 and not algorithm.groups:
        yield (
            f"config.rollout.candidates must be 1 with algorithm {name}",
            config.rollout.candidates,
            "Groups without a spread of returns teach a critic as much as others; to leave them out would bias it.",
        )
    if config.rollout.prompts_per_update * config.rollout.candidates > config.task.n_train:
        yield (
            "config.rollout.prompts_per_update x candidates must not exceed config.task.n_train "
            f"({config.task.n_train})",
            config.rollout.prompts_per_update * config.rollout.candidates,
            "One update would meet a task twice.",
        )
    ppo = config.algorithm.ppo
    if algorithm.critic and config.train.updates and ppo.warmup_updates >= config.train.updates:
        yield (
            f"config.algorithm.ppo.warmup_updates must be below config.train.updates ({config.train.updates})",
            ppo.warmup_updates,
            "The policy would never learn.",
        )
    if algorithm.sequence_ratio and max(config.algorithm.clip_low, config.algorithm.clip_high) > 0.1:
        yield (
            "config.algorithm.clip_low and clip_high must be at most 0.1 with algorithm gspo",
            (config.algorithm.clip_low, config.algorithm.clip_high),
            "The ratio of a whole row is a geometric mean and hardly moves: its authors clip at 3e-4 and 4e-4.",
        )


def _strange_options(config: Config, algorithm: Algorithm) -> Iterator[tuple[str, object, str]]:
    """Options of another algorithm: they would be ignored without a word."""
    name, default = config.algorithm.name, AlgorithmConfig()
    for section in SECTIONS:
        if section != algorithm.section and getattr(config.algorithm, section) != getattr(default, section):
            owner = next(other for other, found in ALGORITHMS.items() if found.section == section)
            yield (
                f"config.algorithm.{section} belongs to algorithm {owner}",
                name,
                f"Set config.algorithm.name={owner}, or leave its options as they are.",
            )
    if "scale" not in estimator_options(name) and config.algorithm.scale != default.scale:
        yield (
            f"algorithm {name} does not read config.algorithm.scale, so it must be left alone",
            config.algorithm.scale,
            f"See config.algorithm.{algorithm.section} for what it has instead." if algorithm.section else "",
        )


def _strange_levels(config: Config) -> Iterator[tuple[str, object, str]]:
    """Discounts of a level that PPO's advantages do not have."""
    ppo, default = config.algorithm.ppo, AlgorithmConfig().ppo
    for name in _NOT_READ.get(ppo.level, ()):
        if getattr(ppo, name) != getattr(default, name):
            yield (
                f"config.algorithm.ppo.{name} must be left alone with config.algorithm.ppo.level={ppo.level}",
                getattr(ppo, name),
                "That level does not read it.",
            )


def _strange_schedule(config: Config, algorithm: Algorithm) -> Iterator[tuple[str, object, str]]:
    schedule, default = config.budget.schedule, BudgetConfig()
    if schedule == "budget_mix_marginal" and config.task.budget_visibility != "hidden":
        yield (
            "budget_mix_marginal needs config.task.budget_visibility=hidden",
            config.task.budget_visibility,
            "An agent that is told its budget can act on it, which the marginal reward cannot see.",
        )
    if schedule == "budget_mix_marginal" and algorithm.process:
        yield (
            "budget_mix_marginal must not be paired with process rewards",
            config.algorithm.name,
            "Their exact values are those of success within the budget, not of the reward w(t) that is paid; take "
            "config.budget.schedule=budget_mix.",
        )
    if schedule == "budget_mix_marginal" and config.task.name == "deepcoder" and config.task.coding.reward == "dense":
        yield (
            "budget_mix_marginal must not be paired with config.task.coding.reward=dense",
            config.task.coding.reward,
            "It pays successes alone, w(t) each; take reward=all, or config.budget.schedule=budget_mix.",
        )
    if config.budget.balance and schedule not in _MIXED:
        yield (
            f"config.budget.balance needs a schedule that mixes budgets ({', '.join(_MIXED)})",
            schedule,
            "With one budget in an update there is nothing to balance.",
        )
    if schedule != "headroom" and config.budget.uniform_share != default.uniform_share:
        yield ("config.budget.uniform_share belongs to schedule headroom", schedule, "Set it back, or take headroom.")
    if schedule != "curriculum" and config.budget.stage_updates != default.stage_updates:
        yield (
            "config.budget.stage_updates belongs to schedule curriculum",
            schedule,
            "Set it back, or take curriculum.",
        )
