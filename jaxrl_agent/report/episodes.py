"""Choose the trajectories that the viewer shows and shrink them to what it draws."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxrl_agent.errors import RunError
from jaxrl_agent.report.analysis.load import Analysis
from jaxrl_agent.report.load import Run, setting
from jaxrl_agent.report.settings import is_foggy
from jaxrl_agent.run_dir import Json

PER_BUDGET = 6  # instances shown for each budget
MAX_BUDGETS = 4
PER_CONDITION = 6  # instances shown of each pair of an analysis, under each condition
CONDITIONS = ("ordinary", "after an injected error", "same state without the error")
_TOGETHER = (CONDITIONS[:1], CONDITIONS[1:])  # shown on the same instances
MAX_TEXT = 4000  # characters of one message
_MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}

_TESTS = ("public_passed", "public_total", "hidden_passed", "hidden_total", "statuses")
_SYSTEM = re.compile(r"<\|im_start\|>system\n")
_MARKS = re.compile(r"<\|im_start\|>\w+\n(<think>\n\n</think>\n*)?|<\|im_end\|>")

Place = tuple[int, str]  # budget, instance id


def episodes(runs: Sequence[Run]) -> list[Json]:
    """Trajectories for the viewer, those of one run together, ordered by budget and instance.

    For each of up to four budgets, six instances: first those where the runs' outcomes differ, then the others, in
    the order of the file; one trajectory of each run per instance, the first stored.
    """
    stored = {run.name: _first_by_place(_stored(run)) for run in runs}
    places = _choose([found for found in stored.values() if found])
    return [_shrink(stored[run.name][place], run) for run in runs for place in places if place in stored[run.name]]


def analysed_episodes(analysis: Analysis) -> list[Json]:
    """Episodes of an analysis for the viewer, marked by their condition and by the pair they were played for.

    For each pair six instances under each condition, with and without an error the same: first those of which most is
    stored, of these the ones on which outcomes differ, then the order of the file.

    Raises:
        RunError: an episode of an unknown condition, or of a policy that was not analysed.
    """
    runs = {run.name: run for run in analysis.runs}
    shown = []
    for pair in analysis.pairs:
        played: dict[str, dict[str, dict[Place, Json]]] = {c: defaultdict(dict) for c in CONDITIONS}
        for trajectory in analysis.directory.trajectories(pair.policy.name):
            condition, sampler = _origin(trajectory, runs)
            played[condition][sampler].setdefault(_place(trajectory), trajectory)
        marks = {"pair": pair.policy.name, "base": pair.base.name}
        for conditions in _TOGETHER:
            stored = [(c, run, played[c][run.name]) for c in conditions for run in (pair.base, pair.policy)]
            for place in _rank([by_place for _, _, by_place in stored])[:PER_CONDITION]:
                shown += [
                    _shrink(by_place[place], run) | {"condition": condition} | marks
                    for condition, run, by_place in stored
                    if place in by_place
                ]
    return shown


def _origin(trajectory: Json, runs: dict[str, Run]) -> tuple[str, str]:
    """Condition and sampler of an episode of an analysis."""
    instance = trajectory.get("instance") or {}
    for key, known in (("condition", CONDITIONS), ("sampler", tuple(runs))):
        if instance.get(key) not in known:
            raise RunError(
                f'"instance.{key}" of an analysed episode must be one of {", ".join(known)}',
                value=instance.get(key),
                remedy="Run analyze.py again.",
            )
    return instance["condition"], instance["sampler"]


def _stored(run: Run) -> Iterator[Json]:
    """Trajectories of the evaluation; without any, those of the last training file."""
    names = [path.stem for path in run.directory.trajectory_files()]
    evaluation = [name for name in names if name == f"evaluation_{run.evaluation_name}"]
    training = [name for name in names if not name.startswith("evaluation")]
    for name in evaluation or training[-1:]:
        yield from run.directory.trajectories(name)


def _first_by_place(trajectories: Iterator[Json]) -> dict[Place, Json]:
    """The first trajectory of each budget and instance, in the order of the file."""
    first: dict[Place, Json] = {}
    for trajectory in trajectories:
        first.setdefault(_place(trajectory), trajectory)
    return first


def _place(trajectory: Json) -> Place:
    if "budget" not in trajectory or "instance_id" not in trajectory:
        raise RunError("a trajectory must have a budget and an instance_id", value=sorted(trajectory))
    return int(trajectory["budget"]), str(trajectory["instance_id"])


def _choose(stored: Sequence[dict[Place, Json]]) -> list[Place]:
    """Budgets spread from the smallest to the largest; in each the places that most runs have, differing ones first."""
    by_budget: dict[int, list[Place]] = defaultdict(list)
    for place in _rank(stored):
        by_budget[place[0]].append(place)
    budgets = sorted(by_budget)
    if len(budgets) > MAX_BUDGETS:
        budgets = [budgets[round(i * (len(budgets) - 1) / (MAX_BUDGETS - 1))] for i in range(MAX_BUDGETS)]

    return [place for budget in budgets for place in by_budget[budget][:PER_BUDGET]]


def _rank(stored: Sequence[dict[Place, Json]]) -> list[Place]:
    """Places that most runs have, of these the ones first on which their outcomes differ, then in stored order."""

    def rank(place: Place) -> tuple[int, int]:
        outcomes = [bool(run[place].get("success")) for run in stored if place in run]
        return -len(outcomes), 0 if len(set(outcomes)) > 1 else 1

    return sorted(dict.fromkeys(place for run in stored for place in run), key=rank)


def _shrink(trajectory: Json, run: Run) -> Json:
    """What the viewer needs, without token ids."""
    board = (trajectory.get("instance") or {}).get("map")
    foggy = is_foggy(run.config)
    turns = [_shrink_turn(turn, foggy=foggy) for turn in trajectory.get("turns", [])]
    prompt = (trajectory.get("instance") or {}).get("prompt")
    if turns and prompt:
        turns[0]["observation"] = _cut("\n".join(filter(None, (_readable(prompt), turns[0]["observation"]))))
    return {
        "run": run.name,
        "instance": str(trajectory["instance_id"]),
        "budget": trajectory["budget"],
        "t_max": trajectory.get("t_max"),
        "success": bool(trajectory.get("success")),
        "return": trajectory.get("return"),
        "stop": trajectory.get("stop_reason"),
        "map": board,
        "turns": turns,
        "end": _end_cell(board, turns, trajectory, run) if board else None,
    }


def _shrink_turn(turn: Json, *, foggy: bool) -> Json:
    info = turn.get("info") or {}
    logprobs = turn.get("logprobs") or []
    return {
        "observation": _cut(_readable(turn.get("observation"))),
        "text": _cut(_readable(turn.get("text"))),
        "action": turn.get("parsed_action"),
        "reward": turn.get("reward"),
        "cell": info.get("cell"),
        "quality": info.get("quality"),
        "best": info.get("best_quality"),
        "llr": info.get("llr"),
        "injected": bool(info.get("injected")),
        "call_ok": info.get("call_ok"),
        "failure": info.get("failure"),
        "tests": {key: info[key] for key in _TESTS} if "statuses" in info else None,
        "seen": info.get("cells_seen", info.get("holes_seen")) if foggy else None,
        "probability": round(math.exp(sum(logprobs)), 4) if logprobs else None,
        "tokens": len(turn.get("tokens") or []),
    }


def _readable(text: str | None) -> str:
    """A piece of a dialogue without the marks of the chat format; what a system message says keeps its role."""
    return _MARKS.sub("", _SYSTEM.sub("(system) ", text or "")).strip("\n")


def _cut(text: str | None) -> str:
    text = text or ""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n… ({len(text) - MAX_TEXT} more characters)"


def _end_cell(board: list[str], turns: list[Json], trajectory: Json, run: Run) -> int | None:
    """Where the agent stood after its last turn; None where slipping leaves it open."""
    flat, columns = "".join(board), len(board[0])
    if trajectory.get("success"):
        return flat.index("G") if "G" in flat else None
    if not turns or turns[-1]["cell"] is None:
        return None
    cell, action = int(turns[-1]["cell"]), str(turns[-1]["action"] or "").lower()
    if action not in _MOVES:
        return cell
    if setting(run.config, "task.lake.success_rate", 1.0) < 1:
        return None
    row, col = divmod(cell, columns)
    down, right = _MOVES[action]
    row, col = min(max(row + down, 0), len(board) - 1), min(max(col + right, 0), columns - 1)
    return row * columns + col
