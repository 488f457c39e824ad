from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agent.config import LakeConfig, TaskConfig
from jaxrl_agent.envs import frozenlake, frozenlake_exact
from jaxrl_agent.envs.frozenlake_maps import map_hash, shortest_path
from jaxrl_agent.errors import MapError
from jaxrl_agent.models.tokenizer import load_tokenizer
from jaxrl_agent.tasks import TASKS
from jaxrl_agent.tasks.frozenlake import QUALITY_GAMMA, LakeInstances
from jaxrl_agent.testing.lakes import CHAT, FOUR_LAKES, lake_game

SMALL = {"n_train": 40, "n_test": 12}


def build(split: str = "train", *, tokenizer: str = "lake_words", lake=None, **task) -> LakeInstances:
    """The host's view of a split."""
    config = TaskConfig(**{**SMALL, **task}, lake=LakeConfig(**lake or {}))
    return TASKS["frozenlake"](config, load_tokenizer(tokenizer), split, vocab_size=300)[2]


def test_training_and_test_share_no_map_whatever_the_seeds():
    train = {map_hash(desc) for seed in (0, 1) for desc in build("train", lake={"map_seed": seed}).descs}
    test = {map_hash(desc) for seed in (0, 1) for desc in build("test", lake={"map_seed": seed}).descs}
    assert len(train) > SMALL["n_train"]
    assert not train & test


def test_maps_obey_their_settings():
    lake = {"min_size": 3, "max_size": 4, "min_path": 3, "min_holes": 2, "max_holes": 4}
    descs = build(lake=lake).descs
    assert {len(desc) for desc in descs} == {3, 4}
    assert min(map(shortest_path, descs)) >= 3
    holes = ["".join(desc).count("H") for desc in descs]
    assert (min(holes), max(holes)) == (2, 4)


def test_lakes_know_nothing_of_budgets_text_or_slip():
    expected = build()
    for changes in ({"t_max": 3}, {"budget_visibility": "hidden"}):
        assert build(**changes).descs == expected.descs
        assert build(**changes).data_hash == expected.data_hash
    assert build(lake={"success_rate": 0.5, "foggy": False}).descs == expected.descs
    assert build(**CHAT).descs == expected.descs
    assert build(lake={"map_seed": 1}).data_hash != expected.data_hash


@pytest.mark.parametrize("changes", [{"lake": {"success_rate": 0.5}}, {"lake": {"foggy": False}}, CHAT])
def test_the_same_lakes_under_other_rules_or_words_are_another_game(changes):
    assert build(**changes).data_hash != build().data_hash


def test_settings_without_enough_maps_are_refused():
    with pytest.raises(MapError, match="distinct maps"):
        build(lake={"min_size": 2, "max_size": 2, "min_holes": 0})


@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_recorded_qualities_are_exact(rate):
    game = lake_game(FOUR_LAKES, lake={"success_rate": rate})
    quality = jax.jit(game.task.quality)
    for index, desc in enumerate(FOUR_LAKES):
        q_X4 = frozenlake_exact.discounted_q(desc, success_rate=rate, gamma=QUALITY_GAMMA)
        for cell in np.flatnonzero(q_X4.any(axis=1)):
            state = game.task.reset(game.data, index).replace(cell=jnp.int32(cell))
            best = q_X4[cell].max()
            for action, worth in (*enumerate(q_X4[cell]), (frozenlake.LOOK, 0.99 * best), (-1, 0.99 * best)):
                np.testing.assert_allclose(
                    quality(game.data, index, state, jnp.int32(action)), (worth, best), rtol=1e-4
                )


@pytest.mark.parametrize("settings", [{}, CHAT], ids=["words", "chat"])
def test_widths_bound_everything_that_is_ever_written(settings):
    game = lake_game(FOUR_LAKES, t_max=4, budget_visibility="remaining", lake={"foggy": False}, **settings)
    task, data = game.task, game.data
    prompt, observe = jax.jit(task.prompt), jax.jit(task.observe)
    lengths = [int(prompt(data, index, 4)[1]) for index in range(4)]
    assert max(lengths) == task.prompt_width(data)
    seen = [
        int(observe(data, index, task.reset(data, index).replace(last_look=jnp.int32(mask)), turn, 4)[1])
        for index in range(4)
        for mask in (-1, 0, 15)
        for turn in (0, 1)
    ]
    assert max(seen) == task.observation_width(data)
    assert task.context_width(data) == task.prompt_width(data) + 4 * (task.observation_width(data) + task.max_tokens)


# ---- the host's view


def test_instances_are_named_by_their_map_alone():
    first, second = lake_game(FOUR_LAKES), lake_game(FOUR_LAKES[::-1], t_max=3)
    names = [first.instances.instance_id(index) for index in range(4)]
    assert names == [second.instances.instance_id(3 - index) for index in range(4)]
    assert len(set(names)) == 4
    assert first.instances.instance_info(1) == {"map": list(FOUR_LAKES[1])}
    assert first.instances.data_hash != second.instances.data_hash


def test_action_numbers_have_names_and_unusable_replies_none():
    instances = lake_game(FOUR_LAKES).instances
    assert [instances.action_name(action) for action in range(-1, 5)] == [None, "left", "down", "right", "up", "look"]


def test_explained_turns_follow_what_looks_told_as_the_environment_does():
    game = lake_game(FOUR_LAKES)
    rng = np.random.default_rng(0)
    step = jax.jit(game.task.step)
    told = 0
    for index, desc in enumerate(FOUR_LAKES):
        for _ in range(4):
            state, cells, actions, seen = game.task.reset(game.data, index), [], [], []
            for _ in range(10):
                action = int(rng.choice([-1, 0, 1, 2, 3, 4, 4]))
                cells.append(int(state.cell))
                actions.append(action)
                seen.append(np.flatnonzero(state.seen_X).tolist())
                state, _, terminated = step(game.data, index, state, jnp.int32(action), jax.random.key(0))
                if terminated:
                    break
            explained = game.instances.explain_turns(index, cells, actions, [0.5] * len(cells), [0.75] * len(cells))
            letters = "".join(desc)
            for (key, info), cell, known in zip(explained, cells, seen, strict=True):
                assert key == f"{game.instances.instance_id(index)}/{cell}/{','.join(map(str, known))}"
                assert info == {
                    "cell": cell,
                    "quality": 0.5,
                    "best_quality": 0.75,
                    "cells_seen": known,
                    "holes_seen": [other for other in known if letters[other] == "H"],
                }
                told += len(known)
    assert told > 50


def test_the_best_possible_success_is_that_of_the_true_lake():
    instances = lake_game(FOUR_LAKES).instances
    deterministic = instances.optimal_success([1, 2, 5, 6], success_rate=1.0)
    assert deterministic.tolist() == [[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]
    slippery = instances.optimal_success([1, 6], success_rate=0.5)
    assert slippery[0].tolist() == [0, 0.5, 0.5, 0]
