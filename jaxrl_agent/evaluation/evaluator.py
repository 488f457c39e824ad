"""Pass@(K,T) of a policy on held-out tasks: sampling on its stage, estimates and intervals on the host."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agent import assemble, statistics
from jaxrl_agent.checkpoint import policy_version
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ConfigError, NonFiniteError, SandboxError
from jaxrl_agent.evaluation.pass_at_kt import PassGrid, default_ks, pass_grid, turn_grid
from jaxrl_agent.parallel.distributed import is_writer, to_host
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.preflight import check_names
from jaxrl_agent.progress import Display
from jaxrl_agent.rollout.device_collect import SamplingSettings
from jaxrl_agent.rollout.stage import Stage
from jaxrl_agent.run_dir import Json, collect_versions, to_jsonable
from jaxrl_agent.types import Rollout, StopReason, Trajectory

STORED_TASKS, STORED_SAMPLES = 12, 2  # trajectories kept for reading, of each enforced budget


@dataclasses.dataclass(frozen=True)
class EnforcedRun:
    """All samples of one enforced budget."""

    budget: int  # turns
    first_success_PN: np.ndarray  # int, turn of the first success; 0 = never
    could_not_check: int
    stop_reasons: dict[str, int]
    trajectories: list[Trajectory]  # a few, to read


def evaluate(
    config: Config,
    *,
    split: str = "test",
    temperature: float = 1.0,
    seed: int = 0,
    display: Display | None = None,
) -> tuple[Json, list[Trajectory]]:
    """Sample the policy that `config.init` names on held-out tasks.

    With a told budget there is one run for each budget fraction; with a hidden budget one run at t_max serves every T.

    Args:
        config: the task, the policy (`init`), and how much to sample (`evaluation`).
        split: "test", or "validation" to choose settings by.
        temperature: of sampling; 0 is greedy.
        seed: of sampling and of the bootstrap. Two policies under one seed share their random numbers.
        display: live view.

    Returns:
        The evaluation as JSON values, and a few trajectories to read.

    Raises:
        ConfigError: no policy is named, or a name in the settings is unknown.
    """
    if not config.init:
        raise ConfigError("an evaluation needs a policy", value=config.init, remedy="Give run:DIR or hf:DIR.")
    check_names(config)
    mesh = make_mesh(config.mesh)
    with jax.set_mesh(mesh), display or Display(quiet=not is_writer()) as display:
        policy = assemble.initial_policy(config, mesh, jax.random.key(0))
        game = assemble.build_game(config, split, policy, mesh)
        budgets = enforced_budgets(config)
        sampling = SamplingSettings(temperature, config.rollout.top_k, config.rollout.top_p)
        warnings = _warnings(sampling, config.evaluation.samples)
        for warning in warnings:
            display.say(f"warning: {warning}")
        runs = list(_runs(config, policy, game, sampling, budgets, seed, display))
    _check_environments(runs)
    result = {**_to_json(config, game, sampling, runs, seed), "warnings": warnings}
    return result, [trajectory for run in runs for trajectory in run.trajectories]


def _check_environments(runs: Sequence[EnforcedRun]) -> None:
    """Refuse a result in which nothing could be checked."""
    if all(run.could_not_check == run.first_success_PN.size for run in runs):
        raise SandboxError(
            "an evaluation needs trajectories whose environments work and can be checked",
            value={run.budget: run.stop_reasons for run in runs},
            remedy="See the stop reasons, and mend their cause.",
        )


def enforced_budgets(config: Config) -> list[int]:
    """Budgets that need a run of their own: each fraction of t_max if the budget is told, t_max alone if hidden."""
    t_max = config.task.t_max
    if config.task.budget_visibility == "hidden":
        return [t_max]
    # Rounded up, but not for the last bits of a float: 0.07 * 100 is 7.000000000000001.
    return sorted({max(1, math.ceil(fraction * t_max - 1e-9)) for fraction in config.evaluation.budget_fractions})


def _warnings(sampling: SamplingSettings, samples: int) -> list[str]:
    """What a reader of the result must know."""
    if sampling.temperature == 0 and samples > 1:
        return [
            f"temperature 0 draws no new replies: the {samples} samples of a task differ by the environment's chance "
            "alone, so read K=1 only"
        ]
    return []


def _runs(config, policy, game, sampling, budgets, seed, display) -> Iterator[EnforcedRun]:
    settings = config.evaluation
    tasks = max(1, min(settings.rows // settings.samples, len(game.instances)))
    batches = -(-len(game.instances) // tasks)
    stage = assemble.build_stage(config, policy.model, game, sampling)
    display.start("evaluation", batches * len(budgets))
    for number, budget in enumerate(budgets):
        # Told budgets are different conditions, so each has a stream of its own.
        key = jax.random.fold_in(jax.random.key(seed), budget)
        parts, trajectories = [], []
        for batch in range(batches):
            # The last batch is filled up with tasks already done, whose copies are cut off again.
            wanted = np.arange(batch * tasks, (batch + 1) * tasks) % len(game.instances)
            rollout = stage.play(policy.params, **_batch(wanted, budget, settings.samples, key))
            parts.append(to_host(_outcome(rollout)))
            if not parts[-1]["finite"]:
                raise NonFiniteError(
                    "the policy's log-probabilities must be finite", value=config.init, remedy="Check its weights."
                )
            if batch * tasks < STORED_TASKS:
                numbers = range(batch * tasks, min((batch + 1) * tasks, STORED_TASKS, len(game.instances)))
                trajectories += _readable(stage, rollout, policy.update, numbers, settings.samples)
            display.update(
                number * batches + batch + 1,
                {"T": str(budget), "success": float(parts[-1]["first"].astype(bool).mean())},
            )
        yield _enforced_run(budget, parts, len(game.instances), settings.samples, trajectories)


def _batch(instances: np.ndarray, budget: int, samples: int, key: jax.Array) -> dict[str, jax.Array]:
    """Arguments of `Stage.play`; a row's identity is (task, sample), so that batching changes nothing."""
    rows = (instances[:, None] * 2**16 + np.arange(samples)).reshape(-1)
    return {
        "instances_P": jnp.asarray(instances, jnp.int32),
        "budgets_P": jnp.full(len(instances), budget, jnp.int32),
        "row_ids_B": jnp.asarray(rows, jnp.uint32),
        "key": key,
    }


