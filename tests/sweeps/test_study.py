"""A study from the command line: complete files, nothing found between equal policies, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxrl_agent.assemble import Policy, build_game
from jaxrl_agent.command_line import evaluated_config
from jaxrl_agent.config import build_config, to_dict
from jaxrl_agent.convert import run_to_hf
from jaxrl_agent.errors import ConfigError, TokenizerError
from jaxrl_agent.evaluation.pair_probe import ProbeSettings, Subject
from jaxrl_agent.evaluation.probes import check_alike, check_room, check_tokenizers, enforced_budget
from jaxrl_agent.parallel.mesh import make_mesh
from jaxrl_agent.progress import Display
from jaxrl_agent.run_dir import read_json
from jaxrl_agent.sweeps.compare import compare, stored_verdicts, summary
from jaxrl_agent.testing.small import EVEN_MODEL, ODD_MODEL, small_config, small_preset

FEW = ("--samples=2", "--states=24", "--error_states=8", "--replies=4", "--continuations=2", "--rollouts=2")


@pytest.fixture(scope="module", autouse=True)
def _preset():
    with small_preset():
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("study") / "analysis"


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    """The same weights as a Hugging Face folder, and a config file that says what they play."""
    folder = tmp_path_factory.mktemp("exported")
    run_to_hf(str(small_run.path), str(folder / "weights"))
    values = {**to_dict(build_config(small_run.config())), "init": ""}
    (folder / "config.py").write_text(
        "import json\nimport ml_collections\n\n\ndef get_config():\n"
        f"    return ml_collections.ConfigDict(json.loads({json.dumps(json.dumps(values))!s}))\n"
    )
    return folder


def test_equal_policies_tie_everywhere_and_have_ratios_of_exactly_zero(launch, small_run, exported, out):
    """One as a run, the other as a folder of the same weights: what differs is where they were read from."""
    result = launch(
        "analyze",
        f"--base={small_run.path}",
        f"--policy=same=hf:{exported / 'weights'}",
        f"--config={exported / 'config.py'}",
        f"--out={out}",
        *FEW,
    )
    assert result.code == 0, result.err
    found = read_json(out / "analysis.json")
    for cell in (found["step_quality"]["ordinary"], found["step_quality"]["error_states"]):
        assert (cell["win"], cell["tie"], cell["loss"], cell["wins_plus_half_ties"]) == (0, 1, 0, 0.5)
        assert cell["mean_difference"] == cell["ci_low"] == cell["ci_high"] == 0
    assert found["recovery"]["difference"] == found["recovery"]["extra_gain"]["value"] == 0
    assert found["likelihood"]["llr"]["policy_all"] == found["likelihood"]["llr"]["base_all"] == 0
    nll = found["likelihood"]["action_nll"]
    assert nll["policy_actions_under_policy"] == nll["policy_actions_under_base"] > 0
    assert found["step_quality"]["primary_quality"] == "monte_carlo"  # an oracle is no judge of looking
    assert found["dynamics"] is None  # a folder of weights was not trained here
    assert found["pairs"]["same"]["base"] == small_run.path.name
    assert {row["verdict"] for row in found["verdicts"]} <= {"supported", "contradicted", "undecided"}
    assert "cannot tell" in result.out
    assert (out / "verdicts.md").read_text().startswith("| Claim |")


def test_a_probe_that_is_there_is_left_alone_on_request(launch, small_run, exported, out):
    probe = out / "probes" / "same.json"
    before = probe.stat().st_mtime_ns
    arguments = (
        f"--base={small_run.path}",
        f"--policy=same=hf:{exported / 'weights'}",
        f"--config={exported / 'config.py'}",
        f"--out={out}",
        "--reuse",
    )
    assert launch("analyze", *arguments, *FEW).code == 0
    assert probe.stat().st_mtime_ns == before
    assert launch("analyze", *arguments, *FEW, "--seed=1").code == 0
    assert probe.stat().st_mtime_ns != before


def test_a_folder_of_weights_needs_to_be_told_what_to_play(launch, small_run, exported, tmp_path):
    result = launch("analyze", f"--base={small_run.path}", f"--policy=hf:{exported}", f"--out={tmp_path}")
    assert result.code == 1
    assert "--config" in result.err


def test_policies_of_one_study_differ_in_name(launch, small_run, tmp_path):
    result = launch("analyze", f"--base={small_run.path}", f"--policy={small_run.path}", f"--out={tmp_path}")
    assert result.code == 1
    assert "NAME=DIR" in result.err


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("budget_visibility", {"task__budget_visibility": "hidden"}),
        ("t_max", {"task__t_max": 3}),
        ("think", {"task__think": "keep", "task__text": "chat"}),
        ("lake.foggy", {"task__lake__foggy": False}),
        ("lake.map_seed", {"task__lake__map_seed": 4}),
        ("max_tokens", {"task__max_tokens": 9, "task__text": "chat"}),
    ],
)
def test_policies_that_play_another_game_are_refused(key, changes):
    others = {name: value for name, value in changes.items() if name != "task__text"}
    text = {"task__text": changes.get("task__text", "words")}
    base = Subject("base", small_config(**text, **({"task__max_tokens": 8} if "task__text" in changes else {})))
    other = Subject("other", dataclasses.replace(small_config(**{"task__max_tokens": 8} | text | others)))
    if "task__text" not in changes:
        other = Subject("other", small_config(**others))
    with pytest.raises(ConfigError, match=rf"config\.task\.{key}") as error:
        check_alike([base, other])
    assert "base" in str(error.value)
    assert "other" in str(error.value)


def test_training_data_and_seeds_may_differ():
    check_alike([Subject("base", small_config()), Subject("other", small_config(seed=3, task__n_train=16))])


def test_a_comparison_with_probes_judges_every_claim_and_does_nothing_twice(tmp_path):
    methods = {
        "grpo": small_config(train__updates=2),
        "mix": small_config(train__updates=2, budget__schedule="budget_mix"),
    }
    few = ProbeSettings(samples=2, states=12, error_states=4, replies=2, continuations=2, rollouts=1)
    arguments = methods, [0, 1], tmp_path
    comparison = compare(*arguments, probes=few, display=Display(quiet=True))
    verdicts = stored_verdicts(tmp_path)
    assert {row["policy"] for row in verdicts} >= {"grpo", "mix"}
    assert any("over 2 seeds" in row["here"] for row in verdicts)
    assert verdicts[0]["topic"] in summary(comparison, verdicts)
    table = (tmp_path / "study.md").read_text()
    assert [line.split(" | ")[0] for line in table.splitlines()[2:4]] == ["| grpo", "| mix"]
    assert "±" in table
    for seed in (0, 1):
        probe = read_json(tmp_path / f"seed{seed}" / "analysis_of_base" / "probes" / "mix.json")
        assert probe["seed"] == seed  # seeds of training share no random numbers
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    compare(*arguments, probes=few, display=Display(quiet=True))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_policies_that_speak_other_tokens_are_refused():
    subjects = [Subject("base", small_config()), Subject("other", small_config())]
    policies = [Policy(EVEN_MODEL, None, "lake_words"), Policy(EVEN_MODEL, None, "byte")]
    with pytest.raises(TokenizerError, match="same tokenizer"):
        check_tokenizers(subjects, policies)
    with pytest.raises(TokenizerError, match=r"same size.*62.*63"):
        check_tokenizers(subjects, [policies[0], Policy(ODD_MODEL, None, "lake_words")])
    check_tokenizers(subjects, [policies[0], policies[0]])


def test_policies_with_room_for_other_trajectories_are_refused():
    config = small_config()
    policy = Policy(EVEN_MODEL, None, "lake_words")
    game = build_game(config, "test", policy, make_mesh(""))
    short = dataclasses.replace(policy, model=dataclasses.replace(EVEN_MODEL, max_position_embeddings=20))
    check_room([policy, policy], game)
    with pytest.raises(ConfigError, match="room for the same trajectories"):
        check_room([policy, short], game)


def test_one_turn_leaves_no_room_for_an_error(launch, small_run, tmp_path):
    result = launch(
        "analyze",
        f"--base=first={small_run.path}",
        f"--policy=again={small_run.path}",
        f"--out={tmp_path}",
        "--budget_fraction=0.01",
        *FEW,
    )
    assert result.code == 0, result.err
    found = read_json(tmp_path / "analysis.json")
    assert (found["budget"], found["recovery"], found["step_quality"]["error_states"]) == (1, None, None)
    assert found["step_quality"]["ordinary"]["tie"] == 1
    recovery = next(row for row in found["verdicts"] if row["topic"] == "recovery after an error")
    assert recovery["here"] == "not measured: no error states were probed"


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_budget_that_is_no_share_is_refused(fraction):
    with pytest.raises(ConfigError, match="budget_fraction"):
        enforced_budget(small_config(), ProbeSettings(budget_fraction=fraction))


def test_a_budget_is_a_share_of_the_largest_rounded_up():
    config = small_config(task__t_max=10)
    assert [enforced_budget(config, ProbeSettings(budget_fraction=f)) for f in (0.01, 0.25, 0.3, 1.0)] == [1, 3, 3, 10]


def test_a_run_is_probed_under_its_own_settings(small_run):
    config = evaluated_config(run_dir=str(small_run.path), checkpoint=None, config_file=None)
    assert config.init == f"run:{small_run.path}"
    assert jax.device_count() == 8  # the study above ran with its rows split over all of them
    assert np.prod([config.task.n_test, 2]) % 8
