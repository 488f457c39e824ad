"""Suites by name: lines with ratios and facts, peers that are missing, the command."""

from __future__ import annotations

import json
import time

import pytest

from jaxrl_agent.benchmark import suites
from jaxrl_agent.benchmark.suites import Suite, append, run_suites, to_text
from jaxrl_agent.benchmark.timing import Contestant
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.testing.commands import assert_one_line_error


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def build(*, peers: bool = False) -> dict[str, Contestant]:
    built = {"ours/8": Contestant(lambda: busy(0.002), 40), "yard/8": Contestant(lambda: busy(0.004), 20)}
    if peers:
        built |= {"peer/1": Contestant(lambda: busy(0.02), 10), "peer/2": Contestant(lambda: busy(0.004), 10)}
    return built


@pytest.fixture(autouse=True)
def small_suites(monkeypatch):
    known = {
        "here": Suite(build, "things", yardsticks=("yard", "peer"), peers=("numpy",)),
        "away": Suite(build, "things", yardsticks=("yard", "peer"), peers=("no_such_package",)),
    }
    monkeypatch.setattr(suites, "SUITES", known)


def test_each_contestant_gets_a_line_with_its_ratio_to_the_best_of_each_yardstick():
    lines = {(line["name"], line["size"]): line for line in run_suites(["here"], peers=True, rounds=3)}
    assert set(lines) == {("ours", 8), ("yard", 8), ("peer", 1), ("peer", 2)}
    ours = lines["ours", 8]
    assert ours["ratio_to"]["yard"]["median"] == pytest.approx(4, rel=0.3)
    assert ours["ratio_to"]["peer"]["median"] == pytest.approx(8, rel=0.3)  # against size 2, the better one
    assert set(lines["yard", 8]["ratio_to"]) == {"peer"}
    assert ours["per_cpu_s"]["low"] <= ours["per_cpu_s"]["median"] <= ours["per_cpu_s"]["high"]
    assert ours["versions"]["packages"]["numpy"]
    assert (ours["platform"], ours["rounds"], ours["peers_missing"]) == ("cpu", 3, [])
    assert "x yard [" in to_text(ours)


def test_a_suite_may_compare_equal_sizes_only(monkeypatch):
    monkeypatch.setitem(suites.SUITES, "equal", Suite(build, "things", ("yard", "peer"), same_size=True))
    lines = {(line["name"], line["size"]): line for line in run_suites(["equal"], peers=True, rounds=1)}
    assert set(lines["ours", 8]["ratio_to"]) == {"yard"}


def test_a_missing_peer_is_named_and_left_out():
    lines = list(run_suites(["away"], peers=True, rounds=1))
    assert [line["name"] for line in lines] == ["ours", "yard"]
    assert lines[0]["peers_missing"] == ["no_such_package"]
    assert next(run_suites(["away"], peers=False, rounds=1))["peers_missing"] == []


def test_an_unknown_suite_lists_the_known_ones():
    with pytest.raises(ConfigError, match="here, away"):
        list(run_suites(["nowhere"], peers=False, rounds=1))


def test_lines_are_appended(tmp_path):
    for value in (1, 2):
        append(tmp_path / "new" / "b.jsonl", {"value": value})
    assert [json.loads(line)["value"] for line in (tmp_path / "new" / "b.jsonl").open()] == [1, 2]


def test_the_command_prints_and_appends_every_suite(launch, tmp_path):
    result = launch("benchmark", "--peers", "--rounds=1", f"--out={tmp_path}/b.jsonl")
    assert result.code == 0
    assert "without no_such_package, not installed" in result.out
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").open()]
    assert [line["suite"] for line in lines] == ["here"] * 4 + ["away"] * 2
    assert_one_line_error(launch("benchmark", "--suite=nowhere", "--out=never"), "here")
