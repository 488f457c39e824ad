"""What all launchers share: one-line errors, config files by path or name, and the compilation cache."""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import app, flags, logging

from jaxrl_agent import sandbox
from jaxrl_agent.config import Config, build_config, check_key, describe, to_dict, unknown_name
from jaxrl_agent.errors import ConfigError, JaxrlError
from jaxrl_agent.evaluation.pair_probe import ProbeSettings, Subject
from jaxrl_agent.parallel.distributed import is_writer, join_processes
from jaxrl_agent.progress import MODES, Display
from jaxrl_agent.run_dir import Json, RunDir, declare, write_json, write_lines
from jaxrl_agent.types import Trajectory

PROJECT = Path(__file__).resolve().parent.parent
NO_SANDBOX = "none: started with --unsafe_no_sandbox"
flags.disclaim_key_flags()  # flags defined here on a launcher's behalf are the launcher's, and in its --help


_UNSAFE = flags.DEFINE_bool(
    "unsafe_no_sandbox", False, "run what models write WITHOUT isolation; only on a machine that may be lost"
)


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Run an absl main; an error that the user can act on becomes one line on stderr and exit code 1."""

    def guarded(arguments: Sequence[str]) -> int:
        if len(arguments) > 1:
            raise app.UsageError(f"unexpected argument {arguments[1]!r}; flags begin with --")
        if not any(argument.lstrip("-").startswith(("verbosity", "v=")) for argument in sys.argv[1:]):
            logging.set_verbosity(logging.WARNING)  # libraries report every step of a save at INFO
        try:
            _choose_sandbox()
            main(arguments)
        except JaxrlError as error:
            return _report(error)
        except KeyboardInterrupt:
            print("error: interrupted", file=sys.stderr)
            return 130
        return 0

    if str(PROJECT) not in sys.path:
        sys.path.append(str(PROJECT))  # config files build on one another: `from configs.NAME import get_config`
    try:
        arguments = [sys.argv[0], *map(_checked_argument, _joined(sys.argv[1:]))]
    except JaxrlError as error:
        raise SystemExit(_report(error)) from None
    app.run(guarded, argv=arguments, flags_parser=_parse_flags)


def _choose_sandbox() -> None:
    """Give isolation up if the command line says so, and let every file written say it too."""
    declare("sandbox", NO_SANDBOX if _UNSAFE.value else None)
    if _UNSAFE.value:
        print("warning: --unsafe_no_sandbox: what models write runs WITHOUT isolation", file=sys.stderr)
        sandbox.configure(unsafe=True)


def _parse_flags(arguments: Sequence[str]) -> list[str]:
    """Parse flags; a faulty flag, and a config file that sets an unknown key or is no Python, become one line."""
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        reason = " ".join(str(error).split())
        raise SystemExit(_report(ConfigError(reason.rstrip("."), remedy="--help names every flag."))) from None
    except (AttributeError, KeyError, SyntaxError) as error:
        reason = str(error).replace("\\n", "\n").strip("'\"").splitlines()
        near = next((line for line in reason if line.startswith("Did you mean")), "Correct the file.")
        fault = ConfigError(
            "the config file must be Python that sets known keys",
            value=reason[0].split(" Other fields")[0],
            remedy=near,
        )
        raise SystemExit(_report(fault)) from None


def _report(error: JaxrlError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return getattr(error, "exit_code", 1)


def _joined(arguments: Sequence[str]) -> list[str]:
    """Write `--config FILE` as `--config=FILE`."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1].lstrip("-") == "config":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _checked_argument(argument: str) -> str:
    """Find the file of `--config=FILE`; refuse `--config.KEY=` that names no setting, before absl says it at length."""
    name, separator, value = argument.partition("=")
    name = name.lstrip("-")
    if name == "config" and separator:
        return f"--config={find_config(value)}"
    if name.startswith("config."):
        check_key(name.removeprefix("config."))
    return argument


def find_config(path: str) -> str:
    """Look a config file up in the working directory, then in the project.

    Raises:
        ConfigError: neither holds it.
    """
    for candidate in (Path(path).expanduser(), PROJECT / path):
        if candidate.is_file():
            return str(candidate.resolve())
    known = ", ".join(f"configs/{file.name}" for file in sorted((PROJECT / "configs").glob("*.py")))
    raise ConfigError("the config file must exist", value=path, remedy=f"The project has {known}.")


def override(values: ml_collections.ConfigDict, **given: str | None) -> None:
    """Put flags that were given over the config's own keys; `run:` and `hf:` folders become absolute."""
    for name, value in given.items():
        if value is None:
            continue
        kind, separator, path = value.partition(":")
        if name == "init" and separator and Path(path).expanduser().exists():
            value = f"{kind}:{Path(path).expanduser().resolve()}"
        values[name] = value


