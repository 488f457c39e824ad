from __future__ import annotations

import math

import pytest

from jaxrl_agent.report import svg
from jaxrl_agent.report.panels import HeatPanel, Interval, IntervalPanel, LinePanel, Series, SharePanel


def ticks(axis: svg.Axis) -> list[str]:
    return [text for _, text in axis.ticks]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0], ["0", "0.25", "0.5", "0.75", "1"]),
        ([0.58, 1.0], ["0.5", "0.6", "0.7", "0.8", "0.9", "1"]),
        ([0, 150], ["0", "50", "100", "150"]),
        ([-3, 4], ["\N{MINUS SIGN}4", "\N{MINUS SIGN}2", "0", "2", "4"]),
    ],
)
def test_ticks_are_round_and_hold_the_data(values, expected):
    assert ticks(svg.nice_axis(values)) == expected


@pytest.mark.parametrize(
    "values", [[0.3, 0.301], [1e-9, 3e-9], [12345, 99999], [-1, 1e6], [5], [0], [], [None, math.nan]]
)
def test_every_axis_has_a_few_increasing_ticks_around_its_data(values):
    axis = svg.nice_axis(values)
    places = [value for value, _ in axis.ticks]
    assert 2 <= len(places) <= 7
    assert places == sorted(set(places))
    finite = [v for v in values if v is not None and math.isfinite(v)]
    assert all(axis.low <= v <= axis.high for v in finite)


def test_bounds_cut_an_axis_that_rounding_made_too_long():
    axis = svg.nice_axis([0.02, 0.98], bounds=(0.0, 1.0), text=svg.percent)
    assert (axis.low, axis.high) == (0.0, 1.0)
    assert ticks(axis)[-1] == "100%"


def test_logarithmic_axes_span_whole_powers_of_ten():
    axis = svg.log_axis([3e-6, 8e-5, 0.0, None])
    assert ticks(axis) == ["10⁻⁶", "10⁻⁵", "10⁻⁴"]
    assert axis.fraction(1e-5) == pytest.approx(0.5)
    assert math.isnan(axis.fraction(0.0))


def test_a_listed_logarithmic_axis_puts_powers_of_two_at_equal_steps():
    axis = svg.listed_axis([1, 2, 4, 8], ["1", "2", "4", "8"], log=True)
    assert [axis.fraction(k) for k in (1, 2, 4, 8)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_a_missing_value_breaks_the_line():
    assert svg.path([(0, 0), (1, 2), (2, math.nan), (3, 1.239)]) == "M0 0L1 2M3 1.24"


def test_text_and_attributes_are_escaped():
    assert svg.label("a<b", 1.0, 2.0) == '<text x="1" y="2" class="tick" text-anchor="middle">a&lt;b</text>'
    assert 'aria-label="&quot;&lt;&quot;"' in svg.drawing("", '"<"')


def test_marks_of_five_neighbouring_slots_have_different_shapes():
    assert len({svg.marker(slot, 0.0, 0.0) for slot in range(5)}) == 5


AXIS = svg.nice_axis([0, 10])
SHARE = svg.nice_axis([0, 1])


def test_a_line_panel_places_points_on_its_axes():
    series = Series("grpo", 1, [0, 5, 10], [0.0, None, 1.0], lows=[0.0, None, 0.9], highs=[0.1, None, 1.0])
    drawn = LinePanel("Pass@1", "turns", AXIS, SHARE, (series,), marks=True).render()
    left, right, top, bottom = svg.LEFT, svg.WIDTH - svg.RIGHT, svg.TOP, svg.HEIGHT - svg.BOTTOM
    assert f'd="M{left:g} {bottom:g}M{right:g} {top:g}" class="line slot-1"' in drawn
    assert drawn.count('class="mark"') == 2
    assert "<title>grpo: 1 [0.9, 1]</title>" in drawn
    assert "nan" not in drawn


def test_a_line_without_marks_has_one_at_its_end():
    drawn = LinePanel("Reward", "update", AXIS, SHARE, (Series("grpo", 1, [0, 5, 10], [0.0, 0.5, None]),)).render()
    assert drawn.count('class="mark"') == 1
    assert f'cx="{svg.number(AXIS.x(5))}"' in drawn


def test_an_empty_line_draws_nothing():
    drawn = LinePanel("Reward", "update", AXIS, SHARE, (Series("grpo", 1, [0], [None], [None], [None]),)).render()
    assert 'class="mark"' not in drawn


def test_an_interval_panel_marks_zero_and_names_its_rows():
    axis = svg.nice_axis([-0.2, 0.3], text=svg.points)
    panel = IntervalPanel("Difference", "points", ("T = 4",), axis, (Interval(0, "b - a", 1, -0.1, -0.2, 0.05),))
    drawn = panel.render()
    assert drawn.count('class="zero"') == 1
    assert f"<title>b - a, T = 4: {svg.MINUS}10 [{svg.MINUS}20, +5]</title>" in drawn
    assert f'x1="{svg.number(axis.x(-0.2))}" x2="{svg.number(axis.x(0.05))}"' in drawn


def test_shares_are_stacked_up_to_one():
    layers = (("success", "reason-success", [0.25, 0.5]), ("budget", "reason-budget", [0.75, 0.5]))
    drawn = SharePanel("grpo", "update", svg.nice_axis([0, 1]), [0, 1], layers).render()
    top, bottom, middle = svg.TOP, svg.HEIGHT - svg.BOTTOM, (svg.TOP + svg.HEIGHT - svg.BOTTOM) / 2
    left, right = svg.LEFT, svg.WIDTH - svg.RIGHT
    assert f"L{right:g} {middle:g}L{right:g} {bottom:g}L{left:g} {bottom:g}Z" in drawn
    assert f"M{left:g} {top:g}L{right:g} {top:g}" in drawn


def test_a_heat_map_is_strongest_at_its_largest_value_and_empty_where_nothing_is_known():
    drawn = HeatPanel("grpo", "update", AXIS, [0, 5, 10], ("40%", "100%"), ((0.25, 0.5), (None, 1.0))).render()
    assert "<title>40%, updates 5 to 10: 50%</title>" in drawn
    assert drawn.count('class="heat"') == 4
    assert drawn.count('fill-opacity="1"') == 1
    assert drawn.count('fill-opacity="0"') == 1
