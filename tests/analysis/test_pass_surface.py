"""Pass@(K,T) of arms over seeds, on evaluations made up for the purpose."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.analysis.pass_surface import Comparison, analyse
from jaxrl_agent.errors import RunError
from jaxrl_agent.testing.fake_evaluations import ARMS, BASE, GRPO, T_MAX, TASKS, fake_comparison, fake_evaluation


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return fake_comparison()


def test_means_and_differences_are_those_of_the_samples(comparison):
    found = {
        name: [fake_evaluation(shares, seed=seed) for seed in range(4)]
        for name, shares in (("base", BASE), ("grpo", GRPO))
    }
    for column, turns in enumerate((4, 8, 12, 16)):
        shares = {
            name: [np.mean(np.array(e["runs"][column]["first_success_turns"]) > 0) for e in evaluations]
            for name, evaluations in found.items()
        }
        assert comparison.values["base"][1, turns].per_seed == pytest.approx(shares["base"])
        difference = comparison.differences["grpo", "base"][1, turns]
        assert difference.per_seed == pytest.approx(np.subtract(shares["grpo"], shares["base"]))
        assert comparison.headroom["grpo"][turns].mean == pytest.approx(1 - np.mean(shares["grpo"]))


def test_one_run_with_a_hidden_budget_serves_every_turn():
    first = np.tile([3, 4, 5, 0], (TASKS, 1))
    hidden = fake_evaluation(
        (0.5,),
        seed=0,
        samples=4,
        budget_visibility="hidden",
        grid=[{"K": 1, "T": turns} for turns in (4, 8, 16)],
        runs=[{"T": T_MAX, "first_success_turns": first.tolist()}],
    )
    found = analyse(ARMS[:1], [0], {"base": [hidden]})
    assert [found.values["base"][1, turns].mean for turns in (4, 8, 16)] == [0.5, 0.75, 0.75]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_hash": "other"}, r"same data_hash \(abc\); grpo with seed 0 has another; got 'other'"),
        ({"n_samples": 8}, "same n_samples"),
        ({"grid": [{"K": 1, "T": 16}]}, "same budgets"),
    ],
)
def test_evaluations_that_do_not_belong_together_are_refused_by_name(changes, message):
    found = {"base": [fake_evaluation(BASE, seed=0)], "grpo": [fake_evaluation(GRPO, seed=0, **changes)]}
    with pytest.raises(RunError, match=message):
        analyse(ARMS[:2], [0], found)
