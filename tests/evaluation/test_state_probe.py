"""Which states are probed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from jaxrl_agent.evaluation.arena import Visits
from jaxrl_agent.evaluation.state_probe import choose


def visits(*states: tuple[int, str, int]) -> Visits:
    """States (task, name, turns left)."""
    task_V, keys, left_V = zip(*states, strict=True)
    index_V = np.arange(len(states))
    return Visits(index_V, index_V, np.array(task_V), np.array(left_V), list(keys))


def names(found: list[Visits], chosen) -> list[tuple[int, str, int]]:
    return [
        (int(found[source].task_V[i]), found[source].keys[i], int(found[source].turns_left_V[i]))
        for source, i in chosen
    ]


def test_each_state_is_chosen_once_whoever_came_through_it():
    same = [(0, "a", 3), (0, "a", 3), (0, "a", 2), (0, "b", 3)]
    found = [visits(*same), visits(*same, (1, "a", 3))]
    chosen = names(found, choose(found, 100, seed=0))
    assert sorted(chosen) == [(0, "a", 2), (0, "a", 3), (0, "b", 3), (1, "a", 3)]


def test_half_of_the_states_come_from_each_policy():
    found = [visits(*((t, f"{side}{k}", 5) for t in range(4) for k in range(20))) for side in ("x", "y")]
    assert Counter(source for source, _ in choose(found, 40, seed=1)) == {0: 20, 1: 20}


def test_tasks_are_probed_evenly_however_long_their_episodes_are():
    long = [(0, f"s{k}", 5) for k in range(300)]
    short = [(t, f"s{k}", 5) for t in range(1, 8) for k in range(6)]
    found = [visits(*long, *short), visits(*long, *short)]
    per_task = Counter(task for task, _, _ in names(found, choose(found, 32, seed=2)))
    assert set(per_task.values()) == {4}


def test_where_one_policy_has_too_few_states_the_other_fills_up():
    found = [visits((0, "only", 4)), visits(*((0, f"s{k}", 4) for k in range(9)))]
    assert len(choose(found, 8, seed=0)) == 8
    assert len(choose(found, 80, seed=0)) == 10


def test_states_with_too_few_turns_left_are_passed_over():
    found = [visits((0, "a", 1), (0, "b", 2)), visits((0, "c", 1))]
    assert names(found, choose(found, 9, seed=0, least_turns_left=2)) == [(0, "b", 2)]


def test_the_choice_depends_on_the_seed_alone():
    found = [visits(*((t, f"s{k}", 5) for t in range(4) for k in range(9)))] * 2
    assert choose(found, 10, seed=3) == choose(found, 10, seed=3)
    assert choose(found, 10, seed=3) != choose(found, 10, seed=4)
