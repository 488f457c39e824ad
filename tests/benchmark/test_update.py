"""The suite of updates: both sides take the same steps."""

from __future__ import annotations

import pytest

from jaxrl_agent.benchmark import update


def test_both_sides_start_at_the_same_loss_and_lower_it_alike():
    pytest.importorskip("torch")
    built = update.contestants((4,), length=32, peers=True)
    assert built["update/4"].units == built["torch/4"].units == 4 * 32
    ours, theirs = ([built[name].run() for _ in range(4)] for name in ("update/4", "torch/4"))
    assert ours == pytest.approx(theirs, abs=2e-5)
    assert ours[-1] < ours[0] - 1e-4


def test_ours_is_timed_without_the_peer():
    assert set(update.contestants((2,), length=16)) == {"update/2"}
