"""Methods compared over seeds: every one trained and evaluated, then a table, and what it decides."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxrl_agent.analysis.folder import judge_seeds
from jaxrl_agent.analysis.pass_claims import judge
from jaxrl_agent.analysis.pass_surface import Comparison, analyse, record
from jaxrl_agent.analysis.verdicts import to_markdown, to_text
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.evaluation.pair_probe import ProbeSettings
from jaxrl_agent.parallel.distributed import is_writer
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import Json, collect_versions, read_json, write_json
from jaxrl_agent.statistics import RESAMPLES
from jaxrl_agent.sweeps import tables
from jaxrl_agent.sweeps.runs import plan, run_folder, run_seed
from jaxrl_agent.sweeps.study import study_seed
from jaxrl_agent.sweeps.study_table import study_table

RESULT = "compare.json"
DEFINITIONS = {
    "mean": "over seeds and tasks",
    "task_low, task_high": f"95% percentile interval of the mean over seeds, from {RESAMPLES} resamples of the tasks: "
    "what other tasks would change for these seeds",
    "seed_sd": "sample standard deviation of the seeds' means",
    "seed_low, seed_high": "95% Student t interval of the seeds' means: what other seeds would change on these tasks",
    "differences": "method minus another, paired by seed and task",
    "verdict": "supported where both intervals meet the rule, contradicted where both lie wholly on the other side, "
    "else undecided; claims are judged one by one, without correction for their number",
    "headroom": "optimum minus success, mean over seeds; low is the lowest end of the seeds' own intervals over tasks",
}


def compare(
    methods: Mapping[str, Config],
    seeds: Sequence[int],
    out: str | Path,
    *,
    probes: ProbeSettings | None = None,
    display: Display | None = None,
    tensorboard: bool = True,
) -> Comparison:
    """Train and evaluate every method with every seed, and write the comparison anew after each seed.

    `OUT/compare.json` holds everything, `table.csv` a line for each mean, `table.md` the headline for a README, and
    with probes `study.md` what training changed and `verdicts.md` what that says of each claim. The same call goes on
    where it stopped.

    Args:
        methods: validated settings by name; later methods are compared with earlier ones, all of them with their base.
        seeds: one or more.
        out: folder of the comparison; made if missing.
        probes: also study every method against its base, by so many samples; the seed is the run's.
        display: live view.
        tensorboard: let runs write event files.

    Returns:
        The comparison over all seeds.

    Raises:
        ArgumentError: no method, no seed, or a seed given twice.
        ConfigError: methods that cannot be compared, or settings that cannot be met.
        RunError: a run cannot be made; the message names it.
        Interrupted: SIGINT or SIGTERM came; what was done is saved.
    """
    if not methods or not seeds or len(set(seeds)) < len(seeds):
        raise ArgumentError("a comparison needs methods and seeds, each once", value=(list(methods), list(seeds)))
    out, arms = Path(out).expanduser().resolve(), plan(methods)
    evaluations: dict[str, list[Json]] = {arm.name: [] for arm in arms}
    studies: dict[str, list[Path]] = defaultdict(list)
    for number, seed in enumerate(seeds, start=1):
        for name, evaluation in run_seed(arms, seed, out, display=display, tensorboard=tensorboard).items():
            evaluations[name].append(evaluation)
        if probes:
            for base, folder in study_seed(arms, seed, out, probes, display=display).items():
                studies[base].append(folder)
        comparison = analyse(arms, seeds[:number], evaluations)
        if is_writer():
            write(comparison, out, verdicts=[row for folders in studies.values() for row in judge_seeds(folders)])
            if studies:
                (out / "study.md").write_text("\n".join(map(study_table, studies.values())), encoding="utf-8")
    return comparison


def write(comparison: Comparison, out: Path, *, verdicts: Sequence[Json] = ()) -> None:
    """Write compare.json, table.csv and table.md, and with verdicts verdicts.md."""
    write_json(out / RESULT, {**to_json(comparison), "verdicts": verdicts})
    if verdicts:
        (out / "verdicts.md").write_text(to_markdown(verdicts), encoding="utf-8")
    (out / "table.csv").write_text(tables.tidy(comparison), encoding="utf-8")
    (out / "table.md").write_text(tables.markdown(comparison), encoding="utf-8")


def summary(comparison: Comparison, verdicts: Sequence[Json] = ()) -> str:
    """The table, and the verdicts as text; without them a sentence for each claim on Pass@K."""
    said = to_text(verdicts) if verdicts else "\n".join(claim.sentence for claim in judge(comparison))
    return f"{tables.terminal(comparison)}\n\n{said}"


def stored_verdicts(out: str | Path) -> list[Json]:
    """The verdicts that `compare` wrote; none without probes."""
    return read_json(Path(out).expanduser() / RESULT)["verdicts"]


def to_json(comparison: Comparison) -> Json:
    """Everything that a comparison found, as JSON values; shares and differences are fractions, not per cent."""
    return {
        **comparison.facts,
        "seeds": comparison.seeds,
        "budgets": comparison.budgets,
        "definitions": DEFINITIONS,
        "arms": [
            {
                "name": arm.name,
                "base": arm.base,
                "schedule": arm.config.budget.schedule,
                "runs": [str(run_folder(Path(), seed, arm.name)) for seed in comparison.seeds],
                "settings": to_dict(arm.config),
            }
            for arm in comparison.arms
        ],
        "table": [
            {"method": name, **record(comparison, cell, value)}
            for name, cells in comparison.values.items()
            for cell, value in cells.items()
        ],
        "differences": [
            {"method": a, "minus": b, **record(comparison, cell, value)}
            for (a, b), cells in comparison.differences.items()
            for cell, value in cells.items()
        ],
        "headroom": [
            {"method": name, "T": turns, **dataclasses.asdict(room)}
            for name, by_budget in comparison.headroom.items()
            for turns, room in by_budget.items()
        ],
        "claims": [
            {
                "topic": claim.topic,
                "verdict": claim.verdict,
                "sentence": claim.sentence,
                "rule": claim.rule,
                "method": claim.difference[0],
                "minus": claim.difference[1],
                **record(comparison, (claim.k, claim.turns), claim.value),
            }
            for claim in judge(comparison)
        ],
        "versions": collect_versions(),
    }
