"""An analysis folder from probes and runs to analysis.json and verdicts.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jaxrl_agent.analysis.folder import analyse_folder, judge_seeds
from jaxrl_agent.errors import ArgumentError, RunError
from jaxrl_agent.run_dir import AnalysisDir, read_json, write_json
from jaxrl_agent.testing.fake_probes import fake_probe
from jaxrl_agent.testing.fake_runs import write_fake_runs

NAMES = ("grpo", "budgetmix")


def write_probes(out: Path, runs: dict[str, Path] | None = None, *, seed: int = 0, **options) -> None:
    for name in NAMES:
        of = {"base": str(runs["base"]), "policy": str(runs[name])} if runs else None
        write_json(AnalysisDir.at(out).probe(name), fake_probe(seed, name=name, runs=of, **options))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> list[Path]:
    """Two analysed folders, probed with a seed each."""
    folder = tmp_path_factory.mktemp("analyses")
    runs = write_fake_runs(folder / "runs")
    for seed in range(2):
        write_probes(folder / str(seed), runs, seed=seed)
        analyse_folder(folder / str(seed), NAMES)
    return [folder / "0", folder / "1"]


def test_the_first_policy_stands_at_the_top_and_all_in_pairs(seeds):
    found = read_json(AnalysisDir.at(seeds[0]).result)
    assert list(found["pairs"]) == list(NAMES)
    for part in ("step_quality", "recovery", "tool_error_correction", "likelihood", "dynamics"):
        assert found[part] == found["pairs"]["grpo"][part]
    assert (found["base"], found["task"], found["n_tasks"], found["budget"]) == ("base", "frozenlake", 12, 16)
    assert found["policies"]["budgetmix"] == {"mixes_budgets": True, "process_rewards": False, "method": "grpo"}
    assert len(found["dynamics"]["trajectory_reward"]) == 60
    public = {"win", "tie", "loss", "wins_plus_half_ties", "mean_difference", "ci_low", "ci_high", "n_states"}
    assert public <= found["step_quality"]["ordinary"].keys()
    assert {"base", "policy", "difference", "ci_low", "ci_high", "n_states"} <= found["recovery"].keys()
    assert {"policy_success", "base_success", "policy_all", "base_all", "by_turn"} <= found["likelihood"]["llr"].keys()


def test_what_is_returned_is_what_was_written(tmp_path):
    write_probes(tmp_path)
    found = analyse_folder(tmp_path, NAMES)
    assert found == read_json(AnalysisDir.at(tmp_path).result)
    assert json.dumps(found, allow_nan=False)


def test_pass_rows_come_from_the_runs_evaluations(seeds):
    rows = read_json(AnalysisDir.at(seeds[0]).result)["verdicts"]
    gain = next(row for row in rows if row["topic"] == "gain with turns to spare")
    assert "grpo succeeds more often than base" in gain["here"]
    assert (seeds[0] / "verdicts.md").read_text().count("\n| ") == len(rows) + 1


def test_pass_rows_come_from_the_split_that_was_probed(tmp_path):
    runs = write_fake_runs(tmp_path / "runs")
    for name in NAMES:
        found = fake_probe(0, name=name, runs={"base": str(runs["base"]), "policy": str(runs[name])})
        write_json(AnalysisDir.at(tmp_path).probe(name), {**found, "split": "validation"})
    gain = analyse_folder(tmp_path, NAMES)["verdicts"][0]
    assert gain["here"] == "not measured: no evaluations/validation.json of base"
    for run in runs.values():
        stored = run / "evaluations" / "test.json"
        write_json(stored.with_name("validation.json"), {**read_json(stored), "split": "validation"})
    gain = analyse_folder(tmp_path, NAMES)["verdicts"][0]
    assert "grpo succeeds more often than base" in gain["here"]


def test_weights_without_runs_are_analysed_without_training_and_evaluations(tmp_path):
    write_probes(tmp_path)
    found = analyse_folder(tmp_path, NAMES)
    assert found["dynamics"] is None
    gain = found["verdicts"][0]
    assert (gain["verdict"], gain["here"]) == ("undecided", "not measured: no evaluations/test.json of base")


def test_a_run_that_was_moved_counts_as_none(tmp_path):
    runs = {name: tmp_path / "gone" / name for name in ("base", *NAMES)}
    write_probes(tmp_path, runs)
    assert analyse_folder(tmp_path, NAMES)["runs"] == dict.fromkeys(("base", *NAMES))


def test_an_evaluation_that_cannot_be_compared_is_told(tmp_path):
    runs = write_fake_runs(tmp_path / "runs")
    path = runs["grpo"] / "evaluations" / "test.json"
    write_json(path, {**read_json(path), "data_hash": "other"})
    write_probes(tmp_path, runs)
    gain = analyse_folder(tmp_path, NAMES)["verdicts"][0]
    assert gain["here"].startswith("not measured: evaluations of one comparison must have the same data_hash")


def test_process_rewards_are_seen_in_the_settings_of_the_run(tmp_path):
    runs = write_fake_runs(tmp_path / "runs")
    path = runs["grpo"] / "config.json"
    config = read_json(path)
    config["algorithm"]["name"] = "process_reward"
    write_json(path, config)
    write_probes(tmp_path, runs)
    assert analyse_folder(tmp_path, NAMES)["policies"]["grpo"]["process_rewards"]


def test_probes_that_do_not_belong_together_are_refused(tmp_path):
    write_probes(tmp_path)
    path = AnalysisDir.at(tmp_path).probe("budgetmix")
    write_json(path, {**read_json(path), "data_hash": "other"})
    with pytest.raises(RunError, match=r"same data_hash \('abc'\); that of budgetmix has another"):
        analyse_folder(tmp_path, NAMES)
    shutil.copy(AnalysisDir.at(tmp_path).probe("grpo"), path)
    with pytest.raises(RunError, match="the probe of budgetmix must be its own"):
        analyse_folder(tmp_path, NAMES)


def test_missing_probes_and_names_are_refused(tmp_path):
    with pytest.raises(RunError, match="the file must exist"):
        analyse_folder(tmp_path, NAMES)
    for names in ((), ("grpo", "grpo")):
        with pytest.raises(ArgumentError, match="each once"):
            analyse_folder(tmp_path, names)


def test_several_seeds_are_judged_together(seeds):
    rows = judge_seeds(seeds)
    single = read_json(AnalysisDir.at(seeds[0]).result)["verdicts"]
    assert [row["topic"] for row in rows] == [row["topic"] for row in single]
    recovery = next(row for row in rows if row["topic"] == "recovery after an error")
    assert "over 2 seeds" in recovery["here"]
    gain = rows[0]
    assert gain["rule"] == "both intervals above 0"
    assert "one seed" not in " ".join(row["note"] for row in rows)


def test_seeds_of_other_policies_are_refused(seeds, tmp_path):
    write_probes(tmp_path)
    analyse_folder(tmp_path, NAMES[:1])
    with pytest.raises(RunError, match="must have the same policies"):
        judge_seeds([seeds[0], tmp_path])
    with pytest.raises(ArgumentError, match="analysed folders"):
        judge_seeds([])