def read_config(path: str, settings: Sequence[str] = (), **given: str | None) -> Config:
    """Read a config file for a launcher that takes several, with `KEY:VALUE` settings and flags over it.

    Args:
        path: as `find_config` takes it.
        settings: values of a flag such as `--set=seed:1,evaluation.budget_fractions:0.25,1.0`, given once or more.
        given: as `override` takes them.

    Raises:
        ConfigError: the file does not exist or has no get_config(), an unknown key, or a value out of range.
    """
    made = runpy.run_path(find_config(path)).get("get_config")
    if made is None:
        raise ConfigError("a config file must define get_config()", value=path)
    values = made()
    override(
        values, **{"init": values.init or None, **{name: flag for name, flag in given.items() if flag is not None}}
    )
    plain = values.to_dict()
    for key, text in split_settings(settings):
        check_key(key)
        *sections, name = key.split(".")
        section = functools.reduce(operator.getitem, sections, plain)
        section[name] = _parsed(text, like=section[name])
    return build_config(plain)


_PROBE_RULES = {"split": ("test", "validation").__contains__, "budget_fraction": lambda share: 0.0 < share <= 1.0}


def probe_settings(items: Sequence[str]) -> ProbeSettings:
    """Sizes of a study from `NAME:VALUE` settings such as `--probe=states:64,replies:8`.

    Raises:
        ConfigError: an unknown name, or a value that is none of its kind.
    """
    fields = {field.name: field.default for field in dataclasses.fields(ProbeSettings)}
    del fields["seed"]  # a comparison sets it for each run
    chosen = {}
    for name, text in split_settings(items):
        if name not in fields:
            raise unknown_name("a setting of --probe must be known", name, fields)
        kind, value = type(fields[name]), _parsed(text, like=fields[name])
        value = float(value) if kind is float and isinstance(value, int) else value
        if not isinstance(value, kind) or not _PROBE_RULES.get(name, lambda count: count > 0)(value):
            raise ConfigError(f"--probe={name} must be {kind.__name__} in the range of analyze.py's flag", value=text)
        chosen[name] = value
    return ProbeSettings(**chosen)


def split_settings(items: Sequence[str]) -> list[tuple[str, str]]:
    """Pair keys and values of one or more `KEY:VALUE,KEY:VALUE`; a comma inside a value does not end it.

    Raises:
        ConfigError: the first item has no colon.
    """
    pairs: list[tuple[str, str]] = []
    for item in ",".join(items).split(",") if items else ():
        key, colon, text = item.partition(":")
        if colon:
            pairs.append((key.strip(), text.strip()))
        elif pairs:
            pairs[-1] = pairs[-1][0], f"{pairs[-1][1]},{item.strip()}"
        else:
            raise ConfigError("settings are written KEY:VALUE,KEY:VALUE", value=item)
    return pairs


def _parsed(text: str, *, like: object) -> object:
    """The value that a text stands for; what has the wrong type for its key is left to `build_config` to refuse."""
    if isinstance(like, str):
        return text
    if isinstance(like, tuple):
        return tuple(_parsed(part, like=None) for part in text.strip("()").split(",") if part.strip())
    try:
        return ast.literal_eval(text.strip().capitalize() if isinstance(like, bool) else text.strip())
    except (SyntaxError, ValueError):
        return text


def seed_list(count: int, listed: Sequence[str] | None) -> list[int]:
    """The seeds of `--seeds=3`, which are 0, 1, 2, or of `--seed_list=0,5`.

    Raises:
        ConfigError: a listed seed is no integer of 0 or more.
    """
    if not listed:
        return list(range(count))
    if not all(text.strip().isdecimal() for text in listed):
        raise ConfigError("--seed_list is a list of integers of 0 or more", value=",".join(listed))
    return [int(text) for text in listed]


def print_config(config: Config) -> None:
    """Print every setting with its unit, and what they amount to."""
    print("\n".join(describe(config)))
    if config.init:
        print(f"\nthe model: as {config.init} has it; config.model.preset is not used")
    rollout, trajectories = config.rollout, config.trajectories_per_update
    sampled = trajectories * rollout.candidates
    turns = sampled * config.task.t_max
    candidates = f", chosen from {rollout.candidates} candidates each = {sampled} sampled" * (rollout.candidates > 1)
    print(
        f"\none update: {rollout.prompts_per_update} prompts x {rollout.group_size} = {trajectories} trajectories"
        f"{candidates}, at most {turns} turns and {turns * config.task.max_tokens} sampled tokens\n"
        f"the run: {config.warm_start.updates if not config.init else 0} supervised updates, then "
        f"{config.train.updates} updates x {config.train.mini_batches} optimizer steps, "
        f"{config.train.updates * sampled} trajectories"
    )


