"""Drawing, checking and splitting maps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxrl_agent.envs import frozenlake_maps
from jaxrl_agent.envs.frozenlake_maps import (
    map_hash,
    map_set,
    random_map,
    shortest_path,
    split_of,
    stack_maps,
    validate,
)
from jaxrl_agent.errors import MapError

TINY_LAKE = {"size": 4, "frozen_prob": 0.8, "start": "random", "min_path": 2, "min_holes": 1, "max_holes": 6}
PINNED_CORNER = ["SFFF", "FFFF", "FHFF", "FFFG"]
PINNED_RANDOM = ["FFFFF", "FHFFF", "SHFFH", "HHFHF", "FFGHF"]


def n_holes(desc: list[str]) -> int:
    return "".join(desc).count("H")


def test_every_random_map_is_playable(mixed_lakes):
    for desc, _ in mixed_lakes:
        validate(desc)


def test_maps_are_a_function_of_their_arguments_in_every_process():
    code = (
        "import json; from jaxrl_agent.envs.frozenlake_maps import random_map, map_set;"
        "print(json.dumps([random_map(5, size=7, frozen_prob=0.7), map_set('test', 4, seed=3, size=(4, 6),"
        " frozen_prob=0.8, start='random')]))"
    )
    ours = [
        random_map(5, size=7, frozen_prob=0.7),
        map_set("test", 4, seed=3, size=(4, 6), frozen_prob=0.8, start="random"),
    ]
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert json.loads(run.stdout) == ours


def test_maps_stay_what_they_were():
    assert random_map(0, size=4, frozen_prob=0.8) == PINNED_CORNER
    assert random_map(1, size=5, frozen_prob=0.7, start="random", min_path=4) == PINNED_RANDOM


def test_drawing_maps_leaves_the_global_generators_alone():
    before = np.random.get_state()[1].tolist()
    random_map(0, size=4, frozen_prob=0.8)
    assert np.random.get_state()[1].tolist() == before


def test_corner_maps_start_top_left_and_end_bottom_right():
    for seed in range(20):
        desc = random_map(seed, size=6, frozen_prob=0.7)
        assert (desc[0][0], desc[-1][-1]) == ("S", "G")


def test_random_starts_and_goals_cover_the_lake_evenly():
    descs = ["".join(random_map(seed, size=3, frozen_prob=1.0, start="random")) for seed in range(1800)]
    for letter in "SG":
        counts = np.bincount([desc.index(letter) for desc in descs], minlength=9)
        assert counts.min() > 140
        assert counts.max() < 260  # 200 expected, standard deviation 13


def test_frozen_prob_is_the_share_of_ice_before_the_check():
    open_cells = [n_holes(random_map(seed, size=10, frozen_prob=0.9)) for seed in range(300)]
    np.testing.assert_allclose(np.mean(open_cells), 98 * 0.1, atol=0.6)
    assert n_holes(random_map(0, size=10, frozen_prob=1.0)) == 0


def test_the_bounds_on_path_and_holes_hold():
    for seed in range(50):
        desc = random_map(seed, size=5, frozen_prob=0.7, start="random", min_path=4, min_holes=3, max_holes=7)
        assert shortest_path(desc) >= 4
        assert 3 <= n_holes(desc) <= 7


@pytest.mark.parametrize(
    ("desc", "moves"),
    [
        (["SFFF", "FHFH", "FFFH", "HFFG"], 6),
        (["SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"], 14),
        (["SG", "HH"], 1),
        (["SHF", "FHF", "FFG"], 4),
        (["SHG", "FHF", "FHF"], None),
        (["SH", "HG"], None),
    ],
)
def test_shortest_path_counts_moves_around_holes(desc, moves):
    assert shortest_path(desc) == moves


def test_a_path_needs_a_start():
    with pytest.raises(MapError, match="must have a start"):
        shortest_path(["FF", "FG"])


def test_splits_never_share_a_map_whatever_the_seed():
    sets = {
        (split, seed): {map_hash(desc) for desc in map_set(split, 150, seed=seed, **TINY_LAKE)}
        for split in ("train", "validation", "test")
        for seed in (0, 1)
    }
    assert all(len(hashes) == 150 for hashes in sets.values())
    for (split, seed), hashes in sets.items():
        for (other_split, other_seed), other_hashes in sets.items():
            if split != other_split:
                assert not hashes & other_hashes, (split, seed, other_split, other_seed)
    assert sets["train", 0] != sets["train", 1]


def test_a_set_agrees_with_split_of_and_a_short_one_is_a_prefix():
    long = map_set("validation", 20, seed=9, size=(3, 8), frozen_prob=0.8)
    assert map_set("validation", 10, seed=9, size=(3, 8), frozen_prob=0.8) == long[:10]
    assert {split_of(desc) for desc in long} == {"validation"}
    assert len({len(desc) for desc in long}) > 2


def test_splits_hold_80_10_and_10_percent_of_all_maps():
    splits = [split_of(random_map(seed, size=8, frozen_prob=0.8)) for seed in range(2000)]
    shares = [splits.count(split) / 2000 for split in ("train", "validation", "test")]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.03)


def test_the_hash_is_sha256_of_the_rows():
    assert map_hash(["SF", "FG"]) == "2ada50b7252c571a825b153b4a919c81ac9f140559956b25531a195866d2c601"
    assert map_hash(["SFFG"]) != map_hash(["SF", "FG"])


def test_the_tiny_lake_setting_gives_2048_training_maps_in_seconds():
    started = time.process_time()
    descs = map_set("train", 2048, seed=0, **TINY_LAKE)
    assert time.process_time() - started < 2.0
    assert len({map_hash(desc) for desc in descs}) == 2048
    paths = np.array([shortest_path(desc) for desc in descs])
    assert paths.min() == 2
    assert 2.9 < paths.mean() < 3.3
    assert {n_holes(desc) for desc in descs} == set(range(1, 7))


def test_as_many_shortest_paths_fit_a_budget_as_expected(golden):
    """Sizes 2..9, ice 0.6..0.85, T_max twice the size, as in a widely used data set."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 10, 4000)
    paths = np.array(
        [
            shortest_path(random_map(seed, size=int(size), frozen_prob=float(prob), start="random"))
            for seed, (size, prob) in enumerate(zip(sizes, rng.uniform(0.6, 0.85, 4000), strict=True))
        ]
    )
    for fraction, expected in golden["feasible_share_by_budget_random_maps"]["share"].items():
        budgets = np.ceil(round(float(fraction) * 100) * 2 * sizes / 100)
        np.testing.assert_allclose((paths <= budgets).mean(), expected, atol=0.035)  # three standard errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"frozen_prob": 0.0}, "frozen_prob must lie in"),
        ({"frozen_prob": 1.5}, "frozen_prob must lie in"),
        ({"frozen_prob": float("nan")}, "frozen_prob must lie in"),
        ({"size": 1}, r"size must lie in 2\.\.10"),
        ({"size": 11}, r"size must lie in 2\.\.10"),
        ({"size": 4.0}, "size must be an integer"),
        ({"start": "middle"}, "start must be"),
        ({"min_path": 0}, "min_path must be at least 1"),
        ({"min_holes": 15}, r"min_holes must lie in 0\.\.14"),
        ({"min_holes": -1}, "min_holes must lie in"),
        ({"min_holes": 3, "max_holes": 2}, "max_holes must be at least"),
        ({"seed": -1}, "seed must be a non-negative integer"),
        ({"seed": 0.5}, "seed must be a non-negative integer"),
    ],
)
def test_settings_out_of_range_are_refused_with_rule_and_value(setting, message):
    arguments = {"seed": 0, "size": 4, "frozen_prob": 0.8} | setting
    with pytest.raises(MapError, match=message) as error:
        random_map(arguments.pop("seed"), **arguments)
    assert "got" in str(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        {"size": 4, "frozen_prob": 0.8, "min_path": 40},
        {"size": 10, "frozen_prob": 0.01},
        {"size": 4, "frozen_prob": 1.0, "min_holes": 1},
        {"size": 2, "frozen_prob": 0.5, "min_holes": 2},
    ],
)
def test_a_setting_without_solvable_maps_ends_with_an_error(setting):
    with pytest.raises(MapError, match="within 20000 draws") as error:
        random_map(0, **setting)
    assert error.value.remedy


