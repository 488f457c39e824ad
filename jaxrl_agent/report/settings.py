"""What was run: facts of the evaluation, settings and versions of every run, and notices a reader must not miss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxrl_agent.report.figure import Table
from jaxrl_agent.report.load import Run, setting
from jaxrl_agent.run_dir import Json

TASK_TITLES = {
    "frozenlake": "FrozenLake",
    "deepcoder": "DeepCoder, multi-turn",
    "bfcl": "BFCL multi-turn",
    "intercode_sql": "InterCode-SQL",
    "terminal": "Terminal tasks",
}
VISIBILITY = {
    "hidden": "hidden from the agent",
    "total": "told once, at the start",
    "remaining": "told every turn, as turns left",
}
ABSENT = "—"
_TASK_OF = {"lake": "frozenlake", "coding": "deepcoder"}  # whose settings a section of config.task holds
STEP_QUALITY = (
    "the quality of the action taken in its state: on a lake its exact value, of a program the share of tests passed"
)


def turn_names(config: Json) -> dict[str, str]:
    """What metrics of single turns mean in the words of a run's task."""
    if setting(config, "task.name", "frozenlake") == "deepcoder":
        return {"optimal_share": "turns that pass all tests", "regret": "share of tests that a turn fails"}
    return {"optimal_share": "turns with a best action", "regret": "regret of a turn"}


def is_foggy(config: Json) -> bool:
    """Whether the holes of the lake are hidden and `look` is an action."""
    if setting(config, "task.name", "frozenlake") != "frozenlake":
        return False
    return bool(setting(config, "task.lake.foggy", setting(config, "task.foggy", False)))


def task_title(runs: Sequence[Run]) -> str:
    """The task's name as a title."""
    name = str(runs[0].evaluation["task"])
    title = TASK_TITLES.get(name, name)
    return f"Foggy {title}" if is_foggy(runs[0].config) else title


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Name and value of what all numbers of the report share."""
    evaluation = runs[0].evaluation
    samples = " / ".join(str(n) for n in dict.fromkeys(run.evaluation["n_samples"] for run in runs))
    sampling = evaluation.get("sampling") or {}
    filters = [f"{key} {sampling[key]:g}" for key in ("top_k", "top_p") if sampling.get(key) not in (None, 0, 1, 1.0)]
    temperature = sampling.get("temperature")
    revisions = dict.fromkeys(
        str(run.versions.get("git_revision") or "unknown")[:10] + " + changes" * bool(run.versions.get("git_dirty"))
        for run in runs
    )
    seeds = [setting(run.config, "seed") for run in runs]
    split = evaluation.get("split")
    return [
        ("Tasks", f"{evaluation['n_tasks']}" + (f", {split} split" if split else "")),
        ("Attempts", f"{samples} a task and budget"),
        ("Largest budget", f"{runs[0].t_max} turns"),
        ("Budget", VISIBILITY.get(evaluation["budget_visibility"], evaluation["budget_visibility"])),
        ("Sampling", ", ".join([f"temperature {temperature:g}" if temperature is not None else ABSENT, *filters])),
        ("Training seed", " / ".join(ABSENT if s is None else str(s) for s in dict.fromkeys(seeds))),
        ("Data", str(evaluation.get("data_hash") or ABSENT)[:12]),
        ("Code", " / ".join(revisions)),
    ]


def notices(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Title and text of everything that limits what the numbers mean."""
    found = []
    if any(is_foggy(run.config) for run in runs):
        found.append(
            (
                "Departs from the paper",
                "The paper's FrozenLake shows the map and has four moves. Here the holes are hidden, and a fifth "
                "action, look, costs one turn and names the holes among the four neighbouring cells. Information that "
                "costs turns is what sets a tight budget against a generous one.",
            )
        )
    if any(run.warm_start for run in runs):
        found.append(
            (
                "Not a pretrained model",
                "The starting policy is a small network trained from scratch on imperfect demonstrations. It stands in "
                "for a pretrained language model; its figures are not comparable with the paper's.",
            )
        )
    exposed = [run.name for run in runs if "sandbox" in (run.versions.get("declared") or {})]
    if exposed:
        found.append(
            (
                "Without a sandbox",
                f"What {', '.join(exposed)} wrote ran without isolation (--unsafe_no_sandbox): it could have read "
                "hidden tests or changed its own verdict.",
            )
        )
    unchecked = {run.name: int(run.evaluation.get("could_not_check") or 0) for run in runs}
    if any(unchecked.values()):
        counts = ", ".join(f"{name} {count}" for name, count in unchecked.items())
        found.append(
            (
                "Attempts that could not be checked",
                f"{counts}. They stay in the denominator and count as not solved; none was dropped.",
            )
        )
    if (runs[0].evaluation.get("sampling") or {}).get("temperature") == 0:
        found.append(
            ("Greedy sampling", "At temperature 0 all attempts at a task are alike; Pass@K says nothing beyond Pass@1.")
        )
    unsafe = [run.name for run in runs if any(k.endswith("unsafe_no_sandbox") and v for k, v in _flat(run).items())]
    if unsafe:
        found.append(("No sandbox", f"Programs of {', '.join(unsafe)} ran without isolation; treat results with care."))
    return found


def _flat(run: Run) -> dict[str, Any]:
    return flatten({"config": run.config, "versions": run.versions})


def flatten(value: Json, prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted keys, in the order of the file."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict) and item:
            flat |= flatten(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def compare(runs: Sequence[Run], part: str, *, differing: bool) -> Table:
    """`config` or `versions` side by side; only the rows that differ, or only those that are equal everywhere.

    Rows that are equal have one value column, since it holds for every run. Settings that a run has no use for are not
    compared: another task's, and those of a warm start that --init replaced.
    """
    columns = [flatten(getattr(run, part)) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = []
    for key in keys:
        used = [part != "config" or _uses(run.config, key) for run in runs]
        values = [_text(column.get(key) if uses else None) for column, uses in zip(columns, used, strict=True)]
        told = {value for value, uses in zip(values, used, strict=True) if uses}
        if told and (len(told) > 1) == differing:
            rows.append((key, *(values if differing else told)))
    names = tuple(run.name for run in runs) if differing else ("value",)
    return Table(("setting", *names), tuple(rows))


def _uses(config: Json, key: str) -> bool:
    task = setting(config, "task.name", "frozenlake")
    if key.startswith("warm_start."):
        return not config.get("init")
    return all(task == owner for part, owner in _TASK_OF.items() if key.startswith(f"task.{part}."))


def _text(value: Any) -> str:
    if value is None or value == "":
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value)