@jax.jit
def _outcome(rollout: Rollout) -> dict[str, jax.Array]:
    return {
        "first": jnp.where(rollout.success_B, rollout.n_turns_B, 0),
        "stop": rollout.stop_B,
        "finite": jnp.isfinite(rollout.batch.sampler_logprobs_BL).all(),
    }


def _readable(stage: Stage, rollout: Rollout, update: int, tasks: range, samples: int) -> list[Trajectory]:
    """The first samples of the tasks that a batch begins with; a group is a task, whatever the batch."""
    rows = [row * samples + sample for row in range(len(tasks)) for sample in range(min(STORED_SAMPLES, samples))]
    trajectories = stage.read(rollout, rows, policy_version=update)
    return [dataclasses.replace(row, group_id=tasks.start + row.group_id) for row in trajectories]


def _enforced_run(budget, parts, n_tasks: int, samples: int, trajectories) -> EnforcedRun:
    def join(name):
        return np.concatenate([part[name].reshape(-1, samples) for part in parts])[:n_tasks]

    stops = join("stop")
    reasons = {reason.value: int((stops == reason.code).sum()) for reason in StopReason}
    unchecked = (StopReason.COULD_NOT_CHECK, StopReason.ENVIRONMENT_ERROR, StopReason.TIME_LIMIT)
    return EnforcedRun(
        budget=budget,
        first_success_PN=join("first"),
        could_not_check=sum(reasons[reason.value] for reason in unchecked),
        stop_reasons={name: count for name, count in reasons.items() if count},
        trajectories=trajectories,
    )


