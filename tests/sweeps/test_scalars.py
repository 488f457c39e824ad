"""Which settings may vary inside one program, and that nothing else gets in."""

from __future__ import annotations

import itertools

import pytest

from jaxrl_agent.algorithms import ALGORITHMS, estimator_options
from jaxrl_agent.config import check_key
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.sweeps.scalars import SCALARS, parse_vary, settings_grid
from jaxrl_agent.testing.small import small_config


def test_values_are_read_as_numbers():
    varied = parse_vary(["optimizer.learning_rate:3e-4,7e-4", "algorithm.clip_high:0.2"])
    assert varied == {"optimizer.learning_rate": (3e-4, 7e-4), "algorithm.clip_high": (0.2,)}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["optimizer.learning_rate"], "KEY:VALUE"),
        (["optimizer.learning_rate:1", "optimizer.learning_rate:2"], "once for each key"),
        (["optimizer.learning_rate:high"], "takes numbers"),
        (["algorithm.scale:group,none"], "only numbers that enter the program"),
        (["algorithm.clip:a"], "config.algorithm has no key"),
    ],
)
def test_faulty_items_are_refused(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_vary(texts)


def test_every_combination_is_a_setting_and_the_last_key_runs_fastest():
    grid = settings_grid(small_config(), {"optimizer.learning_rate": [1e-3, 2e-3], "algorithm.clip_low": [0.1, 0.2]})
    expected = [
        {"optimizer.learning_rate": rate, "algorithm.clip_low": clip}
        for rate, clip in itertools.product([1e-3, 2e-3], [0.1, 0.2])
    ]
    assert [point for point, _ in grid] == expected
    assert [(one.optimizer.learning_rate, one.algorithm.clip_low) for _, one in grid] == [
        tuple(point.values()) for point in expected
    ]


def test_without_anything_varied_there_is_one_setting():
    config = small_config()
    assert settings_grid(config, {}) == [({}, config)]


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        ({"task.t_max": [2, 4]}, r"only numbers .*optimizer.learning_rate.*got 'task.t_max'.*give compare.py a config"),
        ({"rollout.temperature": [0.5, 1]}, "only numbers that enter the program as data"),
        ({"optimizer.rate": [1.0]}, "config.optimizer has no key of this name"),
        ({"algorithm.clip_low": [0.1, 1.5]}, "clip_low must be below 1"),
        ({"optimizer.learning_rate": [-1.0]}, "at least 0"),
        ({"optimizer.learning_rate": []}, "needs values, each once"),
        ({"optimizer.learning_rate": [1e-3, 1e-3]}, "needs values, each once"),
        ({"algorithm.kl_coefficient": [0.0, 0.1]}, "must be above 0: without the term it is another program"),
    ],
)
def test_what_cannot_vary_is_refused(varied, message):
    with pytest.raises(ConfigError, match=message):
        settings_grid(small_config(), varied)


def test_every_scalar_is_a_setting_that_no_advantage_estimator_bakes_in():
    baked = set().union(*(estimator_options(name) for name in ALGORITHMS))
    for key in SCALARS:
        check_key(key)
        assert key.rpartition(".")[2] not in baked
