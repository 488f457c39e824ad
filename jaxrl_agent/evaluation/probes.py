"""Probe any two policies that play the same game: load them, refuse what cannot be compared, and study the pairs."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence

import jax

from jaxrl_agent import assemble
from jaxrl_agent.checkpoint import policy_version
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ConfigError, TokenizerError
from jaxrl_agent.evaluation.device_arena import DeviceArena
from jaxrl_agent.evaluation.host_arena import HostArena
from jaxrl_agent.evaluation.pair_probe import Probed, ProbeSettings, Study, Subject, weight_files
from jaxrl_agent.models.chat_template import ChatIds
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.progress import Display
from jaxrl_agent.rollout.device_collect import row_width
from jaxrl_agent.run_dir import Json, to_jsonable
from jaxrl_agent.tasks import PROBES


def probe(
    base: Subject, policies: Sequence[Subject], settings: ProbeSettings, *, display: Display | None = None
) -> Iterator[Probed]:
    """Compare each policy with the base, and yield what was found pair by pair.

    Args:
        base: the policy that the others are compared with.
        policies: the others.
        settings: how much to sample.
        display: live view.

    Raises:
        ConfigError: the policies do not play the same task under the same settings, or the task has no probe.
        TokenizerError: they do not speak the same tokens.
        NonFiniteError: a log-probability that is not finite.
    """
    check_alike([base, *policies])
    if base.config.task.name not in PROBES:
        raise ConfigError("the task must have a probe", value=base.config.task.name, remedy=f"Known: {list(PROBES)}.")
    mesh = make_mesh(base.config.mesh)
    with jax.set_mesh(mesh), display or Display(mode="quiet") as display:
        loaded = [assemble.initial_policy(subject.config, mesh, jax.random.key(0)) for subject in (base, *policies)]
        check_tokenizers([base, *policies], loaded)
        arena, game = _arena(base.config, loaded, settings, mesh)
        study = Study(arena, settings, display, facts=_facts(base, game, settings))
        first = study.play(base, loaded[0])
        for subject, policy in zip(policies, loaded[1:], strict=True):
            yield study.pair(first, study.play(subject, policy))


def check_alike(subjects: Sequence[Subject]) -> None:
    """Refuse policies that do not play the same game, told the same, in the same words.

    Raises:
        ConfigError: names the first setting that differs.
    """
    first, *others = subjects
    ours = task_settings(first.config)
    for other in others:
        theirs = task_settings(other.config)
        for key, value in ours.items():
            if theirs[key] != value:
                raise ConfigError(
                    f"policies that are compared must have the same config.task.{key}",
                    value={first.name: value, other.name: theirs[key]},
                    remedy="What they do under different conditions says nothing about which is better.",
                )


def is_current(raw: Json, base: Subject, policy: Subject, settings: ProbeSettings) -> bool:
    """Whether a stored probe is the one that `probe` would make again."""
    names = {"base": base.config.init, "policy": policy.config.init}
    return (
        raw.get("settings") == to_jsonable(_settings(base.config, settings))
        and (raw.get("base"), raw.get("policy")) == (base.name, policy.name)
        and raw.get("checkpoints") == {side: policy_version(name) for side, name in names.items()}
        and raw.get("weight_files") == {side: weight_files(name) for side, name in names.items()}
    )


def _settings(config: Config, settings: ProbeSettings) -> Json:
    return {"task": to_dict(config.task), "probe": dataclasses.asdict(settings)}


def enforced_budget(config: Config, settings: ProbeSettings) -> int:
    """The budget of a study in turns, rounded up.

    Raises:
        ConfigError: the fraction is no number above 0 and at most 1.
    """
    if not 0 < settings.budget_fraction <= 1:
        raise ConfigError("budget_fraction must lie above 0 and at most at 1", value=settings.budget_fraction)
    return max(1, math.ceil(settings.budget_fraction * config.task.t_max - 1e-9))


def task_settings(config: Config) -> Json:
    """What must agree, flat; the tokenizer is compared by what it does, not by its name."""
    values = to_dict(config.task)
    parts = {f"{section}.{key}": value for section in ("lake", "coding") for key, value in values.pop(section).items()}
    return {key: value for key, value in (values | parts).items() if key not in ("n_train", "tokenizer")}


def check_tokenizers(subjects: Sequence[Subject], policies: Sequence[assemble.Policy]) -> None:
    """Refuse policies whose tokens spell different things, or that have other numbers of them.

    Raises:
        TokenizerError: names the two tokenizers, or the two sizes.
    """
    sizes = {subject.name: policy.model.vocab_size for subject, policy in zip(subjects, policies, strict=True)}
    if len(set(sizes.values())) > 1:
        raise TokenizerError(
            "policies that are compared must have embeddings of the same size",
            value=sizes,
            remedy="A token that one of them cannot say has no probability there; convert both to one size.",
        )
    names = {policy.tokenizer for policy in policies}
    digests = {name: _digest(name) for name in names}
    for subject, policy in zip(subjects[1:], policies[1:], strict=True):
        if digests[policy.tokenizer] != digests[policies[0].tokenizer]:
            raise TokenizerError(
                "policies that are compared must have the same tokenizer",
                value={subjects[0].name: policies[0].tokenizer, subject.name: policy.tokenizer},
                remedy="Log-probabilities of other tokens cannot be compared.",
            )


def check_room(policies: Sequence[assemble.Policy], game: assemble.Game, *, max_context: int = 0) -> None:
    """Refuse policies of which one has no room for trajectories that the other can finish.

    Args:
        policies: those that are compared.
        game: what they play.
        max_context: tokens of a trajectory that host code plays; 0 for all that a model has.

    Raises:
        ConfigError: names the tokens that each has room for.
    """
    if game.on_host:
        limit = max_context or math.inf
        widths = [min(policy.model.max_position_embeddings, limit) for policy in policies]
    else:
        widths = [row_width(policy.model, game.task, game.data) for policy in policies]
    if len(set(widths)) > 1:
        raise ConfigError(
            "policies that are compared must have room for the same trajectories",
            value=widths,
            remedy="Lower config.task.t_max or max_tokens (config.task.max_context where host code plays) until the "
            "shortest context is enough.",
        )


def _digest(name: str) -> str:
    """SHA-256 of what every id spells."""
    tokenizer = load_tokenizer(name)
    spelling = hashlib.sha256()
    for token in range(tokenizer.vocab_size):
        spelling.update(tokenizer.token_bytes(token) + b"\0")
    return spelling.hexdigest()


def _arena(config: Config, policies: Sequence[assemble.Policy], settings: ProbeSettings, mesh):
    game = assemble.build_game(config, settings.split, policies[0], mesh)
    check_room(policies, game, max_context=config.task.max_context)
    common = {
        "budget": enforced_budget(config, settings),
        "temperature": settings.temperature,
        "rows": config.evaluation.rows,
        "seed": settings.seed,
        "think_ids": ChatIds.of(game.tokenizer).think_ids if config.task.think != "off" else None,
    }
    asked = PROBES[config.task.name](game.task, game.instances)
    if game.on_host:
        return HostArena(game, asked, settings=assemble.collect_settings(config), **common), game
    return DeviceArena(game, asked, **common), game


def _facts(base: Subject, game: assemble.Game, settings: ProbeSettings) -> Json:
    task = base.config.task
    return {
        "task": task.name,
        "split": settings.split,
        "n_tasks": len(game.instances),
        "data_hash": game.instances.data_hash,
        "t_max": task.t_max,
        "budget": enforced_budget(base.config, settings),
        "budget_visibility": task.budget_visibility,
        "sampling": {
            "temperature": settings.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "think": task.think,
            "max_tokens": task.max_tokens,
        },
        "settings": _settings(base.config, settings),
        "seed": settings.seed,
        "samples": settings.samples,
        "replies_per_state": settings.replies,
        "continuations": settings.continuations,
    }
