"""Device meshes with the axes `data`, `fsdp`, `tensor`."""

from __future__ import annotations

import math

import jax
from jax.sharding import AxisType, Mesh

from jaxrl_agent.errors import ConfigError

AXES = ("data", "fsdp", "tensor")


def parse_mesh(text: str) -> dict[str, int]:
    """Read `data:2,fsdp:4` into axis sizes; axes left out have size 1.

    Raises:
        ConfigError: unknown axis, repeated axis, or a size that is no positive integer.
    """
    sizes = dict.fromkeys(AXES, 1)
    seen: set[str] = set()
    for part in filter(None, text.split(",")):
        name, _, size = part.partition(":")
        if name not in AXES or name in seen or not size.isdigit() or int(size) < 1:
            raise ConfigError(
                "a mesh is a list of AXIS:SIZE with axes data, fsdp, tensor, each at most once",
                value=text,
                remedy="Write for example data:2,fsdp:4.",
            )
        seen.add(name)
        sizes[name] = int(size)
    return sizes


def make_mesh(text: str = "", devices: list[jax.Device] | None = None) -> Mesh:
    """Build the mesh that `text` describes; an empty text puts all devices on `data`.

    Args:
        text: `AXIS:SIZE` list, for example `data:2,fsdp:4`.
        devices: devices to use; all of them by default.

    Returns:
        A mesh with Auto axes `data`, `fsdp`, `tensor`.

    Raises:
        ConfigError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = parse_mesh(text or f"data:{len(devices)}")
    if math.prod(sizes.values()) != len(devices):
        raise ConfigError(
            f"mesh sizes must multiply to the number of devices ({len(devices)})",
            value=text,
            remedy="Change --mesh, or the number of devices that the process sees.",
        )
    return jax.make_mesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)
