"""Which settings mean something together: what does is trained, what does not is refused with its reason."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from jaxrl_agent.algorithms import ALGORITHMS
from jaxrl_agent.errors import ConfigError
from jaxrl_agent.interrupts import Interrupted
from jaxrl_agent.methods import needs_exact_values
from jaxrl_agent.preflight import check_names
from jaxrl_agent.progress import Display
from jaxrl_agent.rollout.budget import BUDGET_SCHEDULES
from jaxrl_agent.testing.small import small_config, small_preset
from jaxrl_agent.train import train

QUIET = functools.partial(Display, quiet=True)
OWN = {
    "gspo": {"algorithm__clip_low": 3e-4, "algorithm__clip_high": 4e-4},
    "ppo": {"algorithm__ppo__warmup_updates": 1},
}
PPO = {"algorithm__name": "ppo", **OWN["ppo"]}
SCHEDULES = {"curriculum": {"budget__caps": (2, 4), "budget__stage_updates": 2}}


@pytest.fixture(scope="module", autouse=True)
def _preset():
    with small_preset():
        yield


def settings_of(algorithm: str, schedule: str = "budget_mix", **changes):
    hidden = {"task__budget_visibility": "hidden"} if schedule == "budget_mix_marginal" else {}
    return small_config(
        algorithm__name=algorithm,
        budget__schedule=schedule,
        **OWN.get(algorithm, {}),
        **SCHEDULES.get(schedule, {}),
        **hidden,
        **changes,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm__ppo__lam": 0.9}, "algorithm.ppo belongs to algorithm ppo"),
        ({"algorithm__gigpo__omega": 2.0}, "algorithm.gigpo belongs to algorithm gigpo"),
        ({"algorithm__process__omega": 2.0, "algorithm__name": "gigpo"}, "belongs to algorithm process_reward"),
        (
            {"algorithm__name": "rloo", "algorithm__scale": "batch"},
            "algorithm rloo does not read config.algorithm.scale",
        ),
        ({"algorithm__name": "ppo", "rollout__candidates": 2}, "would bias it"),
        ({"algorithm__name": "ppo"}, "never learn"),  # four updates, ten of warm-up
        ({"algorithm__name": "gspo"}, "geometric mean"),
        ({"rollout__candidates": 3}, "n_train"),
        (
            {
                "algorithm__name": "process_reward",
                "budget__schedule": "budget_mix_marginal",
                "task__budget_visibility": "hidden",
            },
            "process rewards",
        ),
        ({"budget__schedule": "budget_mix_marginal"}, "visibility=hidden"),
        (
            {
                "budget__schedule": "budget_mix_marginal",
                "task__budget_visibility": "hidden",
                "task__name": "deepcoder",
                "task__coding__reward": "dense",
            },
            "reward=dense",
        ),
        ({"budget__balance": 2.0}, "schedule that mixes budgets"),
        ({"budget__uniform_share": 0.1}, "belongs to schedule headroom"),
        ({"budget__stage_updates": 7}, "belongs to schedule curriculum"),
        (PPO | {"algorithm__ppo__lam": 0.9}, "ppo.lam must be left alone with config.algorithm.ppo.level=turn"),
        (PPO | {"algorithm__ppo__level": "token", "algorithm__ppo__gamma_turn": 0.9}, "ppo.gamma_turn must be"),
        # Four updates of two steps, of which the critic takes one update to warm up.
        (PPO | {"optimizer__schedule": "linear", "optimizer__warmup": 6}, "more total_steps than warm-up"),
        ({"algorithm__overlong_buffer": 3}, "max_tokens"),
        ({"budget__balance": 0.5, "budget__schedule": "budget_mix"}, "at least 1"),
    ],
)
def test_settings_that_mean_nothing_together_are_refused_with_the_reason(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_names(small_config(**changes))


@pytest.mark.parametrize("schedule", sorted(BUDGET_SCHEDULES))
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_other_pair_of_algorithm_and_schedule_passes(algorithm, schedule):
    if (algorithm, schedule) != ("process_reward", "budget_mix_marginal"):
        check_names(settings_of(algorithm, schedule))


def test_exact_values_are_computed_only_where_training_reads_them():
    needing = {(a, s) for a in ALGORITHMS for s in ("fixed", "headroom") if needs_exact_values(settings_of(a, s))}
    assert needing == {("process_reward", "fixed"), *((a, "headroom") for a in ALGORITHMS)}


def params_of(run):
    from jaxrl_agent.checkpoint import load_policy
    from jaxrl_agent.testing.small import one_device

    return jax.tree.leaves(jax.device_get(load_policy(f"run:{run.path}", mesh=one_device()).params))


class Stop(Display):
    """A display that asks the run to stop after an update."""

    def update(self, done, values):
        import signal

        if (self._phase, done) == ("training", 2):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("algorithm", "schedule"), [("ppo", "headroom")])
def test_a_run_goes_on_bit_by_bit_with_its_critic_and_its_headroom(algorithm, schedule, tmp_path):
    config = settings_of(algorithm, schedule)
    straight = train(config, tmp_path / "straight", display=QUIET())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", display=Stop(quiet=True))
    stopped = train(config, tmp_path / "stopped", resume=True, display=QUIET())
    for a, b in zip(params_of(straight), params_of(stopped), strict=True):
        np.testing.assert_array_equal(a, b)

    def lines(run):
        return [
            {k: v for k, v in row.items() if k not in ("seconds", "tokens_per_s", "compiles")} for row in run.metrics()
        ]

    assert lines(straight) == lines(stopped)
    assert lines(straight)[-1]["headroom_by_budget"] != [1.0] * 10
    assert {"value_loss", "explained_variance"} <= set(lines(straight)[-1])


def trains(algorithm: str, schedule: str, base, path) -> None:
    run = train(settings_of(algorithm, schedule, init=f"run:{base.path}"), path, display=QUIET())
    rows = run.metrics()
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) and row["skipped_steps"] == 0 for row in rows)
    assert all(row["sampler_trainer_max_diff"] < 1e-4 for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize("algorithm", ["gigpo", "gspo", "process_reward"])
def test_an_algorithm_trains_on_mixed_budgets(algorithm, small_run, tmp_path):
    trains(algorithm, "budget_mix", small_run, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", sorted(BUDGET_SCHEDULES))
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_pair_trains(algorithm, schedule, small_run, tmp_path):
    if (algorithm, schedule) == ("process_reward", "budget_mix_marginal"):
        pytest.skip("refused, see above")
    trains(algorithm, schedule, small_run, tmp_path / "run")
