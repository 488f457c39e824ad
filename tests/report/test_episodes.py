from __future__ import annotations

import json
from collections import Counter

import pytest

from jaxrl_agent.errors import RunError
from jaxrl_agent.report.episodes import MAX_TEXT, PER_BUDGET, episodes
from jaxrl_agent.report.load import load_run
from jaxrl_agent.run_dir import read_json, write_json


def loaded(runs):
    return [load_run(name, str(path), slot=i) for i, (name, path) in enumerate(runs.items())]


def write(run, name, *trajectories):
    path = run / "trajectories" / f"{name}.jsonl"
    path.write_text("".join(json.dumps(t) + "\n" for t in trajectories))


def trajectory(instance="m", budget=4, success=False, stop="budget", turns=(), board=("SFFF", "FHFF", "FFFF", "FFFG")):
    return {
        "instance_id": instance,
        "budget": budget,
        "t_max": 16,
        "success": success,
        "return": float(success),
        "stop_reason": stop,
        "turns": [{"text": f"{action} .", "parsed_action": action, "info": {"cell": c}} for c, action in turns],
        "instance": {"map": list(board)} if board else {},
    }


def only(runs, *trajectories, **changes):
    """Episodes of the run `base` alone, with these trajectories stored."""
    write(runs["base"], "evaluation_test", *trajectories)
    config = read_json(runs["base"] / "config.json")
    config["task"]["lake"] |= changes
    write_json(runs["base"] / "config.json", config)
    return episodes(loaded({"base": runs["base"]}))


def test_episodes_of_another_evaluation_are_not_shown(runs):
    write(runs["base"], "evaluation_greedy", trajectory(instance="stranger"))
    assert "stranger" not in {e["instance"] for e in episodes(loaded({"base": runs["base"]}))}


def test_every_run_shows_the_same_maps_at_each_budget(pristine_runs):
    shown = episodes(loaded(pristine_runs))
    places = {name: [(e["budget"], e["instance"]) for e in shown if e["run"] == name] for name in pristine_runs}
    assert places["base"] == places["grpo"] == places["budgetmix"]
    assert Counter(budget for budget, _ in places["base"]) == dict.fromkeys((4, 8, 12, 16), PER_BUDGET)


def test_maps_on_which_the_runs_differ_come_first(pristine_runs):
    shown = episodes(loaded(pristine_runs))
    outcomes = {}
    for e in shown:
        outcomes.setdefault((e["budget"], e["instance"]), []).append(e["success"])
    for budget in (4, 8, 12, 16):
        differ = [len(set(v)) > 1 for (b, _), v in outcomes.items() if b == budget]
        assert differ == sorted(differ, reverse=True)


def test_evaluation_files_go_before_training_files_and_the_last_training_file_stands_in(runs):
    run = runs["base"]
    write(run, "train_00050", trajectory("early"))
    write(run, "train_00100", trajectory("late"))
    assert {e["instance"] for e in episodes(loaded({"base": run}))}.isdisjoint({"early", "late"})
    (run / "trajectories" / "evaluation_test.jsonl").unlink()
    assert [e["instance"] for e in episodes(loaded({"base": run}))] == ["late"]


def test_dialogues_are_shown_without_the_marks_of_the_chat_format(runs):
    think = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    said = trajectory(turns=((0, "left"), (1, "down")))
    system, user = "<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_start|>user\nDouble n.<|im_end|>\n"
    said["instance"]["prompt"] = system + user + think
    said["turns"][1] |= {"observation": f"\n<|im_start|>user\nin 2 want 4<|im_end|>\n{think}", "text": "4<|im_end|>"}
    first, second = only(runs, said)[0]["turns"]
    assert first["observation"] == "(system) Be brief.\nDouble n."
    assert (second["observation"], second["text"]) == ("in 2 want 4", "4")


def test_a_submissions_tests_are_shown(runs):
    counts = {"public_passed": 2, "public_total": 2, "hidden_passed": 1, "hidden_total": 2}
    graded = trajectory(turns=((None, "8f3a 3/4"), (None, "left")))
    graded["turns"][0]["info"] = {**counts, "statuses": ["ok", "ok", "ok", "wrong"], "program": "x"}
    first, second = only(runs, graded)[0]["turns"]
    assert first["tests"] == {**counts, "statuses": ["ok", "ok", "ok", "wrong"]}
    assert second["tests"] is None


def test_the_first_stored_attempt_is_shown(runs):
    shown = only(runs, trajectory(success=True, stop="success"), trajectory(success=False))
    assert [e["stop"] for e in shown] == ["success"]


def test_many_budgets_are_thinned_from_the_smallest_to_the_largest(runs):
    shown = only(runs, *(trajectory(budget=b) for b in range(2, 12)))
    assert [e["budget"] for e in shown] == [2, 5, 8, 11]


@pytest.mark.parametrize(
    ("turns", "success", "end"),
    [
        ([(14, "right")], True, 15),
        ([(4, "right")], False, 5),
        ([(0, "left")], False, 0),
        ([(0, "look")], False, 0),
        ([(3, None)], False, 3),
        ([], False, None),
    ],
)
def test_the_last_cell_follows_from_the_last_move(runs, turns, success, end):
    assert only(runs, trajectory(turns=turns, success=success))[0]["end"] == end


def test_where_the_agent_slid_at_the_end_is_left_open(runs):
    assert only(runs, trajectory(turns=[(4, "right")]), success_rate=0.8)[0]["end"] is None


def test_fog_is_drawn_on_the_foggy_lake_only(runs):
    played = trajectory(turns=[(0, "look")])
    played["turns"][0]["info"]["cells_seen"] = []
    assert only(runs, played)[0]["turns"][0]["seen"] == []
    assert only(runs, played, foggy=False)[0]["turns"][0]["seen"] is None


def test_tasks_without_a_map_and_turns_without_extras_are_shown_as_text(runs):
    bare = trajectory(board=None)
    bare["turns"] = [{"text": "x" * (MAX_TEXT + 7)}]
    (shown,) = only(runs, bare)
    assert shown["map"] is None
    assert shown["end"] is None
    assert shown["turns"][0]["text"].endswith("… (7 more characters)")
    assert shown["turns"][0]["probability"] is None


def test_a_reply_has_the_probability_of_its_tokens(runs):
    played = trajectory(turns=[(0, "right")])
    played["turns"][0] |= {"logprobs": [-0.5, -0.1931], "tokens": [7, 8]}
    (shown,) = only(runs, played)
    assert shown["turns"][0]["probability"] == pytest.approx(0.5, abs=1e-4)
    assert shown["turns"][0]["tokens"] == 2


def test_a_line_that_is_no_trajectory_is_refused(runs):
    with pytest.raises(RunError, match="instance_id"):
        only(runs, {"budget": 4})
