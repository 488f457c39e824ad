"""The benchmark of one program against separate runs: it measures both sides, and says so when one fails."""

from __future__ import annotations

import pytest

from jaxrl_agent.benchmark.train_sweep import run, to_text
from jaxrl_agent.errors import RunError

SMALL = ("task.t_max:4", "rollout.prompts_per_update:2", "warm_start.optimizer.warmup:1")


def test_a_command_that_fails_is_told():
    with pytest.raises(RunError, match=r"config.task.t_max must be at least 1"):
        run(seeds=1, settings=["task.t_max:0"])


def test_rows_are_written_one_a_line():
    assert to_text([{"what": "a", "seconds": 1.5}, {"what": "b", "total_ratio": 2.25}]) == (
        "a: seconds 1.5\nb: total_ratio 2.25"
    )


@pytest.mark.slow
def test_both_sides_are_measured():
    separate, one, ratios = run(seeds=2, updates=10, warm_updates=2, maps=["lax_map"], settings=SMALL)
    assert (separate["what"], one["what"]) == ("2 separate runs", "2 seeds by lax_map")
    assert ratios["total_ratio"] == pytest.approx(separate["seconds"] / one["seconds"])
    assert ratios["update_ratio"] == pytest.approx(separate["update_seconds"] / one["update_seconds"])
    assert min(row["update_seconds"] for row in (separate, one)) > 0
