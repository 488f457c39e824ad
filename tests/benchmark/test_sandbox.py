"""The suite of sandboxes: both sides run every test of a right candidate, and notice one that is wrong."""

from __future__ import annotations

import platform

import pytest

from jaxrl_agent.benchmark import sandbox
from jaxrl_agent.errors import SandboxError

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="sandboxes need Linux")


@pytest.mark.parametrize("name", ["pool/2", "fresh/2"])
def test_right_candidates_pass_and_wrong_ones_are_noticed(monkeypatch, name):
    build = {"pool_candidates": 2, "fresh_candidates": 1}
    contestant = sandbox.contestants((2,), **build)[name]
    assert contestant.units == (2 if name == "pool/2" else 1)
    contestant.run()
    monkeypatch.setattr(sandbox, "CANDIDATE", sandbox.CANDIDATE.replace("print(cost)", "print(cost + (n == 12))"))
    with pytest.raises(SandboxError, match="must pass"):
        sandbox.contestants((2,), **build)[name].run()
