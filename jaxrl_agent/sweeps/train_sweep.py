"""Training sweeps: seeds times settings trained as one program, resumable, with all metrics as one table.

A member is what `train.py` makes of its seed and settings, to rounding: the same keys, the same order of data. The warm
start depends on the seed alone, so it is done once for each seed, all seeds in one program, and the settings of a seed
share it. A member whose updates are not finite skips them and the others go on; `train.py` would stop.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agent import assemble
from jaxrl_agent.checkpoint import REINFORCE, WARM_START, Checkpoints
from jaxrl_agent.config import Config
from jaxrl_agent.errors import ArgumentError, ConfigError
from jaxrl_agent.interrupts import Interrupted, Interrupts
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.parallel.compile_counter import compiled_programs
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.preflight import check_names, check_start
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import Json
from jaxrl_agent.sweeps.population import Member, Population, choose_map, restorable, updates_in_a_call
from jaxrl_agent.sweeps.scalars import settings_grid
from jaxrl_agent.sweeps.sweep_files import SweepFiles, identity
from jaxrl_agent.sweeps.sweep_tables import summarise
from jaxrl_agent.tasks import HOST_TASKS


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Who the members are."""

    config: Config
    seeds: Sequence[int]
    points: Sequence[dict[str, float]]  # values of the varied keys, one dict a setting

    @property
    def warm_updates(self) -> int:
        """Supervised updates before reinforcement learning; none from given weights."""
        return 0 if self.config.init else self.config.warm_start.updates

    @property
    def has_reference(self) -> bool:
        """Whether a KL term needs the policies that members start from."""
        return self.config.algorithm.kl_coefficient > 0 or "algorithm.kl_coefficient" in self.points[0]

    @property
    def rows(self) -> list[Json]:
        """Seed and varied values of every member, setting by setting."""
        return [{"seed": seed, **point} for point in self.points for seed in self.seeds]

    def keys(self, *path: int) -> list[jax.Array]:
        """A key for each seed, as `train.py` derives it: () of the parameters, (n,) number n of the run."""
        split = [jax.random.split(jax.random.key(seed)) for seed in self.seeds]
        return [jax.random.fold_in(run, *path) if path else init for init, run in split]

    def members(self) -> Member:
        """All members as arrays; every one starts from its seed's base, or all from the given weights."""
        bases = [0 if self.config.init else place for place in range(len(self.seeds))]
        rows = self.rows
        return Member(
            values={key: jnp.array([row[key] for row in rows], jnp.float32) for key in self.points[0]},
            base=jnp.array(bases * len(self.points), jnp.int32),
        )


@dataclasses.dataclass(frozen=True)
class _Sweep:
    """What the loops share."""

    plan: _Plan
    files: SweepFiles
    population: Population
    params: Any  # of the policy that the settings name; fresh ones are not used, each seed draws its own
    data: Any
    checkpoints: Checkpoints
    display: Display
    signals: Interrupts

    def save(self, phase: str, state: TrainState, update: int) -> None:
        """Save under the number of all updates so far, supervised ones included, and write the table up to there."""
        number = update + (self.plan.warm_updates if phase == REINFORCE else 0)
        if number == self.checkpoints.latest():
            return
        self.checkpoints.save(number, state, {"phase": phase, "update": update})
        if phase == REINFORCE:
            self.files.write_csv(self.plan.rows)


