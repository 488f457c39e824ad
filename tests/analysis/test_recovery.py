"""Success after an injected error and without it, with numbers worked by hand."""

from __future__ import annotations

import pytest

from jaxrl_agent.analysis.recovery import measured, recovery
from jaxrl_agent.testing.fake_probes import fake_probe

PROBE = {
    "states": {"error": {"task": [0, 0, 1], "turns_left": [2, 6, 6]}},
    "recovery": {
        "base_success": [0.0, 0.5, 0.5],
        "policy_success": [0.5, 1.0, 0.5],
        "base_without_error": [0.5, 0.5, 1.0],
        "policy_without_error": [0.5, 1.0, 1.0],
        "optimal_before": [1.0, 1.0, 1.0],
        "optimal_after": [0.5, None, 0.75],
    },
}


def test_recovery_is_worked_by_hand():
    found = recovery(PROBE)
    assert (found["base"], found["policy"], found["difference"]) == (0.375, 0.625, 0.25)
    assert (found["n_states"], found["n_tasks"]) == (3, 2)
    assert (found["ci_low"], found["ci_high"]) == (0.0, 0.5)
    assert (found["base_ci"], found["policy_ci"]) == ([0.25, 0.5], [0.5, 0.75])
    without = found["without_error"]
    assert (without["base"], without["policy"], without["difference"]) == (0.75, 0.875, 0.125)


def test_the_extra_gain_is_paired_by_state():
    found = recovery(PROBE)["extra_gain"]
    assert (found["value"], found["n"], found["n_tasks"]) == (0.125, 3, 2)  # states: +0.5 - 0, 0.5 - 0.5, 0 - 0
    assert measured(PROBE)["extra_gain"].values.tolist() == [0.25, 0.0]


def test_an_error_costs_what_success_falls_by():
    cost = recovery(PROBE)["error_cost"]
    assert (cost["base"]["value"], cost["policy"]["value"]) == (0.375, 0.25)
    assert (cost["optimal"]["value"], cost["optimal"]["n"]) == (0.375, 2), "the state of unknown value is left out"


def test_recovery_by_turns_left():
    few, many = recovery(PROBE)["by_turns_left"]
    assert (few["low"], few["high"], few["difference"], few["n_states"], few["p_holm"]) == (1, 2, 0.5, 1, None)
    assert (many["low"], many["high"], many["difference"], many["n_tasks"]) == (5, 8, 0.25, 2)
    assert 0 < many["p_holm"] <= 1


def test_parts_that_were_not_measured_are_none():
    bare = {**PROBE, "recovery": {name: PROBE["recovery"][name] for name in ("base_success", "policy_success")}}
    found = recovery(bare)
    assert found["difference"] == 0.25
    assert found["without_error"] is found["extra_gain"] is found["error_cost"]["optimal"] is None
    assert recovery({**PROBE, "recovery": None}) is None
    assert recovery({**PROBE, "states": {"error": {"task": [], "turns_left": []}}}) is None
    assert set(measured({**PROBE, "recovery": None}).values()) == {None}


def test_identical_policies_recover_alike():
    found = recovery(fake_probe(identical=True))
    assert (found["difference"], found["ci_low"], found["ci_high"]) == (0.0, 0.0, 0.0)
    assert found["base"] == found["policy"]
    assert found["extra_gain"]["value"] == pytest.approx(0.0, abs=0)