def _to_json(
    config: Config, game: assemble.Game, sampling: SamplingSettings, runs: list[EnforcedRun], seed: int
) -> Json:
    task, n_samples = config.task, config.evaluation.samples
    return {
        "task": task.name,
        "split": game.instances.split,
        "n_tasks": len(game.instances),
        "n_samples": n_samples,
        "t_max": task.t_max,
        "budget_visibility": task.budget_visibility,
        "sampling": {**dataclasses.asdict(sampling), "seed": seed, "max_tokens": task.max_tokens, "think": task.think},
        "could_not_check": sum(run.could_not_check for run in runs),
        "grid": [
            row
            for run in runs
            for row in _grid_rows(run, task.t_max, hidden=task.budget_visibility == "hidden", seed=seed)
        ],
        "runs": [
            {"T": run.budget, "first_success_turns": run.first_success_PN.tolist(), "stop_reasons": run.stop_reasons}
            for run in runs
        ],
        "headroom": _headroom(config, game, runs),
        "data_hash": game.instances.data_hash,
        "checkpoint": policy_version(config.init),
        "settings": to_dict(config),
        "versions": collect_versions(),
    }


def _grid_rows(run: EnforcedRun, t_max: int, *, hidden: bool, seed: int) -> list[Json]:
    ts = tuple(dict.fromkeys(turn_grid(t_max))) if hidden else (run.budget,)
    grid: PassGrid = pass_grid(run.first_success_PN, ts=ts, ks=default_ks(run.first_success_PN.shape[1]), seed=seed)
    mean = grid.mean
    return [
        {
            "K": k,
            "T": t,
            "T_fraction": t / t_max,
            "value": mean.estimate[i, j],
            "ci_low": mean.low[i, j],
            "ci_high": mean.high[i, j],
        }
        for i, k in enumerate(grid.ks)
        for j, t in enumerate(grid.ts)
    ]


def _headroom(config: Config, game: assemble.Game, runs: list[EnforcedRun]) -> Json | None:
    """What the best agent that sees every hole could still gain, V_B(start) minus success, mean over maps.

    None for tasks whose best possible success is not known.
    """
    if not hasattr(game.instances, "optimal_success"):
        return None
    if config.task.budget_visibility == "hidden":
        first, budgets = runs[0].first_success_PN, list(dict.fromkeys(turn_grid(config.task.t_max)))
        success_BP = np.stack([((first > 0) & (first <= budget)).mean(axis=1) for budget in budgets])
    else:
        budgets = [run.budget for run in runs]
        success_BP = np.stack([(run.first_success_PN > 0).mean(axis=1) for run in runs])
    optimal_BP = game.instances.optimal_success(budgets, success_rate=config.task.lake.success_rate)
    gap = statistics.bootstrap_mean((optimal_BP - success_BP).T)
    rows = [
        {
            "T": budget,
            "T_fraction": budget / config.task.t_max,
            "optimal": optimal_BP[i].mean(),
            "infeasible_share": (optimal_BP[i] == 0).mean(),
            "success": success_BP[i].mean(),
            "headroom": gap.estimate[i],
            "ci_low": gap.low[i],
            "ci_high": gap.high[i],
        }
        for i, budget in enumerate(budgets)
    ]
    return {
        "definition": "V_T(start) of an agent that sees every hole, minus the policy's success within T turns; "
        "mean over maps, 95% interval from resampled maps",
        "by_T": rows,
    }


def is_current(stored: Json, config: Config, *, split: str = "test", temperature: float, seed: int) -> bool:
    """Whether a stored evaluation is the one that `evaluate` would make again."""
    return (
        stored.get("settings") == to_jsonable(to_dict(config))
        and stored.get("checkpoint") == policy_version(config.init)
        and stored["split"] == split
        and stored["sampling"]["temperature"] == temperature
        and stored["sampling"]["seed"] == seed
    )
