"""Made-up run directories in the exact format of real ones, so that reports and analyses are tested without training.

The policies are a few lines of Python on a 4x4 foggy lake: one errs and seldom looks, one looks before every step,
one looks as long as its budget allows. Their numbers mean nothing beyond that.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl_agent.config import BudgetConfig, Config, TaskConfig, to_dict
from jaxrl_agent.run_dir import Json, RunDir, write_json
from jaxrl_agent.statistics import bootstrap_mean, pass_at_k_table

SIZE = 4
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
KS = (1, 2, 4, 8, 16)
SCHEDULES = {"base": "fixed", "grpo": "fixed", "budgetmix": "budget_mix"}


@dataclasses.dataclass(frozen=True)
class FakeSpec:
    """Size and protocol of a set of fake runs."""

    n_tasks: int = 24
    n_samples: int = 16
    t_max: int = 16
    budgets: tuple[int, ...] = (4, 8, 12, 16)
    visibility: str = "total"
    updates: int = 60
    temperature: float = 1.0
    seed: int = 0


def write_fake_runs(
    folder: Path, names: Sequence[str] = tuple(SCHEDULES), spec: FakeSpec | None = None
) -> dict[str, Path]:
    """Write one run directory for each name ("base", "grpo", "budgetmix"); the base has no updates."""
    return {name: write_fake_run(folder / name, name, spec) for name in names}


def write_fake_run(path: Path, name: str, spec: FakeSpec | None = None) -> Path:
    """Write one run directory: config, versions, warm start, metrics, an evaluation, trajectories."""
    spec = spec or FakeSpec()
    config = Config(
        seed=spec.seed,
        task=dataclasses.replace(TaskConfig(), t_max=spec.t_max, budget_visibility=spec.visibility),
        budget=BudgetConfig(schedule=SCHEDULES[name]),
    )
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, updates=_updates(name, spec)))
    run = RunDir.create(path, to_dict(config))
    write_json(
        run.path / "versions.json",
        {"packages": {"jaxrl_agent": "0.0.0"}, "python": "3.0", "platform": "fake", "git_revision": "0" * 40},
    )
    rng = np.random.default_rng([spec.seed, *name.encode()])
    for row in _warm_start(spec):
        run.append_metrics(row, file="warm_start.jsonl")
    for row in _metrics(name, spec, rng):
        run.append_metrics(row)
    result, episodes = _evaluate(name, spec, rng)
    write_json(run.path / "evaluations" / "test.json", result)
    run.write_trajectories("evaluation_test", episodes)
    return run.path


def _updates(name: str, spec: FakeSpec) -> int:
    return 0 if name == "base" else spec.updates


def _warm_start(spec: FakeSpec) -> list[Json]:
    """A falling loss, the same for every run of one seed: they share the warm start."""
    rng = np.random.default_rng([spec.seed, 1])
    updates = range(20, 801, 20)
    loss = [0.75 + 1.6 * np.exp(-u / 120) + 0.02 * rng.standard_normal() for u in updates]
    return [
        {"update": u, "loss": float(value), "accuracy": float(1 - 0.42 * value / (0.6 + value)), "seconds": 0.07}
        for u, value in zip(updates, loss, strict=True)
    ]


def _metrics(name: str, spec: FakeSpec, rng: np.random.Generator) -> list[Json]:
    rows = []
    mixed = SCHEDULES[name] == "budget_mix"
    for update in range(1, _updates(name, spec) + 1):
        progress = 1 - np.exp(-3 * update / spec.updates)
        noise = rng.standard_normal(6)
        reward = float(np.clip((0.62 if mixed else 0.74) + 0.22 * progress + 0.03 * noise[0], 0, 1))
        in_budget = (1 - reward) * (0.7 if mixed else 0.4)
        groups = rng.multinomial(16, [0.1] * 10 if mixed else [0.0] * 9 + [1.0]).astype(float)
        effective = rng.binomial(groups.astype(int), 0.8 - 0.3 * progress).astype(float)
        rows.append(
            {
                "update": update,
                "trajectory_reward": reward,
                "success": reward,
                "turns": float(4 + (1.2 if mixed else 3.5) * progress + 0.2 * noise[1]),
                "step_reward_first_turn": float(0.955 + 0.012 * progress + 0.002 * noise[2]),
                "step_reward_mean_of_means": float(0.93 + 0.03 * progress + 0.004 * noise[2]),
                "step_reward_pooled": float(0.91 + 0.02 * progress + 0.006 * noise[3]),
                "loss": float(-0.01 * noise[4]),
                "grad_norm": float(0.4 * np.exp(0.2 * noise[3])),
                "kl": float(0.05 * progress * (1 + 0.1 * noise[4])),
                "entropy": float(0.9 - 0.6 * progress + 0.02 * noise[5]),
                "clip_fraction": float(abs(0.02 + 0.01 * noise[4])),
                "sampler_trainer_max_diff": float(4e-6 * np.exp(0.3 * noise[1])),
                "optimal_share": float(0.7 - (0.05 if mixed else 0.2) * progress + 0.01 * noise[2]),
                "invalid_share": float(0.02 * np.exp(-5 * progress)),
                "zero_variance_groups": float(1 - effective.sum() / groups.sum()),
                "effective_groups_by_budget": effective.tolist(),
                "groups_by_budget": groups.tolist(),
                "stop_reasons": {"success": reward, "budget": in_budget, "failure": 1 - reward - in_budget},
                "tokens_per_s": float(105e3 + 3e3 * noise[0]) if update > 1 else 9e3,
                "seconds": {"rollout": 0.08 if update > 1 else 1.0, "logprobs": 0.03, "update": 0.18},
                "compiles": 3 if update == 1 else 0,
            }
        )
    return rows


def _evaluate(name: str, spec: FakeSpec, rng: np.random.Generator) -> tuple[Json, list[Json]]:
    """Play every map `n_samples` times at every enforced budget; keep the first sample of each as a trajectory."""
    boards = make_boards(spec)
    enforced = (spec.t_max,) if spec.visibility == "hidden" else spec.budgets
    runs, kept = [], []
    for budget in enforced:
        rows = []
        for board in boards:
            played = [play_episode(name, board, budget, spec, rng) for _ in range(spec.n_samples)]
            rows.append([len(e["turns"]) if e["success"] else 0 for e in played])
            kept.append(played[0])
        runs.append({"T": budget, "first_success_turns": rows})
    result = {
        "task": "frozenlake",
        "split": "test",
        "n_tasks": spec.n_tasks,
        "n_samples": spec.n_samples,
        "t_max": spec.t_max,
        "budget_visibility": spec.visibility,
        "sampling": {"temperature": spec.temperature, "top_k": 0, "top_p": 1.0},
        "could_not_check": 0,
        "grid": _grid(runs, spec),
        "runs": runs,
        "headroom": _headroom(runs, boards, spec),
        "data_hash": hashlib.sha256(repr(boards).encode()).hexdigest(),
        "checkpoint": f"{name}/checkpoints/{_updates(name, spec)}",
        "versions": {"jaxrl_agent": "0.0.0"},
    }
    return result, kept


def _successes(runs: list[Json], turns: int, spec: FakeSpec) -> np.ndarray:
    """Successes of each task within `turns`."""
    entry = next(e for e in runs if e["T"] == (spec.t_max if spec.visibility == "hidden" else turns))
    first_PN = np.array(entry["first_success_turns"])
    return ((first_PN > 0) & (first_PN <= turns)).sum(axis=1)


def _turns_evaluated(spec: FakeSpec) -> Sequence[int]:
    return range(1, spec.t_max + 1) if spec.visibility == "hidden" else spec.budgets


def _grid(runs: list[Json], spec: FakeSpec) -> list[Json]:
    grid = []
    for turns in _turns_evaluated(spec):
        for k in (k for k in KS if k <= spec.n_samples):
            mean = bootstrap_mean(pass_at_k_table(spec.n_samples, k)[_successes(runs, turns, spec)])
            ends = {"value": mean.estimate, "ci_low": mean.low, "ci_high": mean.high}
            grid.append({"K": k, "T": turns, "T_fraction": turns / spec.t_max, **ends})
    return grid


def _headroom(runs: list[Json], boards: list[tuple[str, ...]], spec: FakeSpec) -> Json:
    shortest = np.array([distances(board)["".join(board).index("S")] for board in boards])
    rows = []
    for turns in _turns_evaluated(spec):
        success_P = _successes(runs, turns, spec) / spec.n_samples
        gap = bootstrap_mean((shortest <= turns) - success_P)
        rows.append(
            {
                "T": turns,
                "T_fraction": turns / spec.t_max,
                "optimal": float((shortest <= turns).mean()),
                "infeasible_share": float((shortest > turns).mean()),
                "success": float(success_P.mean()),
                "headroom": gap.estimate,
                "ci_low": gap.low,
                "ci_high": gap.high,
            }
        )
    return {"by_T": rows, "definition": "Best possible: share of maps whose shortest safe path fits into T turns."}


def make_boards(spec: FakeSpec) -> list[tuple[str, ...]]:
    """Solvable maps, a function of the seed alone, with a shortest path of 2 or more."""
    rng = np.random.default_rng([spec.seed, 2])
    boards: list[tuple[str, ...]] = []
    while len(boards) < spec.n_tasks:
        cells = np.where(rng.random(SIZE * SIZE) < 0.25, "H", "F")
        start, goal = rng.choice(SIZE * SIZE, 2, replace=False)
        cells[start], cells[goal] = "S", "G"
        board = tuple("".join(row) for row in cells.reshape(SIZE, SIZE))
        if board not in boards and 2 <= distances(board)[start] < math.inf:
            boards.append(board)
    return boards


def neighbour(cell: int, move: str) -> int:
    """The cell that a move leads to; against the edge it leads nowhere."""
    row, col = divmod(cell, SIZE)
    down, right = MOVES[move]
    return min(max(row + down, 0), SIZE - 1) * SIZE + min(max(col + right, 0), SIZE - 1)


@functools.cache
def distances(board: tuple[str, ...], holes: frozenset[int] | None = None) -> list[float]:
    """Moves to the goal from every cell, inf from holes; `holes` replaces the map's own (what an agent believes)."""
    flat = "".join(board)
    holes = frozenset(i for i, letter in enumerate(flat) if letter == "H") if holes is None else holes
    distance = [math.inf] * (SIZE * SIZE)
    distance[flat.index("G")] = 0.0
    queue = [flat.index("G")]
    for cell in queue:
        for other in {neighbour(cell, move) for move in MOVES} - holes:
            if distance[other] == math.inf:
                distance[other] = distance[cell] + 1
                queue.append(other)
    return distance


