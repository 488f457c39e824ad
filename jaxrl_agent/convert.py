"""Policies between their two homes: the checkpoints of a run, and Hugging Face folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax

from jaxrl_agent.checkpoint import REINFORCE, Checkpoints, describe_policy, load_policy
from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.models.gguf_file import is_gguf
from jaxrl_agent.models.gguf_tokenizer import tokenizer_files
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
    files = _tokenizer_files(name)
    save_hf(out, policy.model, policy.params)
    _write(files, Path(out))
    return name


def hf_to_hf(source: str | Path, out: str | Path, *, tokenizer: str | None = None) -> str | None:
    """Write the weights of a GGUF file, or of a folder, as a float32 folder that transformers loads.

    Args:
        source: the file or the folder.
        out: the folder; files of other kinds in an existing one are kept.
        tokenizer: takes the place of the source's own.

    Returns:
        The name of the tokenizer whose files are in the folder; None if the source has none.

    Raises:
        WeightsError, ConfigError, TokenizerError: what is read cannot be read, or `out` is a file.
    """
    source = Path(source).expanduser().resolve()
    policy = load_policy(f"hf:{source}", mesh=_all_devices())
    tokenizer = tokenizer or _own_tokenizer(source)
    files = {} if tokenizer is None else _tokenizer_files(tokenizer)
    save_hf(out, policy.model, policy.params)
    _write(files, Path(out))
    return tokenizer


def hf_to_run(source: str | Path, out: str | Path, *, config: Config, tokenizer: str | None = None) -> RunDir:
    """Make a run directory whose only checkpoint holds the weights of a folder, for every command that takes run:DIR.

    Args:
        source: folder that transformers' save_pretrained, or `save_hf`, has written; or a GGUF file.
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
    tokenizer = tokenizer or _own_tokenizer(source)
    files = {}
    if tokenizer is not None:
        load_tokenizer(tokenizer)  # refuses one that no command could use
        files = _tokenizer_files(tokenizer)
    run = RunDir.create(run.path, to_dict(dataclasses.replace(config, init=f"hf:{source}")))
    if files:
        run.tokenizer.mkdir()
        _write(files, run.tokenizer)
        tokenizer = str(run.tokenizer)
    with Checkpoints(run.checkpoints) as checkpoints:
        meta = describe_policy(policy.model, tokenizer, {}, phase=REINFORCE, update=0)
        checkpoints.save_params(0, policy.params, meta)
    return run


def _own_tokenizer(source: Path) -> str | None:
    """Name of the tokenizer that lies with the weights."""
    return str(source) if is_gguf(source) or any((source / name).is_file() for name in _VOCABULARIES) else None


def _tokenizer_files(name: str) -> dict[str, bytes]:
    """Contents of a tokenizer's files; none of an embedded one."""
    if is_gguf(name):
        contents = tokenizer_files(name)
        return {file: json.dumps(content, ensure_ascii=False, indent=1).encode() for file, content in contents.items()}
    folder = tokenizer_folder(name)
    present = () if folder is None else (folder / file for file in TOKENIZER_FILES if (folder / file).is_file())
    return {file.name: file.read_bytes() for file in present}


def _write(files: dict[str, bytes], out: Path) -> None:
    for name, content in files.items():
        (out / name).write_bytes(content)


def _all_devices() -> jax.sharding.Mesh:
    """A mesh that splits the parameters over every device there is."""
    return make_mesh(f"fsdp:{jax.device_count()}")