def sweep(
    config: Config,
    varied: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    out: str | Path,
    *,
    how: str = "auto",
    display: Display | None = None,
) -> Json:
    """Train every seed under every combination of the varied settings, all of them in one program.

    Args:
        config: validated settings; its seed is 0 and its mesh empty.
        varied: values by key of `scalars.SCALARS`; none trains seeds alone.
        seeds: one or more.
        out: FILE.csv; the same call goes on where it stopped, and leaves a finished sweep as it is.
        how: "vmap", "lax_map" or "auto", see `population.choose_map`.
        display: live view.

    Returns:
        What FILE.json holds.

    Raises:
        ArgumentError: no seed, a seed given twice, an unknown map, or a file that is no .csv.
        ConfigError: a key that cannot vary, a value out of range, or settings that cannot be met.
        CheckpointError: `out` belongs to something else.
        Interrupted: SIGINT or SIGTERM came; the state after the latest update is saved.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError("a sweep needs seeds, each once", value=list(seeds))
    how, files = choose_map(how), SweepFiles.at(out)
    grid = settings_grid(config, varied)
    _check([one for _, one in grid])
    about = identity(config, varied, seeds)
    stored = files.stored(about)
    plan = _Plan(config, seeds, [point for point, _ in grid])
    with display or Display() as display:
        if stored is not None and stored["finished"]:
            display.say(f"all {config.train.updates} updates are done")
            return stored
        population, policy, game = _assemble(plan, how)
        if stored is None:  # only now, so that settings that cannot be met leave nothing behind
            files.begin(about)
        with Checkpoints(files.state.checkpoints, keep=1) as checkpoints, Interrupts() as signals:
            run = _Sweep(plan, files, population, policy.params, game.data, checkpoints, display, signals)
            _reinforce(run, _warm_start(run))
    found = summarise(files.state.metrics(), plan.points, len(seeds))
    return files.finish({**found, "map": how, "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}"})


def _check(settings: Sequence[Config]) -> None:
    first = settings[0]
    if first.seed:
        raise ConfigError("config.seed must be 0: a sweep sets it for each member", value=first.seed)
    if first.mesh:
        raise ConfigError("config.mesh must be empty: a sweep shares its members out, each whole", value=first.mesh)
    if first.task.name in HOST_TASKS:
        raise ConfigError(
            "a sweep in one program needs a task that is played inside jit",
            value=first.task.name,
            remedy="Train its settings one by one with launch/compare.py or launch/train.py.",
        )
    if not first.train.updates:
        raise ConfigError("a sweep needs updates of reinforcement learning", value=0, remedy="Give --updates=N.")
    for config in settings:
        check_names(config)
        check_start(config)


def _assemble(plan: _Plan, how: str) -> tuple[Population, assemble.Policy, assemble.Game]:
    config, mesh = plan.config, make_mesh("data:1", jax.local_devices()[:1])
    policy = assemble.initial_policy(config, mesh, jax.random.key(0))
    game = assemble.build_game(config, "train", policy, mesh)
    step = assemble.build_step(config, policy, game)
    population = Population(
        step=step,
        warm=assemble.build_warm_start(config, policy, game)[0] if plan.warm_updates else None,
        config=config,
        how=how,
    )
    return population, policy, game


def _warm_start(run: _Sweep) -> TrainState:
    """Bring every seed to where reinforcement learning begins, and return the states of all members to go on from."""
    plan, population, files = run.plan, run.population, run.files.state
    saved = None if run.checkpoints.latest() is None else run.checkpoints.meta()
    if saved is not None and saved["phase"] == REINFORCE:
        return _restore(run, population.first_states, *_of_members(plan), _shapes_of_bases(run))
    if not plan.warm_updates:
        return _begin_reinforcement(run, _given_bases(run))
    warm, total = plan.config.warm_start, plan.warm_updates
    done = 0 if saved is None else saved["update"]
    if saved is None:
        states = population.base_states(*_of_seeds(plan))
    else:
        states = _restore(run, population.base_states, *_of_seeds(plan))
    files.cut_metrics(done, file="warm_start.jsonl")
    run.display.start(f"warm start of {len(plan.seeds)} seeds", total, done)
    while done < total:
        count = min(warm.log_every, total - done)
        states, metrics = population.warm_start(states, run.data, count=count)
        metrics = jax.device_get(metrics)
        done += count
        files.append_metrics({"update": done, "members": metrics}, file="warm_start.jsonl")
        run.display.update(done, {"loss": float(metrics["loss"].mean())})
        number = run.signals.noted(done)
        if done < total and (number or done % warm.checkpoint_every < count):
            run.save(WARM_START, states, done)
        if done < total and number:
            raise Interrupted(number, f"{done} of {total} supervised updates")
    return _begin_reinforcement(run, states.params)


def _begin_reinforcement(run: _Sweep, bases: Any) -> TrainState:
    """Make and save the states before the first update of reinforcement learning."""
    states = run.population.first_states(*_of_members(run.plan), bases)
    if run.plan.has_reference and run.plan.warm_updates:
        with Checkpoints(run.files.state.reference, keep=1) as reference:
            if reference.latest() is None:  # else the sweep was killed just here, and the parameters are the same
                reference.save_params(0, bases, {"phase": REINFORCE, "update": 0})
    run.save(REINFORCE, states, 0)
    return states


def _reinforce(run: _Sweep, states: TrainState) -> None:
    """Train all members, and note each update; its seconds are its share of the call, its compiles the whole call's."""
    plan, files, total = run.plan, run.files.state, run.plan.config.train.updates
    members, references = plan.members(), _references(run)
    done, every = int(states.update[0]), plan.config.train.checkpoint_every
    count = updates_in_a_call(total, every, done)
    files.cut_metrics(done)
    run.display.start(f"training of {len(plan.rows)} members", total, done)
    while done < total:
        compiled, began = compiled_programs(), time.perf_counter()
        states, metrics = run.population.advance(states, members, run.data, references, count=count)
        metrics = {name: value for name, value in jax.device_get(metrics).items() if value.ndim == 2}
        cost = {"seconds": (time.perf_counter() - began) / count, "compiles": compiled_programs() - compiled}
        for place in range(count):
            values = {name: value[:, place] for name, value in metrics.items()}
            files.append_metrics({"update": done + place + 1, "members": values, **cost})
        done += count
        run.display.update(
            done, {"success": float(metrics["success"][:, -1].mean()), "seconds an update": cost["seconds"]}
        )
        number = run.signals.noted(done)
        if number or done % every == 0 or done == total:
            run.save(REINFORCE, states, done)
        if number and done < total:
            raise Interrupted(number, f"{done} of {total} updates")


def _of_seeds(plan: _Plan) -> tuple[jax.Array, jax.Array]:
    return jnp.stack(plan.keys()), jnp.stack(plan.keys(0))


def _of_members(plan: _Plan) -> tuple[Member, jax.Array]:
    return plan.members(), jnp.stack(plan.keys(1) * len(plan.points))


def _given_bases(run: _Sweep) -> Any:
    """The given weights, as the only entry of a stack."""
    return jax.tree.map(lambda leaf: leaf[None], run.params)


def _shapes_of_bases(run: _Sweep) -> Any:
    if not run.plan.warm_updates:
        return jax.eval_shape(lambda: _given_bases(run))
    return jax.eval_shape(run.population.base_states, *_of_seeds(run.plan)).params


def _references(run: _Sweep) -> Any:
    """Parameters of the reference policies, or None where no term needs them."""
    if not run.plan.has_reference:
        return None
    if not run.plan.warm_updates:
        return _given_bases(run)
    with Checkpoints(run.files.state.reference, keep=1) as reference:
        return reference.restore_params(restorable(_shapes_of_bases(run)))


def _restore(run: _Sweep, make: Callable[..., TrainState], *args: Any) -> TrainState:
    """Read the newest checkpoint into the shapes that `make` would give."""
    return run.checkpoints.restore(restorable(jax.eval_shape(make, *args)))
