"""Training sweeps: members are what separate runs would be, a sweep goes on where it stopped, and nobody else's file
is touched. The test process has eight devices, so members are shared out among them.
"""

from __future__ import annotations

import csv
import functools
import itertools
import signal

import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError, CheckpointError, ConfigError
from jaxrl_agent.interrupts import Interrupted
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import RunDir, read_json
from jaxrl_agent.sweeps.population import choose_map, member_mesh, updates_in_a_call
from jaxrl_agent.sweeps.train_sweep import sweep
from jaxrl_agent.testing.commands import assert_one_line_error
from jaxrl_agent.testing.small import small_config, small_preset
from jaxrl_agent.train import train

QUIET = functools.partial(Display, quiet=True)
RATES = {"optimizer.learning_rate": (3e-3, 1e-2)}
SETTINGS = {  # a base that sometimes succeeds, so that there is something to learn from
    "warm_start__updates": 40,
    "warm_start__batch": 16,
    "warm_start__log_every": 20,
    "warm_start__checkpoint_every": 20,
    "warm_start__optimizer__learning_rate": 1e-2,
    "algorithm__entropy_coefficient": 0.01,
    "train__updates": 3,
    "train__checkpoint_every": 1,
}
make = functools.partial(small_config, **SETTINGS)
# Equal mathematics in another order of summation, over three updates.
CLOSE = {"rtol": 2e-3, "atol": 2e-5}


@pytest.fixture(scope="module", autouse=True)
def _preset():
    with small_preset():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sweeps")


@pytest.fixture(scope="module")
def swept(folder):
    """Two seeds under two rates, one after another."""
    result = sweep(make(), RATES, [0, 1], folder / "rates.csv", how="lax_map", display=QUIET())
    return folder / "rates.csv", result


@pytest.fixture(scope="module")
def separate(folder) -> dict[tuple[int, float], RunDir]:
    """The same four by train.py: bases of the seeds, and runs from them."""
    runs = {}
    for seed in (0, 1):
        first, second = RATES["optimizer.learning_rate"]
        for rate in (first, second):
            config = make(seed=seed, optimizer__learning_rate=rate)
            runs[seed, rate] = train(config, folder / f"run{seed}_{rate}", display=QUIET(), tensorboard=False)
    return runs


