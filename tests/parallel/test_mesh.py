"""Meshes by text: axes, sizes, devices."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType

from jaxrl_agent.errors import ConfigError
from jaxrl_agent.parallel.mesh import AXES, make_mesh, parse_mesh


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("", (1, 1, 1)),
        ("data:2,fsdp:4", (2, 4, 1)),
        ("tensor:2", (1, 1, 2)),
        ("fsdp:2,data:3,tensor:1", (3, 2, 1)),
    ],
)
def test_axes_left_out_have_size_one(text, sizes):
    assert parse_mesh(text) == dict(zip(AXES, sizes, strict=True))


@pytest.mark.parametrize("text", ["model:2", "data", "data:", "data:0", "data:-1", "data:2,data:4", "data=2", "data:x"])
def test_a_text_that_is_no_mesh_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"axes data, fsdp, tensor.*Write for example data:2,fsdp:4"):
        parse_mesh(text)


def test_an_empty_text_puts_all_devices_on_data():
    mesh = make_mesh()
    assert mesh.shape == {"data": jax.device_count(), "fsdp": 1, "tensor": 1}


def test_a_mesh_has_auto_axes_in_order():
    mesh = make_mesh("tensor:2,data:2,fsdp:2")
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert mesh.devices.shape == (2, 2, 2)


def test_a_mesh_over_some_devices():
    assert make_mesh("fsdp:2", jax.devices()[:2]).size == 2


@pytest.mark.parametrize("text", ["data:3", "data:4,fsdp:4"])
def test_sizes_that_do_not_multiply_to_the_devices_are_refused(text):
    with pytest.raises(ConfigError, match=rf"multiply to the number of devices \({jax.device_count()}\)"):
        make_mesh(text)
