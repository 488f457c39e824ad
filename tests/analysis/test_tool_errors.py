"""Corrections of failed tool calls, with numbers worked by hand."""

from __future__ import annotations

import pytest

from jaxrl_agent.analysis.tool_errors import corrections_by_task, tool_error_correction
from jaxrl_agent.testing.fake_probes import fake_probe

OK, ERR = True, False
# 5 errors, 3 of them with a next turn, 2 corrected there.
CALLS = [[OK, ERR, OK, ERR], [ERR, ERR, OK], [OK, OK], [ERR]]


def probe_of(policy, base, tasks=(0, 1, 2, 3)):
    sides = {"policy": policy, "base": base}
    return {"episodes": {side: {"task": list(tasks), "call_ok": calls} for side, calls in sides.items()}}


def test_rates_are_pooled_over_error_turns():
    found = tool_error_correction(probe_of(CALLS, CALLS))
    for side in ("policy", "base"):
        rates = found[side]
        assert (rates["error_turns"], rates["followed"], rates["corrected"]) == (5, 3, 2)
        assert rates["rate"] == pytest.approx(0.66666667)
        assert rates["rate_of_all"] == pytest.approx(0.4)
        # Tasks with a next turn after an error: one corrected 1 of 1, one 1 of 2.
        assert (rates["ci_low"], rates["ci_high"]) == (0.5, 1.0)
    assert (found["difference"], found["ci_low"], found["ci_high"]) == (0.0, 0.0, 0.0)
    assert found["n_tasks"] == 2


def test_the_difference_is_paired_by_task():
    never = [[ERR, ERR], [ERR, None], [OK], [OK]]
    found = tool_error_correction(probe_of(CALLS, never))
    assert found["base"]["rate"] == 0.0
    assert found["difference"] == pytest.approx(2 / 3)
    assert (found["ci_low"], found["ci_high"]) == (0.5, 1.0)


def test_corrections_are_counted_by_task():
    assert corrections_by_task([5, 5, 9, 9], CALLS, [5, 9]).tolist() == [[2, 3], [0, 0]]


def test_a_policy_without_errors_has_no_rate():
    found = tool_error_correction(probe_of([[OK], [OK], [OK], [ERR]], CALLS))
    rates = found["policy"]
    assert (rates["rate"], rates["rate_of_all"], rates["error_turns"], rates["ci_low"]) == (None, 0.0, 1, None)
    assert found["difference"] is found["ci_low"] is found["ci_high"] is None


def test_a_task_without_tools_has_no_part():
    assert tool_error_correction(fake_probe()) is None
    assert tool_error_correction({"episodes": None}) is None
    assert tool_error_correction(fake_probe(tools=True))["difference"] > 0
