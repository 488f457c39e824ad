"""Launchers: flags over config files, one-line errors, the same from every working directory. All in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jaxrl_agent import command_line
from jaxrl_agent.config import build_config, default_config
from jaxrl_agent.errors import ConfigError, RunError
from jaxrl_agent.run_dir import RunDir
from jaxrl_agent.testing.commands import assert_one_line_error

MANY = ["--config.train.updates=1", "--config.rollout.prompts_per_update=64"]
CODE = "--config=configs/deepcoder_tiny_base.py"
PROJECT = Path(__file__).resolve().parents[1]
SMALL_CONFIG = """
from jaxrl_agent.testing.small import small_values

def get_config():
    return small_values(train__updates=2, train__checkpoint_every=1, warm_start__updates=2, warm_start__log_every=2)
"""


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(SMALL_CONFIG)
    return path


# ---- dry run


def test_a_dry_run_prints_every_setting_with_its_unit_and_what_they_amount_to(launch):
    result = launch("train", "--config=configs/frozenlake_grpo.py", "--dry_run")
    assert result.code == 0
    assert "config.task.t_max = 16 turns  # largest budget" in result.out
    assert "one update: 16 prompts x 8 = 128 trajectories, at most 2048 turns and 4096 sampled tokens" in result.out
    assert "supervised updates, then" in result.out


def test_a_dry_run_counts_what_dynamic_sampling_leaves_out(launch):
    result = launch("train", "--config=configs/frozenlake_dapo.py", "--dry_run")
    assert "= 128 trajectories, chosen from 2 candidates each = 256 sampled, at most 4096 turns" in result.out
    assert "150 updates x 2 optimizer steps, 38400 trajectories" in result.out


def test_dotted_flags_override_the_file(launch):
    result = launch(
        "train",
        "--config=configs/frozenlake_grpo.py",
        "--config.optimizer.learning_rate=3e-4",
        "--config.task.lake.foggy=false",
        "--config.evaluation.budget_fractions=(0.5, 1.0)",
        "--config.budget.schedule=curriculum",
        "--config.budget.caps=(4, 8)",
        "--dry_run",
    )
    assert result.code == 0, result.err
    assert "config.optimizer.learning_rate = 0.0003" in result.out
    assert "config.task.lake.foggy = False" in result.out
    assert "config.evaluation.budget_fractions = (0.5, 1.0)" in result.out
    assert "config.budget.caps = (4, 8) turns" in result.out


@pytest.mark.parametrize("form", ["--config=configs/frozenlake_base.py", "--config configs/frozenlake_base.py"])
def test_a_config_of_the_project_is_found_from_any_directory(launch, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = launch("train", *form.split(), "--dry_run")
    assert result.code == 0, result.err
    assert "config.train.updates = 0" in result.out


def test_a_config_of_the_working_directory_comes_first(launch, tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "frozenlake_base.py").write_text(
        "from jaxrl_agent.config import default_config\n\n"
        "def get_config():\n    config = default_config()\n    config.seed = 77\n    return config\n"
    )
    monkeypatch.chdir(tmp_path)
    result = launch("train", "--config=configs/frozenlake_base.py", "--dry_run")
    assert "config.seed = 77" in result.out


@pytest.mark.parametrize("path", sorted(path.name for path in (PROJECT / "configs").glob("*.py")))
def test_every_config_of_the_project_is_valid(launch, path):
    config = command_line.read_config(f"configs/{path}")
    changes = ["--init=hf:weights"] if config.train.updates and not config.warm_start.updates else []
    result = launch("train", f"--config=configs/{path}", *changes, "--dry_run")
    assert result.code == 0, result.err


def test_init_and_mesh_flags_go_over_the_file_and_folders_become_absolute(launch, tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path)
    result = launch("train", "--config=configs/frozenlake_grpo.py", "--init=run:base", "--mesh=fsdp:8", "--dry_run")
    assert f"config.init = 'run:{tmp_path / 'base'}'" in result.out
    assert "config.mesh = 'fsdp:8'" in result.out
    assert "the run: 0 supervised updates" in result.out


def test_a_dry_run_says_what_it_could_not_check(launch):
    result = launch("train", "--config=configs/deepcoder_qwen3_4b.py", "--init=hf:weights", "--dry_run")
    assert "not checked: tokenizer and data of the task" in result.out


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=configs/none.py"], ["config file must exist", "configs/none.py", "configs/frozenlake_grpo.py"]),
        (["--config.optimizer.learning_rat=1"], ["config.optimizer has no key", "Did you mean 'learning_rate'?"]),
        (["--config.optimiser.learning_rate=1"], ["config has no key", "Did you mean 'optimizer'?"]),
        (["--config.algorithm.name=grp"], ["config.algorithm.name", "Did you mean 'grpo'?"]),
        (["--config.rollout.group_size=1"], ["config.rollout.group_size must be at least 2"]),
        (["--mesh=rows:2"], ["axes data, fsdp, tensor"]),
        (["--config.budget.schedule=curriculum"], ["caps within 1..16"]),
        (["--config.task.tokenizer=byte"], ["vocabulary (62) must hold every id", "config.task.tokenizer"]),
        ([CODE, "--config.task.tokenizer=lake_words"], ["lake_words"]),
        ([CODE, "--config.task.coding.families=('slices',)"], ["families must be known", "slices", "slice"]),
        ([CODE, "--config.task.coding.source=own", *MANY], ["42 that there are", "got 64"]),
        ([CODE, "--config.task.coding.source=humaneval"], ["for evaluation only"]),
        ([CODE, "--config.task.coding.source=mbpp", "--config.task.coding.path=/none"], ["data of mbpp", "/none"]),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_1(launch, arguments, words):
    base = [] if arguments[0].startswith("--config=") else ["--config=configs/frozenlake_grpo.py"]
    assert_one_line_error(launch("train", *base, *arguments, "--dry_run"), *words)


def test_a_value_of_another_type_names_its_flag(launch):
    result = launch("train", "--config=configs/frozenlake_grpo.py", "--config.train.updates=many", "--dry_run")
    assert result.code == 1
    assert "config.train.updates" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config=configs/frozenlake_grpo.py"], "--run_dir must be given"),
        (["--run_dir=x"], "--config"),
        (["--config=configs/frozenlake_grpo.py", "--dry_run", "--resum"], "resum"),
        (["--config=configs/frozenlake_grpo.py", "--dry_run", "stray"], "unexpected argument 'stray'"),
    ],
)
def test_flags_that_are_missing_unknown_or_no_flags_are_refused(launch, arguments, words):
    result = launch("train", *arguments)
    assert result.code == 1
    assert words in result.err + result.out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", "config run_dir init mesh resume dry_run"),
        ("evaluate", "run_dir checkpoint config budget_fractions samples tasks temperature seed mesh out reuse"),
        ("convert_checkpoint", "from source out tokenizer config"),
        ("report", "runs out"),
    ],
)
def test_help_names_every_flag_and_gives_an_example(launch, name, expected):
    result = launch(name, "--help")
    text = " ".join(result.out.split())
    assert f"python launch/{name}.py" in text
    for flag in expected.split():
        assert f"--{flag}:" in text or f"--[no]{flag}:" in text or f"--{flag} " in text, flag


# ---- training


def test_a_run_is_trained_left_alone_when_finished_and_never_overwritten(launch, small_file, tmp_path):
    command = [f"--config={small_file}", f"--run_dir={tmp_path / 'run'}"]
    result = launch("train", *command)
    assert result.code == 0, result.err
    assert f"run directory: {tmp_path / 'run'}" in result.out
    assert "training 2/2" in result.out
    run = RunDir.open(tmp_path / "run")
    assert [row["update"] for row in run.metrics()] == [1, 2]

    again = launch("train", *command, "--resume")
    assert (again.code, "all 2 updates are done" in again.out) == (0, True)
    assert [row["update"] for row in run.metrics()] == [1, 2]
    assert_one_line_error(launch("train", *command), "directory without one", "--resume")
    other = launch("train", *command, "--resume", "--config.seed=5")
    assert_one_line_error(other, "settings that it was started with", "seed=5 for 0")


# ---- evaluating


@pytest.fixture
def own_run(small_run, tmp_path):
    """A copy of the small run that a test may add to."""
    return RunDir(shutil.copytree(small_run.path, tmp_path / "own"))


def test_a_run_is_evaluated_into_itself_and_reused(launch, own_run):
    command = [f"--run_dir={own_run.path}", "--budget_fractions=0.5,1.0", "--samples=2", "--tasks=5"]
    result = launch("evaluate", *command)
    assert result.code == 0, result.err
    stored = own_run.evaluations()["test"]
    assert ([run["T"] for run in stored["runs"]], stored["n_samples"], stored["n_tasks"]) == ([2, 4], 2, 5)
    assert stored["checkpoint"] == f"run:{own_run.path}@224"
    assert len(list(own_run.trajectories("evaluation_test"))) == 2 * 2 * 5
    assert "Pass@(K,T)" in result.out
    assert "T=4" in result.out

    again = launch("evaluate", *command, "--reuse")
    assert "(as it was)" in again.out
    assert own_run.evaluations()["test"] == stored
    assert "(as it was)" not in launch("evaluate", *command, "--reuse", "--seed=1").out
    assert own_run.evaluations()["test"]["sampling"]["seed"] == 1


def test_a_named_policy_is_evaluated_on_the_task_of_a_config_file(launch, own_run, small_file, tmp_path):
    result = launch(
        "evaluate",
        f"--checkpoint=run:{own_run.path}",
        f"--config={small_file}",
        "--config.task.budget_visibility=hidden",
        "--temperature=0",
        f"--out={tmp_path / 'out' / 'greedy.json'}",
    )
    assert result.code == 0, result.err
    stored = json.loads((tmp_path / "out" / "greedy.json").read_text())
    assert stored["budget_visibility"] == "hidden"
    assert stored["sampling"]["temperature"] == 0
    read = (tmp_path / "out" / "greedy_trajectories.jsonl").read_text().splitlines()
    assert json.loads(read[0])["turns"], "no trajectory to read beside the file"
    assert "warning: temperature 0" in result.out
    assert "warning: temperature 0" not in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["give either --run_dir=DIR, or --checkpoint=NAME together with --config=FILE"]),
        (["--checkpoint=hf:x"], ["give either"]),
        (["--run_dir=x", "--checkpoint=hf:x"], ["give either"]),
        (["--run_dir=x", "--config=configs/frozenlake_grpo.py"], ["give either"]),
        (["--run_dir=nowhere"], ["must hold config.json", "nowhere"]),
        (["--checkpoint=hf:x", "--config=configs/frozenlake_grpo.py"], ["needs a file to write to", "--out"]),
        (["--checkpoint=x", "--config=configs/frozenlake_grpo.py", "--out=x.json"], ["hf:DIR or run:DIR"]),
        (["--checkpoint=hf:x", "--config=configs/frozenlake_grpo.py", "--budget_fractions=half"], ["list of numbers"]),
        (["--checkpoint=hf:x", "--config=configs/frozenlake_grpo.py", "--budget_fractions=1.5"], ["at most 1"]),
    ],
)
def test_an_evaluation_that_cannot_be_made_says_why(launch, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line_error(launch("evaluate", *arguments), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from jaxrl_agent.config import default_config\ndefault_config().optimizer.learning_rte = 1", "Did you mean"),
        ("def get_config(:", "invalid syntax"),
    ],
)
def test_a_faulty_config_file_is_one_line(launch, tmp_path, text, words):
    (tmp_path / "faulty.py").write_text(text)
    result = launch("train", f"--config={tmp_path / 'faulty.py'}", "--dry_run")
    assert_one_line_error(result, "config file must be Python that sets known keys", words)


# ---- converting


def test_a_policy_is_converted_there_and_back(launch, own_run, tmp_path):
    result = launch("convert_checkpoint", "--from=run", f"--source={own_run.path}", f"--out={tmp_path / 'hf'}")
    assert result.code == 0, result.err
    assert f"{tmp_path / 'hf'} (tokenizer: lake_words)" in result.out
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "hf").iterdir()}
    back = launch(
        "convert_checkpoint",
        "--from=hf",
        f"--source={tmp_path / 'hf'}",
        f"--out={tmp_path / 'back'}",
        "--tokenizer=lake_words",
        "--config=configs/frozenlake_base.py",
    )
    assert back.code == 0, back.err
    assert RunDir.open(tmp_path / "back").config()["train"]["updates"] == 0


def test_a_conversion_that_cannot_be_made_says_why(launch, tmp_path):
    result = launch("convert_checkpoint", "--from=run", f"--source={tmp_path}", f"--out={tmp_path / 'hf'}")
    assert_one_line_error(result, "must hold config.json")
    assert "should be one of <hf|run>" in launch("convert_checkpoint", "--from=torch", "--source=x", "--out=y").err


# ---- the parts


def test_a_config_file_is_looked_up_here_then_in_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line.find_config("configs/frozenlake_grpo.py") == str(PROJECT / "configs" / "frozenlake_grpo.py")
    (tmp_path / "mine.py").touch()
    assert command_line.find_config("mine.py") == str(tmp_path / "mine.py")
    with pytest.raises(ConfigError, match="The project has configs/"):
        command_line.find_config("other.py")


def test_flags_that_are_not_given_leave_the_config_alone():
    values = default_config()
    values.mesh = "data:2"
    command_line.override(values, init=None, mesh=None)
    assert build_config(values).mesh == "data:2"
    command_line.override(values, init="hf:not/there", mesh="")
    assert (values.init, values.mesh) == ("hf:not/there", "")


def test_an_evaluated_config_is_that_of_the_run_with_the_run_as_its_policy(small_run):
    config = command_line.evaluated_config(
        run_dir=str(small_run.path), checkpoint=None, config_file=None, samples=3, tasks=2, mesh="fsdp:8"
    )
    assert config.init == f"run:{small_run.path}"
    assert (config.evaluation.samples, config.task.n_test, config.mesh) == (3, 2, "fsdp:8")
    assert config.task.lake == build_config(small_run.config()).task.lake


def test_a_policy_is_named_by_its_folder_from_wherever_it_is_given(small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(small_run.path)
    (tmp_path / "linked").symlink_to(small_run.path)
    given = [".", f"{small_run.path}/", f"{tmp_path}/linked", f"mine={small_run.path}"]
    names = [command_line.subjects([text], None)[0].name for text in given]
    assert names == [small_run.path.name, small_run.path.name, "linked", "mine"]


def test_an_evaluation_lies_in_its_run_unless_it_is_told_otherwise(small_run, tmp_path):
    assert command_line.evaluation_path(None, str(small_run.path)) == small_run.path / "evaluations" / "test.json"
    assert command_line.evaluation_path(str(tmp_path / "x.json"), str(small_run.path)) == tmp_path / "x.json"
    with pytest.raises(RunError, match=r"config\.json"):
        command_line.evaluation_path(None, str(tmp_path))


def test_the_grid_is_printed_with_a_line_for_each_k_and_a_column_for_each_t(capsys):
    cells = [{"K": k, "T": t, "value": k * t / 100, "ci_low": 0.0, "ci_high": 1.0} for t in (4, 16) for k in (1, 8)]
    command_line.print_grid({"grid": cells}, Path("x.json"))
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "evaluation: x.json"
    assert lines[0].split() == ["Pass@(K,T)", "T=4", "T=16"]
    assert [line.split()[0] for line in lines[1:]] == ["K=1", "K=8"]
    assert "0.320" in lines[2]
    assert "1.280" in lines[2]
    assert len({len(line) for line in lines}) == 1, "columns are aligned"


def test_giving_isolation_up_is_said_aloud_and_in_every_file(launch, tmp_path, monkeypatch):
    from jaxrl_agent import sandbox
    from jaxrl_agent.run_dir import RunDir

    chosen = []
    monkeypatch.setattr(sandbox, "configure", lambda **settings: chosen.append(settings))
    settings = ["--config.train.updates=0", "--config.warm_start.updates=2", "--config.warm_start.optimizer.warmup=1"]
    train = ("train", "--config=configs/frozenlake_base.py", *settings, "--config.task.n_train=16")
    exposed = launch(*train, "--unsafe_no_sandbox", f"--run_dir={tmp_path / 'exposed'}")
    assert exposed.code == 0
    assert "WITHOUT isolation" in exposed.err
    assert chosen == [{"unsafe": True}]
    assert "unsafe_no_sandbox" in RunDir.open(tmp_path / "exposed").versions()["declared"]["sandbox"]
    assert launch(*train, f"--run_dir={tmp_path / 'plain'}").code == 0
    assert "declared" not in RunDir.open(tmp_path / "plain").versions()
    assert len(chosen) == 1
