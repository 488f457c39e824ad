"""An analysis folder: raw probes and run directories in, `analysis.json` and `verdicts.md` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_agent.analysis import pass_surface
from jaxrl_agent.analysis.arms import Policy, method_of, mixes
from jaxrl_agent.analysis.pair import analyse_pair
from jaxrl_agent.analysis.verdicts import Evidence, judge_all, to_markdown
from jaxrl_agent.errors import ArgumentError, RunError
from jaxrl_agent.run_dir import AnalysisDir, Json, RunDir, collect_versions, read_json, to_jsonable, write_json

SHARED = ("base", "task", "split", "n_tasks", "t_max", "budget", "budget_visibility", "sampling", "data_hash", "seed")
PARTS = ("step_quality", "recovery", "tool_error_correction", "likelihood", "dynamics")
PROCESS_REWARDS = "process_reward"  # the algorithm that adds what the task says of each turn

Runs = Mapping[str, str | None]  # run directory by name of the policy or the base


def analyse_folder(out: str | Path, names: Sequence[str]) -> Json:
    """Compute everything from `OUT/probes/NAME.json` and the runs they name; write analysis.json and verdicts.md.

    Args:
        out: folder of the analysis.
        names: policies in the order they are shown; the first one's figures also stand at the top level.

    Returns:
        What analysis.json holds, as JSON values.

    Raises:
        ArgumentError: no name, or one given twice.
        RunError: a probe is missing, is another policy's, or does not belong with the first.
    """
    if not names or len(set(names)) < len(names):
        raise ArgumentError("an analysis needs the names of its policies, each once", value=list(names))
    folder = AnalysisDir.at(out)
    probes = {name: read_json(folder.probe(name)) for name in names}
    _check_alike(probes)
    first = probes[names[0]]
    base = first["base"]
    runs = {base: _run(first, "base"), **{name: _run(probe, "policy") for name, probe in probes.items()}}
    pairs = {name: analyse_pair(probe, _metrics(runs[name])) for name, probe in probes.items()}
    policies = tuple(_policy(name, base, runs[name]) for name in names)
    comparison, reason = _comparison(policies, base, [runs], [first.get("seed", 0)], first["split"])
    evidence = Evidence(policies, {name: (pair,) for name, pair in pairs.items()}, comparison, reason)
    rows = judge_all(evidence)
    result = to_jsonable(
        {
            **{name: pairs[names[0]][name] for name in PARTS},
            "pairs": pairs,
            **{name: first.get(name) for name in SHARED},
            "policies": {
                policy.name: {
                    "mixes_budgets": policy.mixes_budgets,
                    "process_rewards": policy.process_rewards,
                    "method": policy.method,
                }
                for policy in policies
            },
            "runs": runs,
            "definitions": first.get("definitions"),
            "verdicts": rows,
            "versions": collect_versions(),
        }
    )
    write_json(folder.result, result)
    folder.verdicts.write_text(to_markdown(rows), encoding="utf-8")
    return result


def judge_seeds(folders: Sequence[str | Path]) -> list[Json]:
    """Judge every claim over several seeds of the same policies, an analysed folder each.

    Args:
        folders: holding analysis.json, one for each seed, in any order.

    Returns:
        Rows as `verdicts.judge_all`.

    Raises:
        ArgumentError: no folder.
        RunError: a folder that was not analysed, or analyses of other policies or tasks.
    """
    if not folders:
        raise ArgumentError("verdicts over seeds need analysed folders", value=[])
    found = [read_json(AnalysisDir.at(folder).result) for folder in folders]
    first = found[0]
    for folder, one in zip(folders, found, strict=True):
        for key in ("policies", *(key for key in SHARED if key != "seed")):
            if one[key] != first[key]:
                raise RunError(
                    f"analyses of several seeds must have the same {key} ({first[key]!r}); {folder} has another",
                    value=one[key],
                )
    policies = tuple(Policy(name, first["base"], **settings) for name, settings in first["policies"].items())
    pairs = {policy.name: [one["pairs"][policy.name] for one in found] for policy in policies}
    runs, numbers = [one["runs"] for one in found], [one["seed"] for one in found]
    comparison, reason = _comparison(policies, first["base"], runs, numbers, first["split"])
    return judge_all(Evidence(policies, pairs, comparison, reason))


def _check_alike(probes: Mapping[str, Json]) -> None:
    """Refuse probes that do not belong together."""
    first = next(iter(probes.values()))
    for name, probe in probes.items():
        if probe["policy"] != name:
            raise RunError(f"the probe of {name} must be its own", value=probe["policy"], remedy="Probe again.")
        for key in SHARED:
            if probe.get(key) != first.get(key):
                raise RunError(
                    f"probes of one analysis must have the same {key} ({first.get(key)!r}); that of {name} has another",
                    value=probe.get(key),
                    remedy="Probe all policies in one call.",
                )


def _run(probe: Json, side: str) -> str | None:
    """The run directory of one side, None where it is not there."""
    path = (probe.get("runs") or {}).get(side)
    return path if path and RunDir(Path(path)).exists() else None


def _metrics(run: str | None) -> list[Json] | None:
    return RunDir.open(run).metrics() if run else None


def _policy(name: str, base: str, run: str | None) -> Policy:
    """What the settings of a run tell; a policy without a run counts as trained at a fixed budget."""
    config = RunDir.open(run).config() if run else {}
    algorithm = str((config.get("algorithm") or {}).get("name", "grpo"))
    schedule = str((config.get("budget") or {}).get("schedule", "fixed"))
    return Policy(
        name,
        base,
        mixes_budgets=mixes(schedule),
        process_rewards=algorithm == PROCESS_REWARDS,
        method=method_of(algorithm, schedule),
    )


def _comparison(
    policies: Sequence[Policy], base: str, runs: Sequence[Runs], seeds: Sequence[int], split: str
) -> tuple[pass_surface.Comparison | None, str]:
    """Pass@(K,T) of the policies that were evaluated with every seed; None with the reason where it is not known."""
    # Those with process rewards come last: differences are of later arms minus earlier ones.
    arms = [Policy(base), *sorted(policies, key=lambda policy: policy.process_rewards)]
    evaluations = {arm.name: [_evaluation(of_seed.get(arm.name), split) for of_seed in runs] for arm in arms}
    known = {name: found for name, found in evaluations.items() if None not in found}
    if base not in known or len(known) < 2:
        missing = base if base not in known else "any policy"
        return None, f"no evaluations/{split}.json of {missing}"
    try:
        found = pass_surface.analyse([arm for arm in arms if arm.name in known], seeds, known)
    except RunError as error:
        return None, error.rule
    return found, ""


def _evaluation(run: str | None, split: str) -> Json | None:
    path = Path(run) / "evaluations" / f"{split}.json" if run else None
    return read_json(path) if path and path.is_file() else None
