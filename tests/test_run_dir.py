"""Run directories: whole files or none, plain JSON, and lines that a crash may cut."""

from __future__ import annotations

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.errors import RunError
from jaxrl_agent.run_dir import AnalysisDir, RunDir, collect_versions, read_json, to_jsonable, write_json
from jaxrl_agent.types import StopReason, Trajectory, Turn


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run", {"seed": 3})


def a_trajectory(**changes):
    turn = Turn(
        text="down .",
        observation="a1 -",
        tokens=[9, 7],
        logprobs=[-0.5, -0.1],
        reward=1.0,
        parsed_action="down",
        state_key="m/0",
    )
    return Trajectory(
        **{
            "instance_id": "m",
            "group_id": 0,
            "budget": 4,
            "t_max": 16,
            "success": True,
            "return_": 1.0,
            "stop_reason": StopReason.SUCCESS,
            "turns": [turn],
            "prompt_tokens": [1, 4],
            "policy_version": 2,
            **changes,
        }
    )


# ---- JSON


def test_arrays_scalars_enums_and_dataclasses_become_plain_values():
    @dataclasses.dataclass
    class Row:
        return_: float
        stop: StopReason

    values = {
        "numpy": np.float32(0.5),
        "integer": np.int64(3),
        "flag": np.bool_(True),
        "jax": jnp.arange(2),
        "nested": [(1, None), {"a": Row(1.0, StopReason.BUDGET)}],
        4: "key",
    }
    assert to_jsonable(values) == {
        "numpy": 0.5,
        "integer": 3,
        "flag": True,
        "jax": [0, 1],
        "nested": [[1, None], {"a": {"return": 1.0, "stop": "budget"}}],
        "4": "key",
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf"), np.array([np.nan])])
def test_what_json_cannot_hold_becomes_null(value):
    assert json.loads(json.dumps(to_jsonable([value]), allow_nan=False)) in ([None], [[None]])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    endless: dict = {}
    endless["self"] = endless
    with pytest.raises(RecursionError):
        write_json(path, endless)
    assert read_json(path) == {"a": 1}
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


def test_a_missing_and_a_malformed_file_are_told_apart(tmp_path):
    with pytest.raises(RunError, match=r"must exist.*x.json"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(RunError, match=r"must hold JSON.*x.json"):
        read_json(tmp_path / "x.json")


# ---- runs


def test_a_new_run_stores_config_and_versions(run):
    assert run.exists()
    assert run.config() == {"seed": 3}
    assert run.versions()["packages"]["jax"]
    assert RunDir.open(run.path).path == run.path


def test_versions_name_python_platform_packages_and_the_revision():
    versions = collect_versions()
    assert {"packages", "python", "platform", "git_revision", "git_dirty"} == versions.keys()
    assert versions["packages"]["numpy"] == np.__version__


def test_versions_outside_a_repository_have_no_revision(monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert collect_versions()["git_revision"] is None


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"must hold config.json"):
        RunDir.open(tmp_path)


def test_a_fresh_run_has_no_lines_no_trajectories_and_no_evaluations(run):
    assert run.metrics() == run.warm_start() == run.trajectory_files() == []
    assert run.evaluations() == {}


# ---- lines


def test_lines_come_back_in_order(run):
    for update in (1, 2, 3):
        run.append_metrics({"update": update, "loss": np.float32(update)})
    run.append_metrics({"update": 20}, file="warm_start.jsonl")
    assert [row["update"] for row in run.metrics()] == [1, 2, 3]
    assert run.warm_start() == [{"update": 20}]


def test_lines_after_the_restored_update_are_cut(run):
    for update in (1, 2, 3):
        run.append_metrics({"update": update})
    run.cut_metrics(2)
    run.append_metrics({"update": 3, "again": True})
    assert run.metrics() == [{"update": 1}, {"update": 2}, {"update": 3, "again": True}]
    assert sorted(path.name for path in run.path.iterdir()) == ["config.json", "metrics.jsonl", "versions.json"]


def test_cutting_a_file_that_is_not_there_makes_none(run):
    run.cut_metrics(5)
    assert not (run.path / "metrics.jsonl").exists()


def test_a_last_line_cut_by_a_crash_is_left_out_and_overwritten(run):
    run.append_metrics({"update": 1})
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"update": 2, "lo')
    assert run.metrics() == [{"update": 1}]
    run.cut_metrics(1)
    run.append_metrics({"update": 2})
    assert run.metrics() == [{"update": 1}, {"update": 2}]


def test_a_bad_line_in_the_middle_is_an_error_that_names_it(run):
    (run.path / "metrics.jsonl").write_text('{"update": 1}\nnonsense\n{"update": 3}\n')
    with pytest.raises(RunError, match=r"line 2 must be JSON.*metrics.jsonl"):
        run.metrics()


# ---- trajectories and evaluations


def test_trajectories_have_the_keys_that_readers_rely_on(run):
    path = run.write_trajectories("train_000001", [a_trajectory(), a_trajectory(success=False)])
    assert path == run.path / "trajectories" / "train_000001.jsonl"
    rows = list(run.trajectories("train_000001"))
    assert [row["success"] for row in rows] == [True, False]
    expected = "instance_id group_id budget t_max success return stop_reason turns prompt_tokens policy_version"
    assert set(expected.split()) <= rows[0].keys()
    turn = "text observation tokens logprobs reward parsed_action state_key"
    assert set(turn.split()) <= rows[0]["turns"][0].keys()
    assert rows[0]["stop_reason"] == "success"


def test_trajectory_files_are_listed_by_name_and_leave_no_temporary_file(run):
    for name in ("train_000002", "train_000001"):
        run.write_trajectories(name, [a_trajectory()])
    assert [path.stem for path in run.trajectory_files()] == ["train_000001", "train_000002"]
    assert len(list((run.path / "trajectories").iterdir())) == 2


def test_evaluations_are_found_by_stem(run):
    write_json(run.path / "evaluations" / "test.json", {"n_tasks": 1})
    assert run.evaluations() == {"test": {"n_tasks": 1}}


def test_an_analysis_has_its_files_in_one_folder(tmp_path):
    folder = AnalysisDir.at(tmp_path / "x" / ".." / "out")
    assert folder.path == tmp_path / "out"
    assert folder.probe("grpo") == tmp_path / "out" / "probes" / "grpo.json"
    assert (folder.result.name, folder.verdicts.name) == ("analysis.json", "verdicts.md")
