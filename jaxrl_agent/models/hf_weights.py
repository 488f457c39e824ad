"""Read and write weights folders as Hugging Face's `save_pretrained` lays them out.

A folder holds `config.json` and safetensors files, one or several with an index. Names and layouts
differ from ours in three ways: layers are separate tensors, matrices are [outputs, inputs], and a
tied head is left out. A GGUF file is read as if it were such a folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxrl_agent.errors import WeightsError
from jaxrl_agent.models.gguf_file import is_gguf, read_gguf
from jaxrl_agent.models.gguf_weights import hf_config, hf_tensors
from jaxrl_agent.models.qwen3 import Params, Qwen3Config, init_params, param_axes
from jaxrl_agent.parallel.rules import partition_spec

_CONFIG, _SINGLE, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FLOATS = {"F64", "F32", "F16", "BF16"}
_MAX_SHARD_BYTES = 5 << 30
_COMPARED_ROWS = 4096


class _Source(NamedTuple):
    """Where one of our arrays lives in a folder."""

    names: tuple[str, ...]  # one tensor a layer for a stacked array, else a single one
    shape: tuple[int, ...]  # of each tensor there
    stacked: bool
    transposed: bool


def load_hf(path: str | os.PathLike, *, dtype: str = "float32", mesh: Mesh | None = None) -> tuple[Qwen3Config, Params]:
    """Load a weights folder, or a GGUF file.

    Args:
        path: folder with `config.json` and safetensors files of float32, float16 or bfloat16; or a `.gguf` file, which
            is dequantised (with the package `gguf`, if it is quantised).
        dtype: dtype of the parameters and compute dtype of the configuration. For 16-bit compute on
            float32 parameters load "float32" and replace the configuration's dtype.
        mesh: put every array straight into its sharding on this mesh; each process reads only the
            slices that its devices hold. Without a mesh: the default device.

    Returns:
        The configuration, and the parameters with layers stacked.

    Raises:
        WeightsError: no such folder or file, an unreadable file, or tensors that are missing, extra,
            misshapen or not floating point; the message names every one of them.
        ConfigError: another model, or one with features that are not implemented.
    """
    with _open(Path(path)) as (hf, tensors):
        config = Qwen3Config.from_hf(hf, dtype=dtype)
        shapes = _shapes(config)
        tensors = _settle_tied_head(config, tensors)
        _check_tensors(shapes, tensors, path)

        def load(key_path, leaf, axes):
            sharding = NamedSharding(mesh, partition_spec(axes, leaf.shape, mesh)) if mesh else None
            return _load_array(_source(key_path, leaf.shape), leaf.shape, tensors, jnp.dtype(dtype), sharding)

        return config, jax.tree_util.tree_map_with_path(load, shapes, param_axes(config))


def save_hf(
    path: str | os.PathLike, config: Qwen3Config, params: Params, *, max_shard_bytes: int = _MAX_SHARD_BYTES
) -> None:
    """Write a weights folder that transformers loads.

    Everything is written beside the target and renamed at the end, so that an interrupted call leaves
    no half folder. Files of other kinds in an existing target (a tokenizer) are kept. With several
    processes all must call; the first one writes.

    Args:
        path: the folder.
        config: the model's configuration.
        params: parameters, layers stacked; stored in the dtype that they have.
        max_shard_bytes: start another file beyond this size.

    Raises:
        WeightsError: parameters that do not fit the configuration, or a path that is a file.
    """
    _check_params(config, params)
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise WeightsError("weights are written to a folder", value=str(target), remedy="Give another path.")
    shards = _split_into_shards(list(_tensors_to_write(params)), max_shard_bytes)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    writes = jax.process_index() == 0
    if writes:
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process that had our number
        partial.mkdir(parents=True)
    try:
        for file, shard in shards.items():
            # Fetching is collective when an array is spread over processes: everybody takes part.
            arrays = {tensor.name: _fetch(tensor) for tensor in shard}
            if writes:
                save_file(arrays, partial / file, metadata={"format": "pt"})
                (partial / file).chmod(0o644)  # safetensors makes it readable for its owner alone
        if writes:
            _write_json_files(partial, config, shards)
            _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("save_hf")


# Names.


def _shapes(config: Qwen3Config) -> Params:
    return jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))


def _source(key_path: Sequence[Any], shape: tuple[int, ...]) -> _Source:
    *modules, leaf = (entry.key for entry in key_path)
    stacked, transposed = modules[0] == "layers", leaf == "kernel"
    suffix = "bias" if leaf == "bias" else "weight"
    if stacked:
        names = tuple(".".join(["model.layers", str(i), *modules[1:], suffix]) for i in range(shape[0]))
        shape = shape[1:]
    else:
        names = (_HEAD,) if modules[0] == "lm_head" else (f"model.{modules[0]}.{suffix}",)
    return _Source(names, shape[::-1] if transposed else shape, stacked, transposed)


# Reading.


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(
            f"a weights folder must hold {name}",
            value=str(folder),
            remedy="Give a folder that transformers' save_pretrained, or save_hf, has written.",
        ) from error
    except ValueError as error:
        raise WeightsError(f"{name} must be valid JSON", value=f"{folder / name}: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{name} must hold a JSON object", value=str(folder / name))
    return content


def _weight_files(folder: Path) -> list[str]:
    if (folder / _SINGLE).exists():
        return [_SINGLE]
    if not (folder / _INDEX).exists():
        raise WeightsError(
            f"a weights folder must hold {_SINGLE} or {_INDEX}",
            value=str(folder),
            remedy="Convert other formats with transformers: save_pretrained(..., safe_serialization=True).",
        )
    weight_map = _read_json(folder, _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{_INDEX} must hold a weight_map", value=str(folder / _INDEX))
    files = sorted(set(weight_map.values()))
    absent = [file for file in files if not (folder / file).exists()]
    if absent:
        raise WeightsError("every file that the index names must exist", value=absent, remedy=f"Complete {folder}.")
    return files


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Open a folder or a GGUF file: its `config.json`, and name -> lazy slice."""
    if is_gguf(path):
        file = read_gguf(path)
        yield hf_config(file), hf_tensors(file)
        return
    hf = _read_json(path, _CONFIG)
    with _open_tensors(path) as tensors:
        yield hf, tensors


