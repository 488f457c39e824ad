"""Everything that the suite of environments times plays the same game."""

from __future__ import annotations

import jax
import pytest

from jaxrl_agent.benchmark import envs
from jaxrl_agent.envs.frozenlake_exact import success_within


def counted(result) -> tuple[int, float]:
    """Episodes and returns of a run."""
    *_, episodes, returns = jax.tree.leaves(result)
    return int(episodes), float(returns)


@pytest.fixture(scope="module")
def built(request):
    return envs.contestants((512,))


@pytest.mark.parametrize("name", ["frozenlake_batch", "frozenlake_step", "bare"])
def test_random_moves_succeed_as_often_as_the_exact_values_say(built, name):
    contestant = built[f"{name}/512"]
    assert contestant.units == 512 * 4096
    episodes, returns = counted(contestant.run())
    uniform = [[0.25] * 4] * 16
    exact = success_within(list(envs.CLASSIC), uniform, success_rate=1 / 3, budgets=[100])[0]
    assert contestant.units / episodes == pytest.approx(7.7, abs=0.1)
    assert returns / episodes == pytest.approx(exact, abs=0.001)  # 4 standard errors


def test_each_run_draws_anew(built):
    contestant = built["frozenlake_batch_8x8/512"]
    assert counted(contestant.run()) != counted(contestant.run())


def test_gymnasium_plays_the_same_game_and_spends_turns_on_resets():
    pytest.importorskip("gymnasium")
    contestants = envs.contestants((), peers=True)
    assert set(contestants) == {"gymnasium/16", "gymnasium/64", "gymnasium/256"}
    contestant = contestants["gymnasium/64"]
    episodes, returns = contestant.run()
    assert contestant.units / episodes == pytest.approx(8.7, abs=0.5)
    assert returns / episodes == pytest.approx(0.0139, abs=0.01)
