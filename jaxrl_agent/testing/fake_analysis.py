"""A made-up analysis of fake runs in the exact format of a real one, so that the report is tested without probes.

Differences, shares and ratios are drawn from a seeded generator around values that a real pair might have; means,
bins and intervals are computed from the draws. Training curves are those of the runs.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxrl_agent.run_dir import Json, RunDir, write_json
from jaxrl_agent.statistics import CONTRADICTED, SUPPORTED, UNDECIDED, Estimate, bootstrap_mean
from jaxrl_agent.testing.fake_runs import MOVES, SIZE, FakeSpec, distances, make_boards, neighbour, play_episode

RESAMPLES = 200
STATES_PER_TASK = 10
GAIN = {"grpo": 0.03, "budgetmix": 0.05}  # what a policy's replies are worth over the base's
QUALITIES = {
    "monte_carlo": {"definition": "Share of rollouts of the base that succeed after the action.", "fair": True},
    "q_star_0.99": {"definition": "Exact value of the action on the true map, discount 0.99.", "fair": False},
    "q_horizon": {"definition": "Whether the goal can still be reached in the turns left.", "fair": False},
}
PRIMARY = "monte_carlo"
STEP_REWARDS = ("step_reward_pooled", "step_reward_mean_of_means", "step_reward_first_turn")
TREATMENTS = ("after an injected error", "same state without the error")


@dataclasses.dataclass(frozen=True)
class States:
    """Columns over probed states; `difference` is the policy's mean value minus the base's."""

    task: np.ndarray
    turns_left: np.ndarray
    distance: np.ndarray
    difference: np.ndarray

    def where(self, keep: np.ndarray) -> States:
        """The states that `keep` selects."""
        return States(*(getattr(self, field.name)[keep] for field in dataclasses.fields(self)))


def write_fake_analysis(
    out: Path, runs: Mapping[str, Path], spec: FakeSpec | None = None, *, tools: bool = False
) -> Path:
    """Write analysis.json and episodes of fake runs, the first of which is the base.

    Args:
        out: folder to write into.
        runs: folders by name, as `write_fake_runs` returns them.
        spec: what the runs were made with.
        tools: whether the task has tools, so that their errors are counted.
    """
    spec = spec or FakeSpec()
    base, *policies = runs
    evaluation = RunDir.open(runs[base]).evaluations()["test"]
    pairs = {name: _pair(base, name, runs, spec, tools=tools) for name in policies}
    shared = {key: evaluation[key] for key in ("task", "split", "n_tasks", "t_max", "budget_visibility", "data_hash")}
    write_json(
        out / "analysis.json",
        {
            **{k: v for k, v in pairs[policies[0]].items() if k not in ("base", "policy", "checkpoints", "measures")},
            "pairs": pairs,
            "base": base,
            **shared,
            "budget": spec.t_max,
            "sampling": evaluation["sampling"],
            "seed": spec.seed,
            "verdicts": [verdict for name in policies for verdict in _verdicts(name)],
            "versions": {"jaxrl_agent": "0.0.0"},
        },
    )
    (out / "trajectories").mkdir(exist_ok=True)
    for name in policies:
        lines = (json.dumps(episode) + "\n" for episode in _episodes(base, name, spec))
        (out / "trajectories" / f"{name}.jsonl").write_text("".join(lines))
    return out


def _pair(base: str, name: str, runs: Mapping[str, Path], spec: FakeSpec, *, tools: bool) -> Json:
    rng = np.random.default_rng([spec.seed, 3, *name.encode()])
    gain = GAIN.get(name, 0.0)
    cells: dict[str, Json] = {}
    for quality in QUALITIES:
        cells[quality] = {
            "ordinary": _cell(_states(gain, spec, rng), quality, spec.t_max),
            "error_states": _cell(_states(-gain / 3, spec, rng), quality, spec.t_max),
        }
    return {
        "base": base,
        "policy": name,
        "checkpoints": {"base": f"run:{base}@0", "policy": f"run:{name}@{spec.updates}"},
        "step_quality": {**cells[PRIMARY], "by_quality": cells, "primary_quality": PRIMARY, "qualities": QUALITIES},
        "recovery": _recovery(gain, spec, rng),
        "tool_error_correction": _tool_errors(spec, rng) if tools else None,
        "likelihood": _likelihood(spec, rng),
        "dynamics": _dynamics(RunDir.open(runs[name])),
        "measures": {},
    }


# ---- step quality


def _states(gain: float, spec: FakeSpec, rng: np.random.Generator) -> States:
    task = np.repeat(np.arange(spec.n_tasks), STATES_PER_TASK)
    turns_left = rng.integers(1, spec.t_max + 1, len(task))
    spread = 0.12 * (rng.random(len(task)) > 0.25)  # a quarter of the states ties exactly
    drawn = rng.normal(gain * turns_left / spec.t_max, 1.0, len(task))
    return States(task, turns_left, rng.integers(1, 7, len(task)), np.round(spread * drawn, 3))


def _over_tasks(values_S: np.ndarray, task_S: np.ndarray) -> Estimate:
    """Mean within each task, then over tasks, with a bootstrap over tasks."""
    means = [values_S[task_S == task].mean() for task in np.unique(task_S)]
    return bootstrap_mean(np.array(means), resamples=RESAMPLES)


def _ends(estimate: Estimate, name: str = "value") -> Json:
    return {name: estimate.estimate, "ci_low": estimate.low, "ci_high": estimate.high}


def _figure(values: np.ndarray, task: np.ndarray, definition: str) -> Json:
    n_tasks = len(np.unique(task))
    return {**_ends(_over_tasks(values, task)), "n": len(values), "n_tasks": n_tasks, "definition": definition}


def _outcomes(states: States) -> dict[str, Estimate]:
    won, lost = states.difference > 1e-9, states.difference < -1e-9
    shares = {"win": won, "tie": ~won & ~lost, "loss": lost, "wins_plus_half_ties": won + 0.5 * (~won & ~lost)}
    return {name: _over_tasks(share.astype(float), states.task) for name, share in shares.items()}


def _row(states: States) -> Json:
    """What a cell and each of its bins hold."""
    return {
        **{name: e.estimate for name, e in _outcomes(states).items()},
        **_ends(_over_tasks(states.difference, states.task), "mean_difference"),
        "n_states": len(states.task),
        "n_tasks": len(np.unique(states.task)),
    }


def _bins(states: States, column: str, edges: list[tuple[int, int]]) -> list[Json]:
    values = getattr(states, column)
    rows = []
    for low, high in edges:
        keep = (values >= low) & (values <= high)
        if keep.any():
            rows.append({"low": low, "high": high, **_row(states.where(keep)), "p_holm": 0.5})
    return rows


def _quarters(t_max: int) -> list[tuple[int, int]]:
    edges = [math.ceil(i * t_max / 4) for i in range(5)]
    return [(low + 1, high) for low, high in itertools.pairwise(edges)]


def _cell(states: States, quality: str, t_max: int) -> Json:
    row = _row(states)
    return {
        **row,
        "intervals": {name: [e.low, e.high] for name, e in _outcomes(states).items()},
        "win_among_non_ties": row["win"] / (row["win"] + row["loss"]),
        "quality": quality,
        "fair": QUALITIES[quality]["fair"],
        "definition": "Mean value of 16 replies under the policy minus the mean under the base, in the same state.",
        "best_share": {"base": 0.62, "policy": 0.66},
        "by_turns_left": _bins(states, "turns_left", _quarters(t_max)),
        "by_distance_to_goal": _bins(states, "distance", [(1, 2), (3, 4), (5, 6)]),
    }


# ---- recovery and tools


def _recovery(gain: float, spec: FakeSpec, rng: np.random.Generator) -> Json:
    task = np.repeat(np.arange(spec.n_tasks), STATES_PER_TASK)
    turns_left = rng.integers(1, spec.t_max + 1, len(task))
    chance = 0.15 + 0.6 * turns_left / spec.t_max
    shares = {
        (who, when): rng.binomial(8, np.clip(chance + extra, 0, 1)) / 8
        for who, when, extra in (
            ("base", "after", 0.0),
            ("policy", "after", 2 * gain),
            ("base", "before", 0.12),
            ("policy", "before", 0.12 + 3 * gain),
        )
    }
    lost = {who: shares[who, "before"] - shares[who, "after"] for who in ("base", "policy")}
    by_turns = []
    for low, high in _quarters(spec.t_max):
        keep = (turns_left >= low) & (turns_left <= high)
        row = _two_policies(shares["base", "after"][keep], shares["policy", "after"][keep], task[keep])
        by_turns.append({"low": low, "high": high, **row, "p_holm": 0.2})
    cost = "Success from the state before the error minus success from the state after it."
    return {
        **_two_policies(shares["base", "after"], shares["policy", "after"], task),
        "definition": "Success of continuations from the state after an injected error.",
        "without_error": {
            **_two_policies(shares["base", "before"], shares["policy", "before"], task),
            "definition": "The same from the same states before the error.",
        },
        "extra_gain": _figure(lost["base"] - lost["policy"], task, "Difference after an error minus without one."),
        "error_cost": {
            "optimal": _figure(np.full(len(task), 0.08) * (turns_left < 5), task, cost),
            **{who: _figure(values, task, cost) for who, values in lost.items()},
        },
        "by_turns_left": by_turns,
    }


def _two_policies(base: np.ndarray, policy: np.ndarray, task: np.ndarray) -> Json:
    own = {"base": _over_tasks(base, task), "policy": _over_tasks(policy, task)}
    return {
        **{name: e.estimate for name, e in own.items()},
        **{f"{name}_ci": [e.low, e.high] for name, e in own.items()},
        **_ends(_over_tasks(policy - base, task), "difference"),
        "n_states": len(task),
        "n_tasks": len(np.unique(task)),
    }


def _tool_errors(spec: FakeSpec, rng: np.random.Generator) -> Json:
    task = np.arange(spec.n_tasks)
    rates = {name: rng.beta(9 * p, 9 * (1 - p), spec.n_tasks) for name, p in (("base", 0.45), ("policy", 0.6))}
    sides = {}
    for name, rate in rates.items():
        e = _over_tasks(rate, task)
        counts = {"error_turns": 80, "followed": 70, "corrected": round(70 * e.estimate)}
        sides[name] = {"rate": e.estimate, "rate_of_all": e.estimate * 7 / 8, **counts}
        sides[name] |= {"ci_low": e.low, "ci_high": e.high}
    return {
        **sides,
        **_ends(_over_tasks(rates["policy"] - rates["base"], task), "difference"),
        "n_tasks": spec.n_tasks,
        "definition": "Share of failed calls with a next turn whose next call works.",
    }


# ---- likelihood and training


def _likelihood(spec: FakeSpec, rng: np.random.Generator) -> Json:
    task = np.repeat(np.arange(spec.n_tasks), 8)
    length = rng.integers(3, spec.t_max + 1, len(task))
    alive = np.arange(spec.t_max) < length[:, None]
    success = rng.random(len(task)) < 0.7
    turn_llr = {
        "policy": rng.normal(0.22, 0.4, alive.shape) + 0.05 * success[:, None],
        "base": rng.normal(-0.3, 0.4, alive.shape) + 0.05 * success[:, None],
    }
    cumulative = {name: np.cumsum(values, axis=1) for name, values in turn_llr.items()}
    totals = {name: values[np.arange(len(task)), length - 1] for name, values in cumulative.items()}
    groups = {"success": success, "failure": ~success, "all": np.ones(len(task), bool)}
    split = {
        f"{name}_{group}": (_over_tasks(totals[name][keep], task[keep]), int(keep.sum()))
        for group, keep in groups.items()
        for name in ("policy", "base")
    }
    nll = {
        "policy_actions_under_policy": 0.21,
        "policy_actions_under_base": 0.47,
        "base_actions_under_base": 0.38,
        "base_actions_under_policy": 0.69,
    }
    kinds = {"ordinary": 0.2, "error_states": 0.28}
    return {
        "action_nll": {
            **nll,
            "intervals": {name: [0.9 * value, 1.1 * value] for name, value in nll.items()},
            "n_actions": {"policy": int(alive.sum()), "base": int(alive.sum())},
            "without_reasoning": nll,
            "definition": "Mean negative log-likelihood of an action's tokens, nats an action.",
        },
        "llr": {
            **{name: e.estimate for name, (e, _) in split.items()},
            "intervals": {name: [e.low, e.high] for name, (e, _) in split.items()},
            "n": {name: n for name, (_, n) in split.items()},
            "per_action": {
                f"{name}_all": _figure(totals[name] / length, task, "Ratio divided by the number of actions.")
                for name in ("policy", "base")
            },
            "by_turn": {name: list(_by_turn(cumulative[name], alive, task)) for name in ("policy", "base")},
            "by_state_kind": {
                kind: {
                    "policy": _figure(rng.normal(mean, 0.3, len(task)), task, "Per reply of the probe."),
                    "base": _figure(rng.normal(-mean, 0.3, len(task)), task, "Per reply of the probe."),
                }
                for kind, mean in kinds.items()
            },
            "sanity": {
                "policy_all_at_least_0": SUPPORTED,
                "base_all_at_most_0": SUPPORTED,
                "definition": "Both are divergences up to the sign, so no other sign is possible in expectation.",
            },
            "definition": "Sum over a trajectory of log-probability under the policy minus under the base, nats.",
        },
    }


def _by_turn(cumulative: np.ndarray, alive: np.ndarray, task: np.ndarray) -> Iterator[Json]:
    for turn in range(alive.shape[1]):
        keep = alive[:, turn]
        if keep.any():
            yield {
                "turn": turn + 1,
                **_ends(_over_tasks(cumulative[keep, turn], task[keep]), "mean"),
                "n": int(keep.sum()),
            }


def _dynamics(run: RunDir) -> Json | None:
    rows = run.metrics()
    if not rows:
        return None
    tenth = max(1, len(rows) // 10)
    curves = {name: np.array([row[name] for row in rows]) for name in ("trajectory_reward", *STEP_REWARDS)}
    curves |= {"optimal_share": np.array([row["optimal_share"] for row in rows])}
    change = {}
    for name, values in curves.items():
        first, last = values[:tenth], values[-tenth:]
        half = 1.96 * math.sqrt((first.var() + last.var()) / tenth)
        middle = float(last.mean() - first.mean())
        ends = {"value": middle, "ci_low": middle - half, "ci_high": middle + half}
        change[name] = {**ends, "n": 2 * tenth, "n_tasks": None, "definition": "Last tenth minus first tenth."}
    updates = [row["update"] for row in rows]
    lists = {name: values.tolist() for name, values in curves.items()}
    return {**lists, "regret": [None] * len(rows), "updates": updates, "change": change}


def _verdicts(name: str) -> list[Json]:
    rows = [
        ("Step quality", "Replies after training win no more states than they lose.", "win 37%, loss 36%", UNDECIDED),
        ("Recovery", "Training raises success after an error.", "+6.1 points [3.0, 9.2]", SUPPORTED),
        ("Likelihood", "Successes are not likelier than failures under the policy.", "+0.4 nats", CONTRADICTED),
    ]
    rule = {"rule": "the whole interval lies above 0", "policy": name, "note": "made up"}
    return [{**dict(zip(("topic", "paper", "here", "verdict"), row, strict=True)), **rule} for row in rows]


# ---- episodes


def _episodes(base: str, name: str, spec: FakeSpec) -> Iterator[Json]:
    """Per board an ordinary episode of each policy, and of each the ends of one with and without an error."""
    rng = np.random.default_rng([spec.seed, 4, *name.encode()])
    for board in make_boards(spec):
        source = play_episode(base, board, spec.t_max, spec, rng)
        for sampler in (base, name):
            whole = play_episode(sampler, board, spec.t_max, spec, rng)
            yield _marked(whole, board, "ordinary", sampler, rng)
            for condition in TREATMENTS:
                yield _continued(source, board, condition, sampler, spec, rng)


def _continued(source: Json, board: tuple[str, ...], condition: str, sampler: str, spec: FakeSpec, rng) -> Json:
    """The first half of `source`, an error or none, and what `sampler` makes of the rest of the turns."""
    prefix = copy.deepcopy(source["turns"][: len(source["turns"]) // 2])
    cell = source["turns"][len(prefix)]["info"]["cell"]
    if condition == TREATMENTS[0]:
        turn = copy.deepcopy(source["turns"][len(prefix)])
        safe = [m for m in MOVES if "".join(board)[neighbour(cell, m)] in "FS"]
        action = max(safe, key=lambda m: distances(board)[neighbour(cell, m)], default="look")
        cell = neighbour(cell, action) if action in MOVES else cell
        turn |= {"text": f"{action} .", "parsed_action": action, "logprobs": [], "reward": 0.0}
        turn["info"] |= {"injected": True, "quality": float(0.99 ** min(distances(board)[cell], 99.0))}
        prefix.append(turn)
    letters = "".join(board).replace("S", "F")
    moved = f"{letters[:cell]}S{letters[cell + 1 :]}"
    rest = tuple(moved[i : i + SIZE] for i in range(0, SIZE * SIZE, SIZE))
    episode = play_episode(sampler, rest, spec.t_max - len(prefix), spec, rng)
    seen = prefix[-1]["info"]["cells_seen"] if prefix else []
    for turn in episode["turns"]:
        turn["info"]["cells_seen"] = sorted({*seen, *turn["info"]["cells_seen"]})
    episode |= {"turns": [*prefix, *episode["turns"]], "budget": spec.t_max, "instance_id": source["instance_id"]}
    return _marked(episode, board, condition, sampler, rng)


def _marked(episode: Json, board: tuple[str, ...], condition: str, sampler: str, rng: np.random.Generator) -> Json:
    for turn in episode["turns"]:
        if not turn["info"].get("injected"):
            turn["info"]["llr"] = float(rng.normal(0.1, 0.4))
    return {**episode, "instance": {"map": list(board), "condition": condition, "sampler": sampler}}