def test_asking_for_more_maps_than_there_are_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(frozenlake_maps, "_MAX_TRIES", 500)
    with pytest.raises(MapError, match="must have 100 distinct maps; got"):
        map_set("train", 100, seed=0, size=2, frozen_prob=0.8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "dev"}, "split must be one of train, validation, test"),
        ({"count": 0}, "count must be at least 1"),
        ({"size": (6, 4)}, "size must lie in"),
        ({"size": (4, 5, 6)}, "size must be an integer or a pair"),
    ],
)
def test_sets_out_of_range_are_refused(change, message):
    arguments = {"split": "train", "count": 1, "seed": 0, "size": 4, "frozen_prob": 0.8} | change
    with pytest.raises(MapError, match=message):
        map_set(arguments.pop("split"), arguments.pop("count"), **arguments)


@pytest.mark.parametrize(
    ("desc", "message"),
    [
        ([], "list of non-empty strings"),
        ("SFFG", "list of non-empty strings"),
        (["SF", ""], "list of non-empty strings"),
        (["SF", "FFG"], "equally long"),
        (["SF", "XG"], "letters S, F, H and G"),
        (["SFG"], "square"),
        (["S"], "square"),
        (["S" + "F" * 10, *["F" * 11] * 9, "F" * 10 + "G"], "square with 2 to 10"),
        (["SS", "FG"], "exactly one S and one G"),
        (["SF", "FF"], "exactly one S and one G"),
        (["SH", "HG"], "reachable"),
    ],
)
def test_maps_that_cannot_be_played_are_refused(desc, message):
    with pytest.raises(MapError, match=message):
        validate(desc)


def test_stacked_maps_keep_their_own_row_length():
    maps = stack_maps([["SH", "FG"], ["FFG", "HFF", "SFH"]], max_size=4)
    assert maps.hole_X.shape == (2, 16)
    assert [np.flatnonzero(row).tolist() for row in maps.hole_X] == [[1], [3, 8]]
    assert (maps.start.tolist(), maps.goal.tolist(), maps.size.tolist()) == ([0, 6], [3, 2], [2, 3])


def test_stacking_refuses_no_maps_and_maps_too_large():
    with pytest.raises(MapError, match="at least one map"):
        stack_maps([])
    with pytest.raises(MapError, match=r"must fit max_size \(2\); got 3"):
        stack_maps([["SFF", "FFF", "FFG"]], max_size=2)
