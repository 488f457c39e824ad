"""Policies between their two homes: the checkpoints of a run, and Hugging Face folders."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jax

from jaxrl_agent.checkpoint import REINFORCE, Checkpoints, describe_policy, load_policy
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.hf_weights import save_hf
from jaxrl_agent.models.tokenizer import load_tokenizer, tokenizer_folder
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.run_dir import RunDir

# A tokenizer's files, whichever of them a folder has; the generation settings name the tokens that end a reply.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def run_to_hf(source: str | Path, out: str | Path, *, tokenizer: str | None = None) -> str:
    """Write the newest checkpoint of a run as a folder that transformers loads.

    Args:
        source: run directory.
        out: the folder; files of other kinds in an existing one are kept.
        tokenizer: takes the place of the policy's own, which may have moved since.

    Returns:
        The name of the tokenizer. Its files are in the folder, unless it is an embedded one and has none.

    Raises:
        RunError, CheckpointError, TokenizerError, WeightsError: what is read cannot be read, or `out` is a file.
    """
    policy = load_policy(f"run:{source}", mesh=_all_devices())
    name = tokenizer or policy.tokenizer
    if name is None:
        raise ConfigError(
            "the run must name the tokenizer of its policy", value=str(source), remedy="Give one with --tokenizer."
        )
    folder = tokenizer_folder(name)
    save_hf(out, policy.model, policy.params)
    if folder is not None:
        _copy_tokenizer(folder, Path(out))
    return name


def hf_to_run(source: str | Path, out: str | Path, *, config: Config, tokenizer: str | None = None) -> RunDir:
    """Make a run directory whose only checkpoint holds the weights of a folder, for every command that takes run:DIR.

    Args:
        source: folder that transformers' save_pretrained, or `save_hf`, has written.
        out: the run directory, which must not hold a run.
        config: settings that the run states.
        tokenizer: of the policy; the folder's own by default. Its files are copied, so that the run stands alone; a
            folder without one leaves the tokenizer to the settings of whoever loads the run.

    Raises:
        ConfigError: `out` holds a run already.
        WeightsError, TokenizerError: what is read cannot be read.
    """
    run = RunDir(Path(out).expanduser().resolve())
    if run.exists():
        raise ConfigError("a new run needs a directory without one", value=str(out), remedy="Give another --out.")
    source = Path(source).expanduser().resolve()
    policy = load_policy(f"hf:{source}", mesh=_all_devices())
    if tokenizer is None and any((source / name).is_file() for name in _VOCABULARIES):
        tokenizer = str(source)
    if tokenizer is not None:
        load_tokenizer(tokenizer)  # refuses one that no command could use
    stated = to_dict(dataclasses.replace(config, init=f"hf:{source}"))
    run = RunDir.create(run.path, stated)
    folder = None if tokenizer is None else tokenizer_folder(tokenizer)
    if folder is not None:
        run.tokenizer.mkdir()
        _copy_tokenizer(folder, run.tokenizer)
        tokenizer = str(run.tokenizer)
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(policy.model, tokenizer, {}, phase=REINFORCE, update=0)
        checkpoints.save_params(0, policy.params, meta)
    return run


def _copy_tokenizer(source: Path, out: Path) -> None:
    if source.resolve() == out.resolve():
        return
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, out / name)


def _all_devices() -> jax.sharding.Mesh:
    """A mesh that splits the parameters over every device there is."""
    return make_mesh(f"fsdp:{jax.device_count()}")
