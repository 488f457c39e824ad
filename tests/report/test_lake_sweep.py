"""The page of a FrozenLake sweep, on rows made up for the purpose."""

from __future__ import annotations

import itertools
import re

import pytest

from jaxrl_agent.report.lake_sweep import GridPanel, figures, write_page


def made_up_rows(policies=("random", "full", "told")):
    rows = []
    for size, rate, (p, policy), budget in itertools.product((4, 8), (0.5, 1.0), enumerate(policies), (5, 10)):
        row = {"size": size, "frozen_prob": 0.8, "success_rate": rate, "policy": policy, "budget": budget}
        row |= {"t_max": 10, "budget_share": budget / 10, "n_maps": 30, "infeasible_share": 0.25}
        for name in ("best", "success", "headroom", "over_full", "over_quick", "recovery", "pass_at_2", "pass_at_8"):
            mean = (p - 1) / 4 if name.startswith("over") else (p + 1) / 4
            row |= {name: mean, f"{name}_low": mean - 0.01, f"{name}_high": mean + 0.01}
        rows.append(row)
    return rows


@pytest.fixture
def page(tmp_path):
    facts = {"styles": Styles(), "margin": 0.03}
    return write_page(made_up_rows(), ["It costs -1.5 points <here>."], tmp_path / "p.html", facts=facts).read_text()


class Styles:
    epsilon, temperature, myopic_turns = 0.1, 0.05, 10


def test_the_page_stands_alone_and_takes_light_and_dark(page):
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "prefers-color-scheme: dark" in page
    assert "It costs −1.5 points &lt;here&gt;." in page  # noqa: RUF001


def test_every_figure_has_its_definition_and_table():
    shown = figures(made_up_rows(), margin=0.03)
    assert [figure.key for figure in shown] == [
        "told",
        "told-quick",
        "best",
        "infeasible",
        "success",
        "recovery",
        "pass",
    ]
    for figure in shown:
        assert figure.definition
        assert len(figure.table.rows) == (24 if figure.key in ("success", "recovery", "pass") else 8)
    told, *_, passed = shown
    assert [panel.title for panel in told.panels] == [
        "success rate 0.5, frozen prob 0.8",
        "success rate 1, frozen prob 0.8",
    ]
    assert told.panels[0].rows == ("4 x 4", "8 x 8")
    assert told.panels[0].values == ((0.25, 0.25), (0.25, 0.25))
    assert "Pass@8" in passed.title
    assert passed.panels[0].rows == ("random", "full", "told")


def test_a_cell_shows_its_number_its_interval_and_the_colour_of_its_sign():
    panel = GridPanel("t", "x", ("a",), ("1", "2"), ((0.5, -0.25),), 0.5, lambda v: f"{v:g}", (("hint <1>", "h"),))
    drawn = panel.render()
    assert "<title>hint &lt;1&gt;</title>" in drawn
    assert drawn.count('class="heat"') == drawn.count('class="loss"') == 1
    assert drawn.count('class="number strong"') == 1
    assert ">0.5</text>" in drawn


def test_many_columns_leave_no_room_for_numbers():
    names = tuple(map(str, range(20)))
    panel = GridPanel("t", "x", ("a",), names, ((0.5,) * 20,), 1.0, str, (("",) * 20,))
    assert 'class="number' not in panel.render()
