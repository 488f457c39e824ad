"""Timing in turns: who runs when, and how rounds are summarised."""

from __future__ import annotations

import pytest

from jaxrl_agent.benchmark import timing
from jaxrl_agent.benchmark.timing import Contestant, Spread, ratio, spread, take_turns
from jaxrl_agent.errors import ArgumentError


def test_everything_warms_up_and_then_runs_in_turn():
    calls = []
    names = ("a", "b")
    take_turns({name: Contestant(lambda name=name: calls.append(name), 1) for name in names}, rounds=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]


def test_rates_are_units_by_seconds_of_wall_and_cpu(monkeypatch):
    clock = {"wall": 0.0, "cpu": 0.0}

    def work(seconds):
        clock["wall"] += 2 * seconds
        clock["cpu"] += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(timing.time, "process_time", lambda: clock["cpu"])
    timed = take_turns(
        {"slow": Contestant(lambda: work(4.0), 100), "fast": Contestant(lambda: work(0.5), 100)}, rounds=3
    )
    assert timed["slow"].per_s == [12.5] * 3
    assert timed["fast"].per_cpu_s == [200.0] * 3
    assert ratio(timed["fast"].per_s, timed["slow"].per_s).median == 8.0


def test_work_that_counts_its_own_units_is_credited_with_what_it_returns(monkeypatch):
    clock, counts = {"now": 0.0}, iter([1, 30, 10])

    def work():
        clock["now"] += 2.0
        return next(counts)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock["now"])
    assert take_turns({"counting": Contestant(work)}, rounds=2)["counting"].per_s == [15.0, 5.0]


def test_a_ratio_holds_each_round_against_the_same_round():
    held = ratio([2.0, 20.0, 9.0], [1.0, 10.0, 3.0])
    assert (held.median, held.low, held.high) == (2.0, 2.0, 3.0)
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_the_interval_of_a_ratio_is_narrower_than_its_extremes_and_holds_its_geometric_mean():
    held = ratio([4.0, 4.1, 3.9, 4.0, 1.0, 16.0, 4.0], [1.0] * 7)
    assert held.low == 1.0 < held.ci_low < 4.0 < held.ci_high < held.high == 16.0
    steady = ratio([3.0, 6.0], [1.0, 2.0])
    assert (steady.ci_low, steady.ci_high) == pytest.approx((3.0, 3.0))


def test_no_round_is_refused():
    with pytest.raises(ArgumentError, match="rounds"):
        take_turns({}, rounds=0)
