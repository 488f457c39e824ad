from __future__ import annotations

import jax
import pytest


@pytest.fixture(params=["eager", "jit"])
def variant(request):
    """Run a function as it is, or compiled."""
    return jax.jit if request.param == "jit" else lambda function: function


@pytest.fixture(autouse=True)
def _no_silent_broadcasting(strict_rank_promotion):
    """Every formula in this folder spells its broadcasts out."""