@contextlib.contextmanager
def _open_tensors(folder: Path) -> Iterator[dict[str, Any]]:
    """Open all files, reading headers only: name -> lazy slice."""
    tensors: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for file in _weight_files(folder):
            try:
                handle = stack.enter_context(safe_open(folder / file, framework="np"))
                names = list(handle.keys())
            except (SafetensorError, OSError) as error:
                raise WeightsError(
                    "a weights file must be whole and readable",
                    value=f"{folder / file}: {error}",
                    remedy="Copy or download the file again.",
                ) from error
            repeated = sorted(tensors.keys() & set(names))
            if repeated:
                raise WeightsError("every tensor must be stored once", value=repeated)
            tensors.update((name, handle.get_slice(name)) for name in names)
        yield tensors


def _settle_tied_head(config: Qwen3Config, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the copy of a tied head, or take the embedding from it where only the copy is stored."""
    if not config.tie_word_embeddings or _HEAD not in tensors:
        return dict(tensors)
    head, embedding = tensors[_HEAD], tensors.get(_EMBEDDING)
    others = {name: tensor for name, tensor in tensors.items() if name not in (_HEAD, _EMBEDDING)}
    if embedding is None:
        return others | {_EMBEDDING: head}
    if not _same_content(head, embedding):
        raise WeightsError(
            f"with tie_word_embeddings, {_HEAD} must equal {_EMBEDDING}",
            value="different tensors",
            remedy="Set tie_word_embeddings to false in config.json if the head is meant to be its own.",
        )
    return others | {_EMBEDDING: embedding}


def _same_content(one: Any, other: Any) -> bool:
    if one.get_shape() != other.get_shape():
        return False
    rows = one.get_shape()[0]
    blocks = [slice(start, min(start + _COMPARED_ROWS, rows)) for start in range(0, rows, _COMPARED_ROWS)]
    return all(np.array_equal(one[block], other[block]) for block in blocks)


def _check_tensors(shapes: Params, tensors: Mapping[str, Any], path: str | os.PathLike) -> None:
    sources = [_source(key_path, leaf.shape) for key_path, leaf in jax.tree_util.tree_leaves_with_path(shapes)]
    needed = {name: list(source.shape) for source in sources for name in source.names}
    shared = sorted(needed.keys() & tensors.keys())
    found = {name: tensors[name].get_shape() for name in shared}
    faults = {
        "missing": sorted(needed.keys() - tensors.keys()),
        "extra": sorted(tensors.keys() - needed.keys()),
        "misshapen": [f"{n} is {found[n]}, not {needed[n]}" for n in shared if found[n] != needed[n]],
        "not floating point": [n for n in shared if tensors[n].get_dtype() not in _FLOATS],
    }
    faults = {kind: names for kind, names in faults.items() if names}
    if faults:
        raise WeightsError(
            "weights must be exactly the tensors that their configuration describes",
            value=faults,
            remedy=f"Check {path} against the model that it was made from.",
        )


def _load_array(source: _Source, shape: tuple[int, ...], tensors: Mapping[str, Any], dtype: np.dtype, sharding):
    def read(index: tuple[slice, ...]) -> np.ndarray:
        if not source.stacked:
            return _read_part(tensors[source.names[0]], index, source.transposed).astype(dtype, copy=False)
        names = source.names[index[0]]
        extents = [len(range(size)[part]) for size, part in zip(shape[1:], index[1:], strict=True)]
        part = np.empty((len(names), *extents), dtype)
        for layer, name in enumerate(names):
            part[layer] = _read_part(tensors[name], index[1:], source.transposed)
        return part

    if sharding is None:
        return jnp.asarray(read((slice(None),) * len(shape)))
    return jax.make_array_from_callback(shape, sharding, read, dtype=dtype)


def _read_part(tensor: Any, index: tuple[slice, ...], transposed: bool) -> np.ndarray:
    return tensor[index[::-1]].T if transposed else tensor[index]


# Writing.


class _Tensor(NamedTuple):
    """One tensor to write: a layer of one of our arrays, or all of it."""

    name: str
    array: jax.Array
    layer: int | None
    transposed: bool

    @property
    def nbytes(self) -> int:
        return self.array.nbytes // (1 if self.layer is None else self.array.shape[0])


def _check_params(config: Qwen3Config, params: Params) -> None:
    def described(tree):
        return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}

    needed, found = described(_shapes(config)), described(params)
    different = sorted(name for name in needed | found if needed.get(name) != found.get(name))
    if different:
        raise WeightsError(
            "parameters must have the arrays and shapes that the configuration describes",
            value=[f"{name} is {found.get(name)}, not {needed.get(name)}" for name in different],
        )


def _tensors_to_write(params: Params) -> Iterator[_Tensor]:
    for key_path, array in jax.tree_util.tree_leaves_with_path(params):
        source = _source(key_path, array.shape)
        for layer, name in enumerate(source.names):
            yield _Tensor(name, array, layer if source.stacked else None, source.transposed)


def _split_into_shards(tensors: list[_Tensor], max_shard_bytes: int) -> dict[str, list[_Tensor]]:
    shards: list[list[_Tensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(other.nbytes for other in shards[-1]) + tensor.nbytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        return {_SINGLE: shards[0]}
    return {f"model-{i:05}-of-{len(shards):05}.safetensors": shard for i, shard in enumerate(shards, 1)}


def _fetch(tensor: _Tensor) -> np.ndarray:
    array = tensor.array if tensor.layer is None else tensor.array[tensor.layer]
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    host = np.asarray(array)
    return np.ascontiguousarray(host.T if tensor.transposed else host)


def _write_json_files(folder: Path, config: Qwen3Config, shards: Mapping[str, list[_Tensor]]) -> None:
    tensors = [tensor for shard in shards.values() for tensor in shard]
    hf = config.to_hf() | {"dtype": str(jnp.dtype(tensors[0].array.dtype))}
    _write_json(folder / _CONFIG, hf)
    if len(shards) > 1:
        weight_map = {tensor.name: file for file, shard in shards.items() for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors)
        _write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _publish(partial: Path, target: Path) -> None:
    """Put the finished folder in place of the target, whose other files move over."""
    if not target.exists():
        partial.rename(target)
        return
    replaced = target.with_name(f".{target.name}.replaced-{os.getpid()}")
    target.rename(replaced)
    partial.rename(target)
    for file in replaced.iterdir():
        if not _is_weights_file(file.name) and not (target / file.name).exists():
            file.rename(target / file.name)
    shutil.rmtree(replaced)


def _is_weights_file(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json"))
