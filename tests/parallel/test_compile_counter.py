"""Counting compiled programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_agent.parallel.compile_counter import compiled_programs


def test_a_new_shape_is_counted_and_a_known_one_is_not():
    double = jax.jit(lambda x: 2 * x + 1)
    small, large = jnp.ones(3), jnp.ones(4)
    before = compiled_programs()
    double(small)
    assert compiled_programs() == before + 1
    double(small)
    assert compiled_programs() == before + 1
    double(large)
    assert compiled_programs() == before + 2


def test_a_program_from_the_cache_on_disk_is_counted_too():
    def triple(x):
        return 3 * x - 1

    x = jnp.ones(5)
    before = compiled_programs()
    jax.jit(triple)(x)
    jax.clear_caches()
    jax.jit(triple)(x)
    assert compiled_programs() == before + 2
