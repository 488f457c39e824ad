"""Settings: every one explained, none unknown, none of a wrong type or out of range, and all of them through JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import pytest

from jaxrl_agent import config as config_module
from jaxrl_agent.config import Config, build_config, check_key, default_config, describe, to_dict
from jaxrl_agent.errors import ConfigError


def sections(cls: type = Config, path: str = "config"):
    """Every section of the configuration with its dotted name."""
    yield path, cls
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(getattr(cls(), field.name)):
            yield from sections(type(getattr(cls(), field.name)), f"{path}.{field.name}")


def changed(key: str, value: object) -> dict:
    """The default values, with one of them replaced or added."""
    values = to_dict(Config())
    *path, name = key.split(".")
    functools.reduce(dict.__getitem__, path, values)[name] = value
    return values


SETTINGS = {
    f"{path}.{field.name}": field
    for path, cls in sections()
    for field in dataclasses.fields(cls)
    if "help" in field.metadata
}


@pytest.mark.parametrize(("path", "cls"), list(sections()))
def test_every_field_is_a_section_or_a_setting_with_help(path, cls):
    assert cls.__doc__
    for field in dataclasses.fields(cls):
        if not dataclasses.is_dataclass(getattr(cls(), field.name)):
            assert field.metadata["help"].strip(), f"{path}.{field.name}"


def test_every_number_has_a_bound_below():
    # A setting that may be negative would be a surprise: all of them are counts, rates, weights or probabilities.
    for name, field in SETTINGS.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert {"low", "above"} & field.metadata["bounds"].keys(), name


def test_defaults_pass_their_own_checks():
    assert build_config(default_config()) == Config()


# ---- unknown keys


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("optimizer.learning_rat", "learning_rate"),
        ("task.lake.frozen_probability", "frozen_prob"),
        ("sed", "seed"),
        ("warm_start.optimizer.warm_up", "warmup"),
    ],
)
def test_an_unknown_key_is_refused_with_its_section_and_the_nearest_key(key, nearest):
    section, _, name = key.rpartition(".")
    where = f"config.{section}" if section else "config"
    with pytest.raises(ConfigError, match=rf"{where} has no key.*{name}.*Did you mean '{nearest}'"):
        build_config(changed(key, 1))
    with pytest.raises(ConfigError, match=f"Did you mean '{nearest}'"):
        check_key(key)


def test_a_key_that_is_near_to_none_lists_all_of_them():
    with pytest.raises(ConfigError, match=r"Known: balance, caps, schedule, stage_updates, uniform_share\."):
        build_config(changed("budget.zzz", 1))


def test_keys_below_a_setting_are_refused():
    with pytest.raises(ConfigError, match=r"config.seed has no key"):
        check_key("seed.x")


def test_known_keys_pass():
    for name in SETTINGS:
        check_key(name.removeprefix("config."))
    check_key("warm_start.optimizer")


def test_a_locked_default_refuses_an_unknown_key_at_once():
    values = default_config()
    with pytest.raises(AttributeError, match="learning_rate"):
        values.optimizer.learning_rat = 1.0


# ---- types


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", 1.5, "must be of type int"),
        ("seed", True, "must be of type int"),
        ("task.lake.foggy", 1, "must be of type bool"),
        ("task.name", None, "must be of type str"),
        ("optimizer.learning_rate", "3e-4", "must be of type float.*peak learning rate"),
        ("optimizer.learning_rate", True, "must be of type float"),
        ("evaluation.budget_fractions", 0.5, "must be a list of float"),
        ("evaluation.budget_fractions", ["a"], "must be of type float"),
        ("optimizer", 3, "must be a section.*config.optimizer.KEY"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key(key, value, message):
    with pytest.raises(ConfigError, match=rf"config\.{key} {message}"):
        build_config(changed(key, value))


def test_an_integer_may_stand_for_a_float_and_a_list_for_a_tuple():
    config = build_config(changed("optimizer.learning_rate", 1))
    assert isinstance(config.optimizer.learning_rate, float)
    assert build_config(changed("evaluation.budget_fractions", [1, 0.5])).evaluation.budget_fractions == (1.0, 0.5)


# ---- ranges


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", -1, "at least 0"),
        ("rollout.group_size", 1, "at least 2"),
        ("train.mini_batches", 0, "at least 1"),
        ("train.updates", -1, "at least 0"),
        ("optimizer.learning_rate", -1e-3, "at least 0"),
        ("optimizer.learning_rate", math.nan, "at least 0"),
        ("optimizer.learning_rate", math.inf, "finite"),
        ("optimizer.b2", 1.0, "below 1"),
        ("warm_start.optimizer.b1", 1.0, "below 1"),
        ("warm_start.random_move", 1.5, "at most 1"),
        ("rollout.top_p", 0.0, "above 0"),
        ("rollout.top_p", 1.1, "at most 1"),
        ("task.lake.success_rate", 0.0, "above 0"),
        ("task.lake.frozen_prob", 1.01, "at most 1"),
        ("task.budget_visibility", "often", "one of hidden, total, remaining"),
        ("task.think", "forget", "one of off, keep, strip_by_rows"),
        ("algorithm.aggregation", "mean", "one of token_mean, "),
        ("optimizer.schedule", "square", "one of constant, linear, cosine"),
        ("evaluation.budget_fractions", (0.5, 0.0), "above 0"),
        ("evaluation.budget_fractions", (1.5,), "at most 1"),
        ("evaluation.budget_fractions", (math.nan,), "above 0"),
        ("budget.caps", (4, 0), "at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_key_and_bound(key, value, message):
    with pytest.raises(ConfigError, match=rf"config\.{key} must be {message}"):
        build_config(changed(key, value))


# ---- contradictions


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rollout.temperature", 0.0, "Greedy groups have no spread"),
        ("task.lake.min_size", 5, "smallest value must not exceed its largest"),
        ("task.lake.min_holes", 7, "smallest value must not exceed its largest"),
        ("task.think", "keep", "must be off with config.task.text=words"),
        ("task.n_train", 15, r"must not exceed config.task.n_train \(15\).*meet a task twice"),
        ("train.mini_batches", 3, r"must divide the trajectories of an update \(128\)"),
        ("algorithm.dual_clip", 0.5, "must be 0 or above 1"),
        ("algorithm.clip_low", 1.0, "must be below 1"),
        ("evaluation.budget_fractions", (), "at least one budget"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(key, value, message):
    with pytest.raises(ConfigError, match=message):
        build_config(changed(key, value))


# ---- round trips and display


def test_a_config_goes_through_json_and_back():
    values = default_config()
    values.seed = 7
    values.task.lake.success_rate = 1 / 3
    values.budget.caps = (4, 8)
    config = build_config(values)
    assert build_config(json.loads(json.dumps(to_dict(config)))) == config
    assert config.budget.caps == (4, 8)


def test_a_stored_config_that_lacks_a_newer_setting_gets_its_default():
    values = to_dict(Config())
    del values["budget"]["caps"]
    assert build_config(values) == Config()


def test_equal_configs_are_equal_keys():
    assert len({build_config(default_config()), Config()}) == 1


def test_the_description_has_a_line_for_each_setting_with_value_unit_and_help():
    lines = describe(Config())
    assert len(lines) == len(SETTINGS)
    assert "config.task.t_max = 16 turns  # largest budget" in lines
    assert "config.optimizer.learning_rate = 0.0007  # peak learning rate" in lines
    assert "config.warm_start.optimizer.learning_rate = 0.005  # peak learning rate" in lines
    assert [line.split(" = ")[0] for line in lines] == list(SETTINGS)


def test_counts_have_units():
    # What a number counts is the question that a resolved configuration must answer.
    for name, field in SETTINGS.items():
        if isinstance(field.default, int) and not isinstance(field.default, bool):
            counted = field.metadata["unit"] or "seed" in name or "checkpoints" in name
            assert counted or "updates" in field.metadata["help"] or "steps" in field.metadata["help"], name


def test_one_update_has_prompts_times_group_size_trajectories():
    assert build_config(default_config()).trajectories_per_update == 16 * 8


def test_names_of_aggregations_are_those_of_the_loss():
    from jaxrl_agent.algorithms import common

    assert set(config_module.AGGREGATIONS) == set(common.AGGREGATIONS)
