"""Checkpoints of a run, and policies by name (`run:DIR`, `hf:DIR`)."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxrl_agent.errors import CheckpointError, ConfigError
from jaxrl_agent.learner.train_state import TrainState
from jaxrl_agent.models.hf_weights import load_hf
from jaxrl_agent.models.qwen3 import Qwen3Config, init_params, param_axes
from jaxrl_agent.parallel.rules import tree_shardings
from jaxrl_agent.run_dir import Json, RunDir

WARM_START, REINFORCE = "warm_start", "reinforce"  # phases of a run
_PARAMS, _LEARNER, _META = "params", "learner", "meta"


class Checkpoints:
    """The checkpoints of one run: parameters, the rest of the learner's state, and what they belong to.

    A checkpoint appears under its number only when it is whole; a save that was killed leaves nothing behind that
    could be taken for one. Saving is asynchronous: `wait` or `close` before the process ends.

    Args:
        folder: made if it does not exist.
        keep: checkpoints to keep.
    """

    def __init__(self, folder: Path, *, keep: int = 2):
        folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder, options=options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A save that failed fails again when the manager closes; the first error is the one to show.
        with contextlib.suppress(CheckpointError) if kind else contextlib.nullcontext():
            self.close()

    def latest(self) -> int | None:
        """Number of the newest whole checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, meta: Json) -> None:
        """Start to save; the arrays may be donated at once.

        Args:
            step: number of the checkpoint, larger than any before.
            state: the learner's state.
            meta: what it is, see `describe_policy`.
        """
        self._save(step, {_PARAMS: state.params, _LEARNER: _without_params(state)}, meta)

    def save_params(self, step: int, params: Any, meta: Json) -> None:
        """Start to save a policy alone, from which no training can go on."""
        self._save(step, {_PARAMS: params}, meta)

    def meta(self, step: int | None = None) -> Json:
        """What a checkpoint is."""
        return self._restore({_META: ocp.args.JsonRestore()}, step)[_META]

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """Read the whole state.

        Args:
            like: state of ShapeDtypeStructs with the shardings to restore to.
            step: number of the checkpoint, the newest by default.

        Raises:
            CheckpointError: there is none, it is damaged, or its arrays do not fit `like`.
        """
        found = self._restore(
            {
                _PARAMS: ocp.args.StandardRestore(like.params),
                _LEARNER: ocp.args.StandardRestore(_without_params(like)),
            },
            step,
        )
        return like.replace(params=found[_PARAMS], **found[_LEARNER])

    def restore_params(self, like: Any, step: int | None = None) -> Any:
        """Read the parameters alone, to the shapes and shardings of `like`."""
        return self._restore({_PARAMS: ocp.args.StandardRestore(like)}, step)[_PARAMS]

    def wait(self) -> None:
        """Return when everything is on disk."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish pending saves and free the manager."""
        with self._writing():
            self._manager.close()

    def _save(self, step: int, trees: dict[str, Any], meta: Json) -> None:
        items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        with self._writing():
            self._manager.save(step, args=ocp.args.Composite(**items, **{_META: ocp.args.JsonSave(meta)}))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn the failure of this save, or of the one before it, into an error that says what is left."""
        try:
            yield
        except (ValueError, OSError) as error:
            full = "RESOURCE_EXHAUSTED" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
            reason = "no space is left on the disk" if full else _first_line(error)
            raise CheckpointError(
                f"a checkpoint must be written whole; {reason}",
                value=str(self._folder),
                remedy="The checkpoints before it are whole: free space and go on with --resume.",
            ) from error

    def _restore(self, args: dict[str, Any], step: int | None) -> Any:
        step = self.latest() if step is None else step
        if step is None:
            raise CheckpointError(
                "the run must have a finished checkpoint",
                value=str(self._folder),
                remedy="Train it first, or give another run.",
            )
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**args))
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise CheckpointError(
                f"checkpoint {step} must be readable and fit the model ({_first_line(error)})",
                value=str(self._folder),
                remedy="Use the settings of the run, or remove the checkpoint to go on from an older one.",
            ) from error


def describe_policy(model: Qwen3Config, tokenizer: str | None, config: Json, *, phase: str, update: int) -> Json:
    """What a checkpoint says of itself.

    Args:
        model: shape of the network.
        tokenizer: what the policy speaks; None leaves it to the configuration of whoever loads it.
        config: settings that the policy was trained with; none for given weights.
        phase: WARM_START or REINFORCE.
        update: updates of this phase so far.
    """
    return {"phase": phase, "update": update, "model": model.to_hf(), "tokenizer": tokenizer, "config": config}


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy as it lies on disk."""

    model: Qwen3Config
    params: Any
    tokenizer: str | None  # None where the checkpoint does not say
    update: int  # reinforcement-learning updates that it has seen; 0 for given weights
    think: str | None = None  # how its run treated reasoning; None for given weights


def load_policy(spec: str, *, mesh: jax.sharding.Mesh) -> LoadedPolicy:
    """Load a policy by name, straight into its shardings.

    Args:
        spec: `hf:DIR` (a Hugging Face folder or a GGUF file) or `run:DIR` (a run directory, newest checkpoint).
        mesh: the device mesh.

    Raises:
        ConfigError: another kind of name.
        WeightsError, CheckpointError, RunError: it cannot be read.
    """
    kind, path = split_policy_name(spec)
    if kind == "hf":
        config, params = load_hf(path, mesh=mesh)
        return LoadedPolicy(config, params, None, 0)
    run = RunDir.open(path)
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = checkpoints.meta()
        config = Qwen3Config.from_hf(meta["model"])
        params = checkpoints.restore_params(abstract_params(config, mesh))
        update = meta["update"] if meta["phase"] == REINFORCE else 0
        think = meta["config"].get("task", {}).get("think")
        tokenizer = str(run.tokenizer) if run.tokenizer.is_dir() else meta["tokenizer"]
        return LoadedPolicy(config, params, tokenizer, update, think)


def split_policy_name(spec: str) -> tuple[str, str]:
    """Take `hf:DIR` or `run:DIR` apart.

    Raises:
        ConfigError: another kind of name.
    """
    kind, _, path = spec.partition(":")
    if kind not in ("hf", "run") or not path:
        raise ConfigError("a policy is named hf:DIR or run:DIR", value=spec)
    return kind, path


def policy_version(spec: str) -> str:
    """Name a policy so that two versions of it differ.

    `run:DIR@NUMBER` of the newest checkpoint, or `hf:DIR@DIGEST` of the names, sizes and times of its weight files.
    """
    kind, path = split_policy_name(spec)
    if kind == "hf":
        place = Path(path).expanduser()
        files = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
        stats = [(file.name, file.stat()) for file in files]
        marks = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
        return f"{spec}@{hashlib.sha256(marks.encode()).hexdigest()[:8]}"
    with Checkpoints(RunDir.open(path).checkpoints) as checkpoints:
        return f"{spec}@{checkpoints.latest()}"


def abstract_params(config: Qwen3Config, mesh: jax.sharding.Mesh) -> Any:
    """ShapeDtypeStructs of the model's parameters with their shardings on `mesh`."""
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return with_shardings(shapes, tree_shardings(param_axes(config), shapes, mesh))


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Put a tree of shardings into a tree of ShapeDtypeStructs."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def _without_params(state: TrainState) -> dict[str, Any]:
    rest = {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name != "params"}
    return {name: value for name, value in rest.items() if value is not None}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