def _looks(name: str, left: int, distance: float, unseen: bool, rng: np.random.Generator, spec: FakeSpec) -> bool:
    """Whether the policy spends this turn on a look."""
    if name == "grpo":
        return unseen
    if name == "budgetmix":
        return unseen and (spec.visibility == "hidden" or left >= distance + 3)
    return rng.random() < 0.05 + 0.2 * left / spec.t_max


def play_episode(name: str, board: tuple[str, ...], budget: int, spec: FakeSpec, rng: np.random.Generator) -> Json:
    """One episode of a scripted policy on the foggy lake."""
    flat, true = "".join(board), distances(board)
    cell, seen, turns, stop = flat.index("S"), set[int](), [], "budget"
    slip = 0.12 if name == "base" else 0.02
    look_word = "-"
    while len(turns) < budget and stop == "budget":
        believed = distances(board, frozenset(c for c in seen if flat[c] == "H"))
        near = {neighbour(cell, m) for m in MOVES} - {cell}
        action = min(MOVES, key=lambda m: believed[neighbour(cell, m)])
        if _looks(name, budget - len(turns), believed[cell], neighbour(cell, action) not in seen, rng, spec):
            action = "look"
        if rng.random() < slip:
            action = str(rng.choice(list(MOVES)))
        turns.append(_turn(board, budget, cell, action, look_word, len(turns), seen, true, rng))
        look_word = "-"
        if action == "look":
            seen |= near
            holes = [m[0].upper() for m in MOVES if flat[neighbour(cell, m)] == "H"]
            look_word = "holes-" + ("".join(holes) or "none")
        else:
            cell = neighbour(cell, action)
            stop = {"G": "success", "H": "failure"}.get(flat[cell], "budget")
    success = stop == "success"
    if success:
        turns[-1]["reward"] = 1.0
    return {
        "instance_id": hashlib.sha256("\n".join(board).encode()).hexdigest()[:16],
        "group_id": 0,
        "budget": budget,
        "t_max": spec.t_max,
        "success": success,
        "return": float(success),
        "stop_reason": stop,
        "turns": turns,
        "prompt_tokens": [1, 2, 3],
        "policy_version": _updates(name, spec),
        "instance": {"map": list(board)},
    }


def _turn(board, budget, cell, action, look_word, number, seen, true, rng) -> Json:
    name = f"{'abcdefghij'[cell % SIZE]}{cell // SIZE + 1}"
    goal = "".join(board).index("G")
    prompt = f"goal {'abcdefghij'[goal % SIZE]}{goal // SIZE + 1} turns {budget} : " if number == 0 else ""
    best = float(0.99 ** (true[cell] - 1))
    after = true[neighbour(cell, action)] if action in MOVES else true[cell]
    quality = float(0.99**after) if math.isfinite(after) else 0.0
    return {
        "text": f"{action} .",
        "observation": f"{prompt}{name} {look_word}",
        "tokens": [7, 8],
        "logprobs": [float(-0.4 * rng.random()), -0.001],
        "reward": 0.0,
        "parsed_action": action,
        "state_key": f"{cell}/{sorted(seen)}",
        "info": {"cell": cell, "quality": quality, "best_quality": best, "cells_seen": sorted(seen)},
    }
