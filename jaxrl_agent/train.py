"""The trainer loop: warm start, then reinforcement learning, with checkpoints from which a run goes on bit by bit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_agent import assemble
from jaxrl_agent.checkpoint import (
    REINFORCE,
    WARM_START,
    Checkpoints,
    abstract_params,
    describe_policy,
    with_shardings,
)
from jaxrl_agent.config import Config, build_config, to_dict
from jaxrl_agent.errors import CheckpointError, SandboxError
from jaxrl_agent.interrupts import Interrupted, Interrupts
from jaxrl_agent.learner.critic import init_critic
from jaxrl_agent.learner.fused_step import Experience, StepSettings, learn
from jaxrl_agent.learner.optimizer import check_skips
from jaxrl_agent.learner.packing import LIMITS, MACHINERY
from jaxrl_agent.learner.rollout_metrics import summarise
from jaxrl_agent.learner.train_state import TrainState, new_state, state_shardings
from jaxrl_agent.learner.warm_start import warm_start_steps
from jaxrl_agent.models.qwen3 import Qwen3Config
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.parallel.distributed import from_writer, is_writer, to_host
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.preflight import check_names, check_start
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import Json, RunDir
from jaxrl_agent.tensorboard import EventFile
from jaxrl_agent.types import StopReason

# What may differ between a run and its resumption: where it runs and how it is watched, not what it computes.
_MAY_CHANGE = (
    "mesh",
    "model.remat",
    *("rollout.lanes", "rollout.shelf", "rollout.environments", "rollout.environment_seconds"),
    "train.micro_batch_tokens",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.trajectories_every",
    "train.stored_trajectories",
    "evaluation",
)


_ALARM = 0.005  # share of trajectories that environments fail above which a user must hear of it


@dataclasses.dataclass(frozen=True)
class _Run:
    """What the loops share."""

    config: Config
    folder: RunDir
    policy: assemble.Policy  # its parameters are used up by the first state
    game: assemble.Game
    step: StepSettings
    roll_out: Callable[[TrainState], Experience]
    mesh: jax.sharding.Mesh
    checkpoints: Checkpoints
    display: Display
    signals: Interrupts
    events: EventFile | None
    key: jax.Array

    def log(self, row: Json, *, file: str = "metrics.jsonl") -> None:
        """Add a line to the metrics, and for TensorBoard."""
        self.folder.append_metrics(row, file=file)
        if self.events is not None:
            self.events.add(row, file=file)

    def save(self, phase: str, state: TrainState) -> None:
        """Save under the number of all updates so far, supervised ones included."""
        update = int(state.update)
        number = update + (_warm_updates(self.config) if phase == REINFORCE else 0)
        if number == self.checkpoints.latest():
            return
        self.checkpoints.save(number, state, self.describe(phase, update))

    def describe(self, phase: str, update: int) -> Json:
        """What a checkpoint of this run says of itself."""
        policy = self.policy
        return describe_policy(policy.model, policy.tokenizer, to_dict(self.config), phase=phase, update=update)


def train(
    config: Config,
    run_dir: str | Path,
    *,
    resume: bool = False,
    display: Display | None = None,
    tensorboard: bool = True,
) -> RunDir:
    """Train a policy and leave a run directory.

    Args:
        config: validated settings.
        run_dir: directory of the run; must be new unless `resume`.
        resume: go on from the newest checkpoint if there is one, else start; a finished run is left as it is.
        display: live view; a fresh one by default.
        tensorboard: write an event file as well.

    Returns:
        The run directory.

    Raises:
        CheckpointError: the directory holds a run and `resume` is False, or a run with other settings.
        ConfigError, TokenizerError, MapError, WeightsError: the settings cannot be met.
        NonFiniteError: too many optimizer steps in a row were not finite.
        Interrupted: SIGINT or SIGTERM came; the state after the latest update is saved.
    """
    check_names(config)
    check_start(config)
    saved = _newest_checkpoint(config, run_dir, resume=resume)
    mesh = make_mesh(config.mesh)
    with jax.set_mesh(mesh), display or Display(quiet=not is_writer()) as display:
        key_init, key_run = jax.random.split(jax.random.key(config.seed))
        policy = assemble.initial_policy(config, mesh, key_init) if saved is None else _shape_of(saved, config)
        game = assemble.build_game(config, "train", policy, mesh)
        step = assemble.build_step(config, policy, game)
        play = assemble.build_rollouts(config, step, policy, game)
        folder = _open(config, run_dir)  # only now, so that settings that cannot be met leave no directory behind
        keep = config.train.keep_checkpoints
        event_file = EventFile(folder) if tensorboard else contextlib.nullcontext()
        with Checkpoints(folder.checkpoints, keep=keep) as checkpoints, Interrupts() as signals, event_file as events:
            run = _Run(config, folder, policy, game, step, play, mesh, checkpoints, display, signals, events, key_run)
            state = _warm_start(run, saved)
            _reinforce(run, state)
    return folder


def _warm_updates(config: Config) -> int:
    """Supervised updates before reinforcement learning; none from given weights."""
    return 0 if config.init else config.warm_start.updates


def _newest_checkpoint(config: Config, path: str | Path, *, resume: bool) -> Json | None:
    """What the newest checkpoint of a run says of itself, None of a new one or one without.

    Raises:
        CheckpointError: the directory holds a run that may not be continued with these settings.
    """
    folder = RunDir(Path(path).expanduser().resolve())
    if not from_writer(_has_begun(folder)):
        return None
    if not resume:
        raise CheckpointError(
            "a new run needs a directory without one",
            value=str(path),
            remedy="Give --resume to go on with it, or another --run_dir.",
        )
    stored, given = to_dict(build_config(folder.config())), to_dict(config)
    changed = [name for name in _differences(stored, given) if not name.startswith(_MAY_CHANGE)]
    if changed:
        raise CheckpointError(
            "a run is resumed with the settings that it was started with",
            value=", ".join(f"{name}={_value(given, name)!r} for {_value(stored, name)!r}" for name in changed),
            remedy="Set these back, or start a new run with --init=run:DIR.",
        )
    with Checkpoints(folder.checkpoints) as checkpoints:
        return None if checkpoints.latest() is None else checkpoints.meta()


def _shape_of(saved: Json, config: Config) -> assemble.Policy:
    """The policy of a run that goes on, without parameters: its checkpoint holds them, wherever it started from."""
    model = assemble.with_runtime(Qwen3Config.from_hf(saved["model"]), config)
    return assemble.Policy(model, params=None, tokenizer=saved["tokenizer"])


def _has_begun(folder: RunDir) -> bool:
    """Whether a directory holds a run with anything to lose; one that was refused at its start leaves none behind."""
    saved = folder.checkpoints.is_dir() and any(path.name.isdigit() for path in folder.checkpoints.iterdir())
    return folder.exists() and bool(saved or folder.metrics() or folder.warm_start())


def _open(config: Config, path: str | Path) -> RunDir:
    """Open the run, or make it."""
    folder = RunDir(Path(path).expanduser().resolve(), writer=is_writer())
    begun = from_writer(_has_begun(folder))
    return folder if begun else RunDir.create(path, to_dict(config), writer=folder.writer)


def _value(values: Json, dotted: str) -> Any:
    return functools.reduce(dict.get, dotted.split("."), values)


def _differences(stored: Json, given: Json, prefix: str = "") -> list[str]:
    names = []
    for name in stored.keys() | given.keys():
        old, new = stored.get(name), given.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            names += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            names.append(prefix + name)
    return sorted(names)


def _warm_start(run: _Run, saved: Json | None) -> TrainState:
    """Bring the policy to where reinforcement learning begins, and return the state to go on from."""
    if saved is not None and saved["phase"] == REINFORCE:
        return _restore(run, functools.partial(_reinforcement_state, run))
    warm, total = run.config.warm_start, _warm_updates(run.config)
    if not total:
        return _begin_reinforcement(run, run.policy.params)
    settings, data = assemble.build_warm_start(run.config, run.policy, run.game)
    make = functools.partial(new_state, optimizer=settings.optimizer)
    if saved is not None:
        state = _restore(run, make)
    else:
        state = _first_state(run, make, run.policy.params, jax.random.fold_in(run.key, 0))
    done = int(state.update)
    run.folder.cut_metrics(done, file="warm_start.jsonl")
    run.display.start("warm start", total, done)
    while done < total:
        count = min(warm.log_every, total - done)
        state, metrics = _jitted(warm_start_steps, settings, count=count)(state, data)
        done += count
        values = {name: float(value) for name, value in metrics.items()}
        run.log({"update": done, **values}, file="warm_start.jsonl")
        run.display.update(done, {"loss": values["loss"]})
        check_skips(state.skips, limit=warm.optimizer.max_bad_updates)
        number = run.signals.noted(done)
        if done < total and (number or done % warm.checkpoint_every < count):
            run.save(WARM_START, state)
        if done < total and number:
            raise Interrupted(number, f"{done} of {total} supervised updates")
    return _begin_reinforcement(run, state.params)


def _begin_reinforcement(run: _Run, params: Any) -> TrainState:
    """Make and save the state before the first update of reinforcement learning."""
    make = functools.partial(_reinforcement_state, run)
    state = _first_state(run, make, params, jax.random.fold_in(run.key, 1))
    if run.config.algorithm.kl_coefficient > 0:
        with Checkpoints(run.folder.reference, keep=1) as reference:
            if reference.latest() is None:  # else the run was killed just here, and the parameters are the same
                reference.save_params(0, state.params, run.describe(REINFORCE, 0))
    run.save(REINFORCE, state)
    return state


def _reinforce(run: _Run, state: TrainState) -> None:
    config = run.config
    update = _jitted(learn, run.step)
    describe = _jitted(summarise, run.step, donate=())
    reference = _reference(run)
    done, total = int(state.update), config.train.updates
    if done == total:
        run.display.say(f"all {total} updates are done" if total else "saved, without reinforcement learning")
    run.folder.cut_metrics(done)
    run.display.start("training", total, done)
    while done < total:
        compiled, began = compiled_programs(), time.perf_counter()
        experience = jax.block_until_ready(run.roll_out(state))
        sampled = time.perf_counter()
        _check_environments(run, state, experience)
        state, metrics = update(state, experience, reference)
        metrics = to_host({**metrics, **describe(experience)})
        done += 1
        seconds = {"rollout": sampled - began, "logprobs": 0.0, "update": time.perf_counter() - sampled}
        row = _row(done, metrics, seconds, compiled_programs() - compiled)
        row |= run.roll_out.figures()
        run.log(row)
        run.display.update(done, {name: row[name] for name in ("success", "turns", "tokens_per_s")})
        check_skips(state.skips, limit=config.optimizer.max_bad_updates)
        if done % config.train.trajectories_every == 0 or done == total:
            _store_trajectories(run, experience, done)
        number = run.signals.noted(done)
        if number or done % config.train.checkpoint_every == 0 or done == total:
            run.save(REINFORCE, state)
        if number and done < total:
            raise Interrupted(number, f"{done} of {total} updates")


def _row(update: int, metrics: dict[str, np.ndarray], seconds: dict[str, float], compiles: int) -> Json:
    """One line of metrics.jsonl; tokens_per_s counts sampled tokens over rollout and update together."""
    values = {name: value.tolist() for name, value in metrics.items()}
    values["stop_reasons"] = {
        reason.value: share for reason, share in zip(StopReason, values["stop_reasons"], strict=True) if share
    }
    tokens_per_s = values["sampled_tokens"] / (seconds["rollout"] + seconds["update"])
    return {"update": update, **values, "tokens_per_s": tokens_per_s, "seconds": seconds, "compiles": compiles}


def _check_environments(run: _Run, state: TrainState, experience: Experience) -> None:
    """Save and stop if environments failed in every trajectory of an update; warn if they failed in some.

    Warn as well if every reply was cut, so that all are masked: limits that are too tight look like a run that works.

    Raises:
        SandboxError: environments failed, or could not be checked, in every trajectory.
    """
    stop_B = to_host(experience.sampled.stop_B)
    failed_B = np.isin(stop_B, [reason.code for reason in MACHINERY])
    if failed_B.all():
        run.save(REINFORCE, state)
        raise SandboxError(
            "an update needs trajectories whose environments work and can be checked",
            value=f"all {len(failed_B)} failed: {run.roll_out.failures()}",
            remedy="Nothing was learned from them and the state before is saved: mend the cause, then give --resume.",
        )
    if failed_B.mean() > _ALARM:
        share, said = f"{failed_B.mean():.1%}", run.roll_out.failures()
        run.display.say(f"warning: environments failed in {share} of the trajectories, which are masked: {said}")
    masked = not run.config.algorithm.train_on_cut_replies
    if masked and np.isin(stop_B, [reason.code for reason in MACHINERY + LIMITS]).all():
        run.display.say("warning: nothing is learned: every reply was cut (config.task.max_tokens, max_context)")


def _store_trajectories(run: _Run, experience: Experience, update: int) -> None:
    rows = range(min(run.config.train.stored_trajectories, run.config.trajectories_per_update))
    # Sampled before the update that the file is named after.
    run.folder.write_trajectories(f"train_{update:06d}", run.roll_out.read(experience, rows, policy_version=update - 1))


def _reference(run: _Run) -> Any:
    """Parameters of the reference policy, or None where no term needs them."""
    if run.config.algorithm.kl_coefficient == 0:
        return None
    with Checkpoints(run.folder.reference, keep=1) as reference:
        return reference.restore_params(abstract_params(run.policy.model, run.mesh))


def _restore(run: _Run, make: Callable[..., TrainState]) -> TrainState:
    """Read the newest checkpoint into the shardings of this run's mesh."""
    params = abstract_params(run.policy.model, run.mesh)
    shapes = jax.eval_shape(lambda params, key: make(params, key=key), params, run.key)
    return run.checkpoints.restore(with_shardings(shapes, state_shardings(run.policy.model, shapes, run.mesh)))


def _first_state(run: _Run, make: Callable[..., TrainState], params: Any, key: jax.Array) -> TrainState:
    """Make a fresh state, every array straight in its sharding; `params` are used up, so memory holds them once."""

    def fill(params, key):
        return make(params, key=key)

    shardings = state_shardings(run.policy.model, jax.eval_shape(fill, params, key), run.mesh)
    return jax.jit(fill, out_shardings=shardings, donate_argnums=0)(params, key)


def _reinforcement_state(run: _Run, params: Any, *, key: jax.Array) -> TrainState:
    """State before the first update of reinforcement learning, where a critic begins."""
    update, critic = run.step.update, None
    if update.critic is not None:
        # A number that no update reaches, so that the critic shares its key with none of them.
        critic = init_critic(update.critic, update.model, params, jax.random.fold_in(key, 2**31))
    return new_state(params, update.optimizer, key, critic=critic)


@functools.cache
def _jitted(function, *settings, donate: tuple[int, ...] = (0,), **static):
    return jax.jit(functools.partial(function, *settings, **static), donate_argnums=donate)
