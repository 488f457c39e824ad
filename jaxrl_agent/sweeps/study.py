"""A study of checkpoints: probes of each pair, what they amount to, and the verdicts; one folder a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxrl_agent.analysis.folder import analyse_folder
from jaxrl_agent.evaluation.pair_probe import ProbeSettings, Subject
from jaxrl_agent.evaluation.probes import check_alike, is_current, probe
from jaxrl_agent.parallel.distributed import from_writer, is_writer
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import AnalysisDir, Json, RunDir, read_json, write_json
from jaxrl_agent.sweeps.runs import Arm, run_folder


def study(
    base: Subject,
    policies: Sequence[Subject],
    out: str | Path,
    settings: ProbeSettings,
    *,
    reuse: bool = False,
    display: Display | None = None,
) -> Json:
    """Probe each policy against the base, write what was found, and analyse it.

    `OUT/probes/NAME.json` holds the raw columns of a pair, `OUT/trajectories/NAME.jsonl` episodes to read,
    `OUT/analysis.json` every figure, `OUT/verdicts.md` what they say of each claim.

    Args:
        base: the policy that the others are compared with.
        policies: the others.
        out: folder; made if missing.
        settings: how much to sample.
        reuse: leave a probe that is there already as it is, if it is this very one.
        display: live view.

    Returns:
        The analysis.

    Raises:
        ConfigError, TokenizerError, NonFiniteError: as `probe`.
        RunError: a file of a run is malformed.
    """
    folder = AnalysisDir.at(out)
    check_alike([base, *policies])
    missing = [policy for policy in policies if not (reuse and _is_there(folder, base, policy, settings))]
    for found in probe(base, missing, settings, display=display) if missing else ():
        if is_writer():
            write_json(folder.probe(found.name), found.raw)
            RunDir(folder.path).write_trajectories(found.name, found.trajectories)
    if is_writer():
        analyse_folder(folder.path, [policy.name for policy in policies])
    from_writer(0)  # a barrier: every process returns whole files
    return read_json(folder.result)


def study_seed(
    arms: Sequence[Arm], seed: int, out: Path, settings: ProbeSettings, *, display: Display | None = None
) -> dict[str, Path]:
    """Study the runs that a comparison made with one seed, each method against its base; what is done is left alone.

    Args:
        arms: of the comparison.
        seed: also of everything drawn.
        out: folder of the comparison, absolute.
        settings: how much to sample.
        display: live view.

    Returns:
        The folder of the study by name of the base.
    """
    folders = {}
    for base in [arm for arm in arms if arm.base is None]:
        methods = [arm for arm in arms if arm.base == base.name]
        if methods:
            folders[base.name] = run_folder(out, seed, f"analysis_of_{base.name}")
            first, *others = (_subject(arm, seed, out) for arm in (base, *methods))
            study(
                first,
                others,
                folders[base.name],
                dataclasses.replace(settings, seed=seed),
                reuse=True,
                display=display or Display(quiet=not is_writer()),
            )
    return folders


def _subject(arm: Arm, seed: int, out: Path) -> Subject:
    folder = run_folder(out, seed, arm.name)
    policy = arm.config.init if arm.base is None and arm.config.init else f"run:{folder}"
    return Subject(arm.name, dataclasses.replace(arm.config, init=policy), str(folder))


def _is_there(folder: AnalysisDir, base: Subject, policy: Subject, settings: ProbeSettings) -> bool:
    path = folder.probe(policy.name)
    return bool(from_writer(path.is_file() and is_current(read_json(path), base, policy, settings)))
