"""Several processes as one program: joining them, one writer, and arrays that every process can read."""

from __future__ import annotations

import os
import pickle
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_agent.errors import ConfigError

_PLACE = ("num_processes", "process_id")
_SMALLEST_PARCEL = 4096  # bytes that processes exchange at one time


def join_processes() -> None:
    """Join the processes of a pod into one program; call it before anything else touches a device.

    TPU pods and Slurm jobs are recognised by themselves; elsewhere set JAX_COORDINATOR_ADDRESS (host:port),
    JAX_NUM_PROCESSES and JAX_PROCESS_ID for each process.

    Raises:
        ConfigError: a variable is missing or is no number, or the cluster is not recognised.
    """
    try:
        given = {name: int(os.environ[f"JAX_{name.upper()}"]) for name in _PLACE if f"JAX_{name.upper()}" in os.environ}
        jax.distributed.initialize(os.environ.get("JAX_COORDINATOR_ADDRESS"), **given)
    except ValueError as error:
        raise ConfigError(
            f"the processes of a pod must find one another ({error})",
            remedy="Set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave --distributed out.",
        ) from error


def is_writer() -> bool:
    """Whether this process writes files and speaks to the user: exactly one does."""
    return jax.process_index() == 0


def from_writer(value: int) -> int:
    """The writer's value on every process; a barrier too, so that what the writer did before is done."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def to_host(tree: Any) -> Any:
    """Numpy copies of whole arrays on every process, wherever their pieces lie."""
    if jax.process_count() == 1:
        return jax.device_get(tree)

    def gather(leaf):
        if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Put arrays that every process holds whole onto every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def exchange(items: list[Any]) -> list[Any]:
    """The picklable items of all processes, in order of the processes; every process must call it at the same place.

    Data travel between the processes of one job alone, which trust one another.
    """
    if jax.process_count() == 1:
        return items
    mine = np.frombuffer(pickle.dumps(items), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(mine))).tolist()
    size = max(_SMALLEST_PARCEL, 1 << (max(lengths) - 1).bit_length())  # few sizes: each one is compiled
    padded = np.zeros(size, np.uint8)
    padded[: len(mine)] = mine
    everyone = multihost_utils.process_allgather(padded)
    parts = [pickle.loads(row[:length].tobytes()) for row, length in zip(everyone, lengths, strict=True)]
    return [item for part in parts for item in part]
