from __future__ import annotations

import types

from jaxrl_agent.config import Config, to_dict
from jaxrl_agent.report.settings import compare, facts, flatten, is_foggy, notices, task_title


def run(name="base", config=None, versions=None, warm_start=(), **evaluation):
    base = {"task": "frozenlake", "n_tasks": 8, "n_samples": 16, "budget_visibility": "total", "t_max": 16}
    base |= {"sampling": {"temperature": 1.0}, "could_not_check": 0} | evaluation
    return types.SimpleNamespace(
        name=name, config=config or {}, versions=versions or {}, warm_start=warm_start, evaluation=base, t_max=16
    )


def test_nested_settings_become_dotted_names():
    assert flatten({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}


def test_settings_that_differ_stand_side_by_side_and_the_others_once():
    runs = [run(config={"a": 1, "b": {"c": 2}}), run("grpo", config={"a": 1, "b": {"c": 3}, "d": True})]
    differing = compare(runs, "config", differing=True)
    assert differing.header == ("setting", "base", "grpo")
    assert differing.rows == (("b.c", "2", "3"), ("d", "—", "true"))
    assert compare(runs, "config", differing=False).rows == (("a", "1"),)


def test_settings_that_a_run_has_no_use_for_are_no_difference():
    """Another task's, and those of a warm start that --init replaced."""
    task = {"name": "deepcoder", "lake": {"size": 4}, "coding": {"source": "own"}}
    trained = {"init": "run:base", "warm_start": {"updates": 7}, "task": task}
    runs = [run(config={"init": "", "warm_start": {"updates": 9}, "task": task}), run("grpo", config=trained)]
    shown = compare(runs, "config", differing=True)
    assert shown.rows == (("init", "—", "run:base"),)
    equal = (("warm_start.updates", "9"), ("task.name", "deepcoder"), ("task.coding.source", "own"))
    assert compare(runs, "config", differing=False).rows == equal
    fresh = run("other", config={"init": "", "warm_start": {"updates": 8}, "task": task})
    assert ("warm_start.updates", "9", "—", "8") in compare([*runs, fresh], "config", differing=True).rows


def test_the_fog_is_read_from_the_real_configuration():
    config = to_dict(Config())
    assert is_foggy(config)
    assert task_title([run(config=config)]) == "Foggy FrozenLake"
    config["task"]["lake"]["foggy"] = False
    assert not is_foggy(config)
    assert not is_foggy({"task": {"name": "bfcl", "lake": {"foggy": True}}})


def test_each_limit_of_the_numbers_has_its_notice():
    assert notices([run()]) == []
    titles = [title for title, _ in notices([run(could_not_check=3), run("grpo", warm_start=({"update": 1},))])]
    assert titles == ["Not a pretrained model", "Attempts that could not be checked"]
    assert notices([run(sampling={"temperature": 0})])[0][0] == "Greedy sampling"
    assert notices([run(config={"sandbox": {"unsafe_no_sandbox": True}})])[0][0] == "No sandbox"


def test_facts_say_what_all_numbers_share():
    shown = dict(facts([run(split="test", data_hash="abcdef0123456789", versions={"git_revision": "f" * 40})]))
    assert shown["Tasks"] == "8, test split"
    assert shown["Attempts"] == "16 a task and budget"
    assert shown["Budget"] == "told once, at the start"
    assert shown["Sampling"] == "temperature 1"
    assert shown["Data"] == "abcdef012345"
    assert shown["Code"] == "f" * 10
    dirty = dict(facts([run(versions={"git_revision": "f" * 40, "git_dirty": True})]))
    assert dirty["Code"] == "f" * 10 + " + changes"


def test_a_run_without_isolation_says_so():
    exposed = run("grpo", versions={"declared": {"sandbox": "none: started with --unsafe_no_sandbox"}})
    ((title, text),) = notices([run(), exposed])
    assert title == "Without a sandbox"
    assert "grpo" in text
    assert "base" not in text
