"""The runs of a comparison: which there must be, and each trained and evaluated, or gone on with where it stopped.

`OUT/seed0/base` is the policy that methods start from, trained once for each seed however many methods share it;
`OUT/seed0/NAME` is a method; `OUT/seed1/...` the same under the next seed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxrl_agent.analysis.arms import method_of, mixes
from jaxrl_agent.config import Config, RolloutConfig, TrainConfig, to_dict
from jaxrl_agent.errors import ConfigError, JaxrlError, RunError
from jaxrl_agent.evaluation.evaluator import evaluate, is_current
from jaxrl_agent.evaluation.probes import task_settings
from jaxrl_agent.interrupts import Interrupted
from jaxrl_agent.parallel.distributed import from_writer, is_writer
from jaxrl_agent.preflight import check_names
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import Json, RunDir, read_json, to_jsonable, write_json
from jaxrl_agent.train import train

EVALUATION = "test"  # name of the evaluation in each run


@dataclasses.dataclass(frozen=True)
class Arm:
    """A line of the comparison: a method, or the base that methods start from."""

    name: str
    config: Config  # its seed and, where a method starts from a trained base, its init are set for each run
    base: str | None = None  # name of the arm that a method starts from

    @property
    def mixes_budgets(self) -> bool:
        """Whether it trains on a mixture of budgets."""
        return mixes(self.config.budget.schedule)

    @property
    def method(self) -> str:
        """How it trains apart from mixing budgets."""
        return method_of(self.config.algorithm.name, self.config.budget.schedule)


def method_names(paths: Sequence[str | Path]) -> list[str]:
    """Name config files by their stems, without the first words that all share.

    A single one loses one word: `configs/frozenlake_grpo.py` is grpo.

    Raises:
        ConfigError: two files have one name.
    """
    words = [Path(path).stem.split("_") for path in paths]
    while all(len(left) > 1 for left in words) and len({left[0] for left in words}) == 1:
        words = [left[1:] for left in words]
        if len(words) == 1:
            break
    names = ["_".join(left) for left in words]
    if len(set(names)) < len(names):
        raise ConfigError("config files of one comparison must differ in name", value=names)
    return names


def plan(methods: Mapping[str, Config]) -> list[Arm]:
    """List the arms: bases first, then the methods in their order.

    Methods with the same model, task, warm start and initial policy share a base. A method without updates of
    reinforcement learning is its base and gets no line of its own.

    Args:
        methods: validated settings by name.

    Raises:
        ConfigError: methods that are not evaluated alike, a name that a base needs, or settings that cannot be met.
    """
    for name, config in methods.items():
        check_names(config)
        if config.seed:
            raise ConfigError(f"config.seed of {name} must be 0: a comparison sets it for each run", value=config.seed)
    _check_alike(methods)
    owners: dict[Config, str] = {}
    for name, config in methods.items():
        owners.setdefault(_base(config), name)
    names = {base: "base" if len(owners) == 1 else f"base_of_{owner}" for base, owner in owners.items()}
    arms = [Arm(name, config) for config, name in names.items()]
    trained = {name: config for name, config in methods.items() if config.train.updates}
    arms += [Arm(name, config, names[_base(config)]) for name, config in trained.items()]
    if clash := set(names.values()) & trained.keys():
        raise ConfigError("a method must not have the name of a base", value=clash, remedy="Rename its config file.")
    return arms


def _base(config: Config) -> Config:
    """The settings of what a method starts from: nothing in them depends on how the method trains."""
    given = {name: getattr(config, name) for name in ("init", "mesh", "model", "task", "evaluation")}
    if not config.init:
        given["warm_start"] = config.warm_start
    rollout = RolloutConfig(
        prompts_per_update=min(RolloutConfig.prompts_per_update, config.task.n_train),  # never drawn, but validated
        top_k=config.rollout.top_k,
        top_p=config.rollout.top_p,
    )
    return Config(**given, rollout=rollout, train=TrainConfig(updates=0))


def _check_alike(methods: Mapping[str, Config]) -> None:
    """Refuse methods whose evaluations could not be compared."""
    first, *others = methods
    for name in others:
        ours, theirs = _what_is_evaluated(methods[first]), _what_is_evaluated(methods[name])
        for key in ours:
            if ours[key] != theirs[key]:
                raise ConfigError(
                    f"methods of one comparison must have the same config.{key}",
                    value={first: ours[key], name: theirs[key]},
                    remedy=f"Give one value to all of them: --set={key}:VALUE.",
                )


def _what_is_evaluated(config: Config) -> Json:
    def pick(section: str, *names: str) -> Json:
        return {f"{section}.{name}": getattr(getattr(config, section), name) for name in names}

    return {
        **{f"task.{name}": value for name, value in task_settings(config).items()},
        **pick("rollout", "top_k", "top_p"),
        **pick("evaluation", "samples", "budget_fractions"),
    }


def run_seed(
    arms: Sequence[Arm], seed: int, out: Path, *, display: Display | None = None, tensorboard: bool = True
) -> dict[str, Json]:
    """Train and evaluate every arm with one seed; what is done is not done again.

    Args:
        arms: from `plan`.
        seed: of training, and of the sampling of the evaluations: arms share their random numbers, seeds do not.
        out: folder of the comparison, absolute.
        display: live view.
        tensorboard: let runs write event files.

    Returns:
        The evaluations by name of the arm, as JSON values.

    Raises:
        RunError: a run cannot be made; the message names it.
        Interrupted: as `train`.
    """
    display = display or Display(quiet=not is_writer())
    evaluations = {}
    for arm in arms:
        folder = run_folder(out, seed, arm.name)
        with _named(f"{arm.name} with seed {seed} ({folder})"):
            display.say(f"seed {seed}, {arm.name}")
            config = dataclasses.replace(arm.config, seed=seed)
            if arm.base is None and config.init:  # nothing to train: the folder is there for its evaluation
                RunDir.create(folder, to_dict(config), writer=is_writer())
                policy = config.init
            else:
                config = dataclasses.replace(config, init=config.init or _start(arm, seed, out))
                train(config, folder, resume=True, display=display, tensorboard=tensorboard)
                policy = f"run:{folder}"
            evaluations[arm.name] = _evaluation(dataclasses.replace(config, init=policy), folder, seed, display)
    return evaluations


def run_folder(out: Path, seed: int, name: str) -> Path:
    """The run directory of an arm."""
    return out / f"seed{seed}" / name


def _start(arm: Arm, seed: int, out: Path) -> str:
    return "" if arm.base is None else f"run:{run_folder(out, seed, arm.base)}"


def _evaluation(config: Config, folder: Path, seed: int, display: Display) -> Json:
    path = folder / "evaluations" / f"{EVALUATION}.json"
    if from_writer(path.is_file() and is_current(read_json(path), config, temperature=1.0, seed=seed)):
        return read_json(path)
    result, trajectories = evaluate(config, temperature=1.0, seed=seed, display=display)
    if is_writer():
        write_json(path, result)
        RunDir.open(folder).write_trajectories(f"evaluation_{EVALUATION}", trajectories)
    return to_jsonable(result)


@contextlib.contextmanager
def _named(run: str) -> Iterator[None]:
    """Put the name of the run into whatever goes wrong with it."""
    try:
        yield
    except Interrupted:
        raise
    except JaxrlError as error:
        raise RunError(f"{run}: {error.rule}", value=error.value, remedy=error.remedy) from error
    except Exception as error:
        error.add_note(f"This was {run}.")
        raise