def evaluated_config(
    *,
    run_dir: str | None,
    checkpoint: str | None,
    config_file: ml_collections.ConfigDict | None,
    budget_fractions: list[str] | None = None,
    samples: int | None = None,
    tasks: int | None = None,
    mesh: str | None = None,
) -> Config:
    """The config of an evaluation: a run's own, or a config file's with a named policy; flags override it.

    Raises:
        ConfigError: neither or both are given, or a flag is out of range.
        RunError: `run_dir` holds no run.
    """
    named = checkpoint is not None, config_file is not None
    if named != ((False, False) if run_dir is not None else (True, True)):
        raise ConfigError(
            "give either --run_dir=DIR, or --checkpoint=NAME together with --config=FILE",
            value={"run_dir": run_dir, "checkpoint": checkpoint, "config": config_file is not None},
        )
    if run_dir is not None:
        run = RunDir.open(run_dir)
        values = ml_collections.ConfigDict(to_dict(build_config(run.config())))
        override(values, init=f"run:{run.path}", mesh=mesh)
    else:
        values = config_file
        override(values, init=checkpoint, mesh=mesh)
    if budget_fractions is not None:
        values.evaluation.budget_fractions = tuple(_fraction(text) for text in budget_fractions)
    values.evaluation.samples = samples or values.evaluation.samples
    values.task.n_test = tasks or values.task.n_test
    if budget_fractions and values.task.budget_visibility == "hidden":
        print("note: hidden budgets: one set of whole episodes serves every T, --budget_fractions changes nothing")
    return build_config(values)


def subjects(
    names: Sequence[str],
    config_file: ml_collections.ConfigDict | None,
    *,
    tasks: int | None = None,
    mesh: str | None = None,
) -> list[Subject]:
    """Policies of a study: `[NAME=]DIR` of run directories, or `[NAME=]hf:DIR`, which plays what a config file says.

    All of them play `tasks` held-out tasks; None: as many as their settings say.

    Raises:
        ConfigError: an hf: folder without a config file, or a name given twice.
        RunError: a directory that holds no run.
    """
    found = [_subject(text, config_file, {"tasks": tasks, "mesh": mesh}) for text in names]
    if len({subject.name for subject in found}) < len(found):
        raise ConfigError(
            "policies of one study must differ in name",
            value=[subject.name for subject in found],
            remedy="Name them: --policy=NAME=DIR.",
        )
    return found


def _subject(text: str, config_file: ml_collections.ConfigDict | None, options: Mapping[str, Any]) -> Subject:
    name, equals, where = text.partition("=")
    if not equals or "/" in name:
        name, where = "", text
    if where.startswith("hf:"):
        if config_file is None:
            raise ConfigError("hf:DIR needs the settings of what it is to play", value=where, remedy="Give --config.")
        values = ml_collections.ConfigDict(config_file.to_dict())
        config, run = evaluated_config(run_dir=None, checkpoint=where, config_file=values, **options), None
    else:
        run = RunDir.open(where.removeprefix("run:")).path
        config = evaluated_config(run_dir=str(run), checkpoint=None, config_file=None, **options)
    folder = Path(where.removeprefix("run:").removeprefix("hf:")).expanduser()
    # Only an absolute path has a name whatever it is ("." has none); a link keeps its own.
    return Subject(name or os.path.basename(os.path.abspath(folder)), config, None if run is None else str(run))


def evaluation_path(out: str | None, run_dir: str | None, *, split: str = "test") -> Path:
    """Where an evaluation is written: `--out`, or `evaluations/SPLIT.json` of the run.

    Raises:
        ConfigError: neither is given.
    """
    if out:
        return Path(out).expanduser().resolve()
    if run_dir is None:
        raise ConfigError("an evaluation of a --checkpoint needs a file to write to", remedy="Give --out=FILE.json.")
    return RunDir.open(run_dir).path / "evaluations" / f"{split}.json"


def store_evaluation(out: Path, result: Json, trajectories: Sequence[Trajectory]) -> None:
    """Write an evaluation and the trajectories that were kept for reading: among the run's, or beside the file."""
    write_json(out, result)
    if out.parent.name == "evaluations" and RunDir(out.parent.parent).exists():
        RunDir(out.parent.parent).write_trajectories(f"evaluation_{out.stem}", trajectories)
    else:
        write_lines(out.with_name(f"{out.stem}_trajectories.jsonl"), trajectories)


def print_grid(result: Json, path: Path) -> None:
    """Print Pass@(K,T) of an evaluation with 95% intervals, one line for each K, and where it was written."""
    cells = {(cell["K"], cell["T"]): cell for cell in result["grid"]}
    ts = sorted({t for _, t in cells})
    print("Pass@(K,T)  " + "".join(f"{f'T={t}':>24}" for t in ts))
    for k in sorted({k for k, _ in cells}):
        row = (cells[k, t] for t in ts)
        print(f"K={k:<10}" + "".join(f"{c['value']:>9.3f} [{c['ci_low']:.3f}, {c['ci_high']:.3f}]" for c in row))
    print(f"evaluation: {path}")


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError("--budget_fractions is a list of numbers in (0, 1]", value=text) from None


def progress_flag() -> flags.FlagHolder[str]:
    """Define `--progress`."""
    return flags.DEFINE_enum("progress", "auto", MODES, "a bar, plain lines, or nothing; auto: a bar on a terminal")


def make_display(mode: str) -> Display:
    """The live view of a command: of a pod's processes one speaks."""
    return Display(mode=mode, quiet=not is_writer())


def start(*, distributed: bool = False) -> None:
    """Join the processes of a pod if asked to, and switch the compilation cache on."""
    if distributed:
        join_processes()
    use_compilation_cache()


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, small ones too; JAX_COMPILATION_CACHE_DIR moves them."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxrl_agent" / "xla"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