def lines(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


def assert_same_metrics(path, separate):
    found = lines(path)
    assert len(found) == 12
    expected = [
        (seed, rate, update) for rate in RATES["optimizer.learning_rate"] for seed in (0, 1) for update in (1, 2, 3)
    ]
    assert [(int(r["seed"]), float(r["optimizer.learning_rate"]), int(r["update"])) for r in found] == expected
    for row, (seed, rate, update) in zip(found, expected, strict=True):
        metrics = separate[seed, rate].metrics()[update - 1]
        compared = [
            name for name in row if isinstance(metrics.get(name), (int, float)) and "sampler_trainer" not in name
        ]
        assert len(compared) > 20
        for name in compared:
            np.testing.assert_allclose(float(row[name]), metrics[name], **CLOSE, err_msg=f"{name} of {row}")


def test_members_one_after_another_are_what_separate_runs_are(swept, separate):
    assert_same_metrics(swept[0], separate)


def test_members_all_at_once_are_what_separate_runs_are(folder, separate):
    sweep(make(), RATES, [0, 1], folder / "at_once.csv", how="vmap", display=QUIET())
    assert_same_metrics(folder / "at_once.csv", separate)


def test_the_members_of_this_test_succeed_sometimes_and_differ(swept):
    rows = [row for row in lines(swept[0]) if row["update"] == "3"]
    assert all(float(row["grad_norm"]) > 0 for row in rows)
    assert any(0 < float(row["success"]) < 1 for row in rows)
    assert len({row["entropy"] for row in rows}) == 4


def test_the_warm_start_of_a_seed_is_that_of_its_run(swept, separate):
    ours = RunDir(swept[0].with_suffix(".state")).warm_start()
    assert [row["update"] for row in ours] == [20, 40]
    for place, seed in enumerate((0, 1)):
        for row, theirs in zip(ours, separate[seed, 3e-3].warm_start(), strict=True):
            for name, values in row["members"].items():
                np.testing.assert_allclose(values[place], theirs[name], **CLOSE, err_msg=name)


def test_curves_and_final_success_are_means_over_seeds(swept):
    path, result = swept
    assert result == read_json(path.with_suffix(".json"))
    assert [one["values"] for one in result["settings"]] == [{"optimizer.learning_rate": r} for r in (3e-3, 1e-2)]
    for place, one in enumerate(result["settings"]):
        rows = lines(path)[6 * place : 6 * place + 6]
        success_SU = np.array([float(row["success"]) for row in rows]).reshape(2, 3)
        np.testing.assert_allclose(one["curves"]["success"]["mean"], success_SU.mean(axis=0))
        np.testing.assert_allclose(one["curves"]["success"]["sd"], success_SU.std(axis=0, ddof=1))
        assert one["final_success"]["per_seed"] == pytest.approx(success_SU[:, -1].tolist())
        assert one["final_success"]["sd"] == pytest.approx(success_SU[:, -1].std(ddof=1))
        assert one["skipped_steps"] == 0
    assert result["versions"]["packages"]["jax"]


def test_a_finished_sweep_is_not_done_again(swept):
    def contents():
        return {path: path.read_bytes() for path in swept[0].parent.glob("rates*") if path.is_file()}

    before = contents()
    assert sweep(make(), RATES, [0, 1], swept[0], how="vmap", display=QUIET()) == swept[1]
    assert contents() == before


def test_another_sweep_in_the_same_file_is_refused(swept, tmp_path):
    def again(config, varied, seeds, out=swept[0]):
        return sweep(config, varied, seeds, out, display=QUIET())

    with pytest.raises(CheckpointError, match=r"seeds=\[0\] for \[0, 1\]"):
        again(make(), RATES, [0])
    with pytest.raises(CheckpointError, match=r"varied.optimizer.learning_rate=\[0.003\] for \[0.003, 0.01\]"):
        again(make(), {"optimizer.learning_rate": [3e-3]}, [0, 1])
    with pytest.raises(CheckpointError, match=r"algorithm.clip_low=0.1 for 0.2"):
        again(make(algorithm__clip_low=0.1), RATES, [0, 1])
    (tmp_path / "mine.csv").write_text("a,b\n")
    with pytest.raises(CheckpointError, match="must be new"):
        again(make(), RATES, [0, 1], tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "a,b\n"


class Ask(Display):
    """A display that asks the sweep to stop when it is told of an update."""

    def __init__(self, phase: str, update: int):
        super().__init__(quiet=True)
        self._at = phase, update

    def update(self, done, values):
        if self._phase.startswith(self._at[0]) and done == self._at[1]:
            signal.raise_signal(signal.SIGTERM)


def test_a_sweep_that_was_stopped_twice_ends_with_the_same_numbers(swept, folder):
    out = folder / "stopped.csv"
    for phase, update, where in (("warm start", 20, "20 of 40 supervised updates"), ("training", 2, "2 of 3 updates")):
        with pytest.raises(Interrupted, match=f"SIGTERM after {where}") as stopped:
            sweep(make(), RATES, [0, 1], out, how="lax_map", display=Ask(phase, update))
        assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert [row["update"] for row in lines(out)] == ["1", "2"] * 4, "readable while it is under way"
    sweep(make(train__checkpoint_every=3), RATES, [0, 1], out, how="lax_map", display=QUIET())
    assert out.read_text() == swept[0].read_text()


def test_given_weights_are_where_all_members_start_and_a_reference_holds_them_there(separate, folder, tmp_path):
    init = f"run:{separate[0, 3e-3].path}"
    config = make(init=init, train__updates=2, algorithm__kl_coefficient=0.1)
    varied = {"algorithm.kl_coefficient": (0.05, 5.0)}
    sweep(config, varied, [3], tmp_path / "kl.csv", display=QUIET())
    rows = lines(tmp_path / "kl.csv")
    for place, coefficient in enumerate(varied["algorithm.kl_coefficient"]):
        own = make(init=init, train__updates=2, seed=3, algorithm__kl_coefficient=coefficient)
        theirs = train(own, tmp_path / f"run{place}", display=QUIET(), tensorboard=False).metrics()
        for row, metrics in zip(rows[2 * place : 2 * place + 2], theirs, strict=True):
            assert metrics["reference_kl"] > 0
            for name in ("reference_kl", "loss", "entropy", "success", "grad_norm"):
                np.testing.assert_allclose(float(row[name]), metrics[name], **CLOSE, err_msg=name)


def test_a_critic_begins_and_learns_as_in_a_run_of_its_own(separate, tmp_path):
    make_ppo = functools.partial(
        make, init=f"run:{separate[0, 3e-3].path}", algorithm__name="ppo", algorithm__ppo__warmup_updates=1
    )
    sweep(make_ppo(), RATES, [3], tmp_path / "ppo.csv", display=QUIET())
    rows = lines(tmp_path / "ppo.csv")[3:]
    theirs = train(
        make_ppo(seed=3, optimizer__learning_rate=1e-2), tmp_path / "run", display=QUIET(), tensorboard=False
    )
    for row, metrics in zip(rows, theirs.metrics(), strict=True):
        for name in ("value_loss", "explained_variance", "loss", "entropy", "success", "grad_norm"):
            np.testing.assert_allclose(float(row[name]), metrics[name], **CLOSE, err_msg=name)


@pytest.mark.parametrize(
    ("config", "seeds", "error", "message"),
    [
        ({"seed": 1}, [0], ConfigError, "config.seed must be 0"),
        ({"mesh": "data:8"}, [0], ConfigError, "config.mesh must be empty"),
        ({"train__updates": 0}, [0], ConfigError, "needs updates"),
        ({"algorithm__name": "gropo"}, [0], ConfigError, "Did you mean 'grpo'"),
        ({}, [0, 0], ArgumentError, "each once"),
        ({}, [], ArgumentError, "needs seeds"),
    ],
)
def test_settings_that_cannot_be_met_leave_nothing_behind(config, seeds, error, message, tmp_path):
    with pytest.raises(error, match=message):
        sweep(make(**config), RATES, seeds, tmp_path / "out.csv", display=QUIET())
    assert not list(tmp_path.iterdir())


def test_the_table_must_be_a_csv(tmp_path):
    with pytest.raises(ArgumentError, match=r"must end in .csv"):
        sweep(make(), RATES, [0], tmp_path / "out.json", display=QUIET())


def test_one_program_serves_the_whole_sweep():
    assert [
        updates_in_a_call(*numbers) for numbers in ((150, 50, 0), (150, 50, 50), (3, 1, 0), (6, 4, 2), (7, 7, 0))
    ] == [*(5, 5, 1, 2, 1)]


def test_members_are_shared_out_evenly():
    assert [member_mesh(count).size for count in (1, 2, 7, 8, 12, 16)] == [1, 2, 7, 8, 6, 8]


def test_a_map_is_chosen_by_the_platform_or_by_name():
    assert [choose_map(how) for how in ("vmap", "lax_map")] == ["vmap", "lax_map"]
    assert choose_map("auto") in ("vmap", "lax_map")
    with pytest.raises(ArgumentError, match="auto, vmap, lax_map"):
        choose_map("pmap")


# ---- the command


CONFIG = """
from jaxrl_agent.testing.small import small_values

def get_config():
    return small_values(**{settings!r})
"""


def test_the_command_writes_the_table_the_settings_and_the_curves(launch, swept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG.format(settings=SETTINGS))
    flags = ["--config=small.py", "--seeds=2", "--vary=optimizer.learning_rate:3e-3,1e-2", "--map=lax_map"]
    result = launch("sweep_train", *flags, "--updates=3", "--out=rates.csv", "--progress=plain")
    assert result.code == 0, result.err
    assert (tmp_path / "rates.csv").read_text() == swept[0].read_text()
    assert "optimizer.learning_rate  success, per cent" in result.out
    page = (tmp_path / "rates.html").read_text()
    assert all(f"learning_rate {rate}" in page for rate in ("0.003", "0.01"))
    assert page.count('class="band slot-') == 8, "four panels, two settings"
    assert "prefers-color-scheme: dark" in page


def test_settings_may_be_given_in_several_flags(launch, tmp_path):
    several = ["--set=algorithm.name:gspo", "--set=algorithm.clip_low:3e-4,algorithm.clip_high:0.5"]
    result = launch("sweep_train", "--config=configs/frozenlake_grpo.py", *several, f"--out={tmp_path}/out.csv")
    assert_one_line_error(result, "algorithm gspo", "(0.0003, 0.5)")
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_line(launch, tmp_path):
    for flag, words in itertools.product(["--vary=task.t_max:2,4"], ["optimizer.learning_rate"]):
        result = launch("sweep_train", "--config=configs/frozenlake_grpo.py", flag, f"--out={tmp_path}/out.csv")
        assert_one_line_error(result, words, "task.t_max")
    assert not list(tmp_path.iterdir())
