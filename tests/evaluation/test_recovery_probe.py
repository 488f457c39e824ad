"""Which states an error is injected into."""

from __future__ import annotations

import types

import numpy as np

from jaxrl_agent.evaluation.arena import Errors, Positions
from jaxrl_agent.evaluation.recovery_probe import Injected, inject_errors, probe_recovery


def positions(keys: str, tasks: list[int], left: list[int]) -> Positions:
    """States whose starts are their own numbers."""
    return Positions(np.array(tasks), np.array(left), list(keys), {}, np.arange(len(keys)))


def injected(after: Positions, ok: list[bool], count: int):
    before = positions("abcdef"[: len(ok)], after.task_S.tolist(), (after.turns_left_S + 1).tolist())
    errors = Errors(np.array(ok), [f"error {key}" for key in before.keys], after)
    return inject_errors(types.SimpleNamespace(inject=lambda given: errors), before, count)


def test_the_first_states_that_allow_an_error_are_kept():
    after = positions("uvwx", [0, 0, 1, 1], [3, 3, 3, 3])
    found = injected(after, [False, True, True, True], 2)
    assert (found.kept_S.tolist(), found.names) == ([1, 2], ["error b", "error c"])
    assert (found.before.keys, found.after.keys) == (["b", "c"], ["v", "w"])


def test_errors_that_lead_to_the_same_state_are_probed_once():
    after = positions("uuuuu", [0, 0, 1, 0, 0], [3, 3, 3, 2, 3])
    assert injected(after, [False, True, True, True, True], 9).kept_S.tolist() == [1, 2, 3]


def test_there_may_be_no_state_that_allows_an_error():
    assert len(injected(positions("uv", [0, 0], [3, 3]), [False, False], 9).after) == 0


def test_continuations_whose_success_is_not_known_are_left_out_and_counted():
    states = positions("uv", [0, 1], [3, 3])
    success_SN = {"base": [[1.0, np.nan, 0.0, 0.0], [np.nan] * 4], "policy": [[True] * 4, [False, True, True, True]]}
    arena = types.SimpleNamespace(
        finish=lambda name, given, continuations: (np.array(success_SN[name]), name), optimum=lambda given: None
    )
    injected = Injected(states, states, ["error"] * 2, np.arange(2))
    columns, ends = probe_recovery(arena, injected, base="base", policy="policy", continuations=4)
    assert columns["base_success"] == columns["base_without_error"] == [1 / 3, None]
    assert columns["policy_success"] == [1.0, 0.75]
    assert columns["not_known"]["base_success"] == 5
    assert columns["not_known"]["policy_without_error"] == 0
    assert ends == {"base": "base", "policy": "policy"}
