"""The runs of a comparison: which there are, that bases are shared, and that nothing is done twice."""

from __future__ import annotations

import functools
import io
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxrl_agent.command_line import read_config
from jaxrl_agent.config import build_config
from jaxrl_agent.errors import ArgumentError, ConfigError, RunError
from jaxrl_agent.interrupts import Interrupted
from jaxrl_agent.progress import Display
from jaxrl_agent.report.page import load_runs
from jaxrl_agent.run_dir import RunDir, read_json
from jaxrl_agent.sweeps import runs
from jaxrl_agent.sweeps.compare import compare
from jaxrl_agent.sweeps.runs import method_names, plan
from jaxrl_agent.testing.small import small_config, small_preset

QUIET = functools.partial(Display, quiet=True)
tiny = functools.partial(small_config, train__updates=2, task__n_test=4)


def methods(**changes):
    return {"grpo": tiny(**changes), "mix": tiny(budget__schedule="budget_mix", **changes)}


@pytest.fixture(scope="module", autouse=True)
def _preset():
    with small_preset():
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Two methods with two seeds."""
    folder = tmp_path_factory.mktemp("comparison")
    compare(methods(), [0, 1], folder, display=QUIET())
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- names and arms


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["configs/frozenlake_grpo.py", "/a/frozenlake_budgetmix.py"], ["grpo", "budgetmix"]),
        (["frozenlake_grpo.py", "frozenlake_grpo_long.py"], ["grpo", "grpo_long"]),
        (["lake_a.py", "sea_b.py"], ["lake_a", "sea_b"]),
        (["frozenlake_grpo.py"], ["grpo"]),
        (["grpo.py"], ["grpo"]),
    ],
)
def test_methods_are_named_by_what_their_files_differ_in(paths, names):
    assert method_names(paths) == names


def test_two_files_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="must differ in name"):
        method_names(["a/grpo.py", "b/grpo.py"])


def test_methods_that_start_alike_share_a_base_which_is_the_projects_own():
    names = ("budgetmix", "grpo")
    arms = plan({name: read_config(f"configs/frozenlake_{name}.py") for name in names})
    assert [(arm.name, arm.base) for arm in arms] == [("base", None), ("budgetmix", "base"), ("grpo", "base")]
    assert [arm.mixes_budgets for arm in arms] == [False, True, False]
    assert arms[0].config == read_config("configs/frozenlake_base.py")


def test_a_method_without_updates_is_its_base():
    given = {name: read_config(f"configs/frozenlake_{name}.py") for name in ("grpo", "base")}
    assert [arm.name for arm in plan(given)] == ["base", "grpo"]


def test_methods_that_start_differently_have_bases_of_their_own():
    arms = plan({"a": tiny(), "b": tiny(warm_start__random_move=0.2), "c": tiny(optimizer__learning_rate=1e-3)})
    assert [(arm.name, arm.base) for arm in arms] == [
        ("base_of_a", None),
        ("base_of_b", None),
        ("a", "base_of_a"),
        ("b", "base_of_b"),
        ("c", "base_of_a"),
    ]


def test_given_weights_are_a_base_whatever_the_warm_start_says(tmp_path):
    init = f"hf:{tmp_path}"
    (base, *_) = plan({"a": tiny(init=init), "b": tiny(init=init, warm_start__updates=9)})
    assert (base.name, base.config.init) == ("base", init)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"a": {}, "b": {"task__lake__map_seed": 1}},
            r"same config.task.lake.map_seed.*--set=task.lake.map_seed:VALUE",
        ),
        ({"a": {}, "b": {"evaluation__samples": 2}}, r"same config.evaluation.samples; got \{'a': 4, 'b': 2\}"),
        ({"a": {"seed": 3}}, "config.seed of a must be 0"),
        ({"base": {}}, "must not have the name of a base"),
        ({"a": {"algorithm__name": "gropo"}}, "Did you mean 'grpo'"),
    ],
)
def test_methods_that_cannot_be_compared_are_refused_before_anything_runs(given, message):
    with pytest.raises(ConfigError, match=message):
        plan({name: tiny(**changes) for name, changes in given.items()})


def test_seeds_are_given_once_each(tmp_path):
    with pytest.raises(ArgumentError, match="each once"):
        compare(methods(), [0, 0], tmp_path / "out")


# ---- the runs


def test_every_method_starts_from_the_base_of_its_seed(out):
    for seed in (0, 1):
        for name in ("grpo", "mix"):
            config = build_config(RunDir.open(out / f"seed{seed}" / name).config())
            assert (config.seed, config.init) == (seed, f"run:{out}/seed{seed}/base")
            assert RunDir.open(out / f"seed{seed}" / name).warm_start() == []
        base = RunDir.open(out / f"seed{seed}" / "base")
        assert [row["update"] for row in base.warm_start()] == [2, 4]
        assert base.metrics() == []


def test_seeds_differ_in_training_and_in_the_sampling_of_evaluations(out):
    first, second = (RunDir.open(out / f"seed{seed}" / "grpo") for seed in (0, 1))
    assert first.metrics()[0]["entropy"] != second.metrics()[0]["entropy"]
    for seed, run in enumerate((first, second)):
        assert run.evaluations()["test"]["sampling"]["seed"] == seed


def test_the_table_holds_the_means_of_the_evaluations(out):
    found = read_json(out / "compare.json")
    assert (found["seeds"][:2], found["budgets"], found["n_tasks"]) == ([0, 1], [1, 2, 3, 4], 4)
    for name in ("base", "grpo", "mix"):
        runs_of = [RunDir.open(out / f"seed{seed}" / name) for seed in found["seeds"]]
        evaluations = [run.evaluations()["test"] for run in runs_of]
        for row in (row for row in found["table"] if row["method"] == name):
            values = [
                next(cell["value"] for cell in e["grid"] if (cell["K"], cell["T"]) == (row["K"], row["T"]))
                for e in evaluations
            ]
            assert row["per_seed"] == pytest.approx(values)
            assert row["mean"] == pytest.approx(np.mean(values))
        headroom = [row for row in found["headroom"] if row["method"] == name]
        expected = np.mean([[row["headroom"] for row in e["headroom"]["by_T"]] for e in evaluations], axis=0)
        assert [row["mean"] for row in headroom] == pytest.approx(expected.tolist())


def test_the_reports_of_a_seed_can_be_made_from_its_runs(out):
    loaded = load_runs([f"{name}={out}/seed0/{name}" for name in ("base", "grpo", "mix")])
    assert [run.name for run in loaded] == ["base", "grpo", "mix"]


def test_the_same_command_again_changes_no_run_and_another_seed_adds_its_own(out):
    before = files(out)
    compare(dict(reversed(methods().items())), [0, 1, 2], out, display=QUIET())
    after = files(out)
    written = {path.relative_to(out).parts[0] for path in after if after[path] != before.get(path)}
    assert written == {"compare.json", "table.csv", "table.md", "seed2"}
    assert read_json(out / "compare.json")["seeds"] == [0, 1, 2]


def test_other_evaluation_settings_evaluate_again_and_train_nothing(out, monkeypatch):
    asked = []

    def evaluate(config, **_):
        asked.append((config.init, config.evaluation.samples))
        raise ValueError("the device is gone")

    monkeypatch.setattr(runs, "evaluate", evaluate)
    before = files(out)
    with pytest.raises(ValueError, match="device is gone") as caught:
        compare(methods(evaluation__samples=2), [0], out, display=QUIET())
    assert asked == [(f"run:{out}/seed0/base", 2)]
    assert caught.value.__notes__ == [f"This was base with seed 0 ({out}/seed0/base)."]
    assert files(out) == before


def test_a_run_that_fails_is_named(out):
    expected = rf"grpo with seed 1 \({out}/seed1/grpo\): a run is.*got 'optimizer.learning_rate=1.0 for 0.003'"
    changed = {"mix": methods()["mix"], "grpo": tiny(optimizer__learning_rate=1.0)}
    with pytest.raises(RunError, match=expected):
        compare(changed, [1], out, display=QUIET())


def test_a_comparison_that_is_interrupted_says_so_and_goes_on(tmp_path):
    given, stream = {"grpo": methods()["grpo"]}, io.StringIO()
    with pytest.raises(Interrupted, match=r"SIGINT after 1 of 2 updates.*same command again"):
        compare(given, [0], tmp_path, display=Stop(stream))
    assert "seed 0, base" in stream.getvalue()
    compare(given, [0], tmp_path, display=QUIET())
    assert [row["update"] for row in RunDir.open(tmp_path / "seed0" / "grpo").metrics()] == [1, 2]


class Stop(Display):
    """A display that presses Ctrl-C when it is told of the first update of reinforcement learning."""

    def update(self, done, values):
        super().update(done, values)
        if (self._phase, done) == ("training", 1):
            signal.raise_signal(signal.SIGINT)


def test_given_weights_are_evaluated_and_not_trained(out, tmp_path):
    init = f"run:{out}/seed0/base"
    comparison = compare({"grpo": tiny(init=init)}, [0], tmp_path, display=QUIET(), tensorboard=False)
    base = RunDir.open(tmp_path / "seed0" / "base")
    assert not base.checkpoints.exists()
    ours, theirs = (run.evaluations()["test"]["runs"] for run in (base, RunDir.open(out / "seed0" / "base")))
    assert ours == theirs
    assert set(comparison.values) == {"base", "grpo"}
    assert not list(tmp_path.rglob("*tfevents*"))
    assert list(out.rglob("*tfevents*"))
