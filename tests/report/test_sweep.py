"""The page of a training sweep, drawn from made-up results."""

from __future__ import annotations

import pytest

from jaxrl_agent.report.sweep import curves_figure, final_table, render, setting_name
from jaxrl_agent.run_dir import to_jsonable


def made_up(settings: int = 2, seeds: int = 3, updates: int = 4) -> dict:
    """Success of setting i at update u is (i + u) / 100."""
    rates = [0.001 * (place + 1) for place in range(settings)]

    def curve(place: int) -> dict:
        sd = 0.01 if seeds > 1 else None
        return {"mean": [(place + u) / 100 for u in range(1, updates + 1)], "sd": [sd] * updates}

    return to_jsonable(
        {
            "sweep": {"varied": {"optimizer.learning_rate": rates}, "seeds": list(range(seeds))},
            "versions": {"packages": {"jax": "1.2"}, "python": "3", "platform": "made up"},
            "updates": list(range(1, updates + 1)),
            "final_updates": 1,
            "settings": [
                {
                    "values": {"optimizer.learning_rate": rate},
                    "curves": {name: curve(place) for name in ("success", "turns", "entropy", "kl")},
                    "final_success": {"mean": (place + updates) / 100, "sd": 0.01 if seeds > 1 else None},
                    "skipped_steps": place,
                }
                for place, rate in enumerate(rates)
            ],
        }
    )


def test_settings_are_listed_best_first_with_their_spread():
    assert final_table(made_up()).rows == (
        ("learning_rate 0.002", "5.0 ± 1.0", "1"),
        ("learning_rate 0.001", "4.0 ± 1.0", "0"),
    )


def test_a_band_is_one_standard_deviation_wide_and_stays_a_share():
    (best, _) = curves_figure(made_up()).panels[0].series
    assert best.ys == pytest.approx([0.02, 0.03, 0.04, 0.05])
    assert best.lows == pytest.approx([0.01, 0.02, 0.03, 0.04])
    (_, worst) = curves_figure(made_up(updates=1)).panels[0].series
    assert (worst.lows, worst.highs) == (pytest.approx([0.0]), pytest.approx([0.02]))


def test_one_seed_has_no_band():
    result = made_up(seeds=1)
    assert curves_figure(result).panels[0].series[0].lows is None
    assert 'class="band' not in render(result)
    assert final_table(result).rows[0][1] == "5.0"


def test_of_many_settings_the_best_are_drawn_and_all_are_in_the_table():
    figure = curves_figure(made_up(settings=9))
    assert [key.slot for key in figure.keys] == [1, 2, 3, 4, 5, 6, 7]
    assert figure.keys[0].label == "learning_rate 0.009"
    assert "The 7 of 9 settings that ended best." in figure.reading
    assert len({row[0] for row in figure.table.rows}) == 9


def test_an_update_that_was_not_finite_breaks_the_line():
    result = made_up()
    for end in ("mean", "sd"):
        result["settings"][1]["curves"]["kl"][end][1] = None
    series = curves_figure(result).panels[3].series[0]
    assert (series.ys[1], series.lows[1]) == (None, None)
    assert "nan" not in render(result)


def test_keys_of_one_name_keep_their_section():
    values = {"a.x": 1.0, "b.x": 2.0}
    assert setting_name({"sweep": {"varied": values}}, {"values": values}) == "a.x 1, b.x 2"
    assert setting_name({"sweep": {"varied": {}}}, {"values": {}}) == "all seeds"
