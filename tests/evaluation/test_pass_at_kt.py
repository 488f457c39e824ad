from __future__ import annotations

import numpy as np
import pytest

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.evaluation import pass_at_kt

FIRST_SUCCESS_PN = np.array(
    [
        [2, 5, 0, 9, 3, 0, 10, 5],
        [0, 0, 8, 0, 0, 0, 0, 0],
        [1, 1, 1, 2, 1, 1, 4, 1],
    ]
)
# T -> mean Pass@K for K = 1, 2, 4, 8.
TABLE = {
    1: [0.25, 0.32142857, 0.33333333, 0.33333333],
    2: [0.33333333, 0.41666667, 0.5, 0.66666667],
    3: [0.375, 0.48809524, 0.5952381, 0.66666667],
    4: [0.41666667, 0.48809524, 0.5952381, 0.66666667],
    5: [0.5, 0.5952381, 0.66190476, 0.66666667],
    6: [0.5, 0.5952381, 0.66190476, 0.66666667],
    8: [0.54166667, 0.67857143, 0.82857143, 1.0],
    10: [0.625, 0.73809524, 0.83333333, 1.0],
}


@pytest.mark.parametrize(("t", "row"), TABLE.items())
def test_success_within_t_turns_is_read_off_the_first_success(t, row):
    values = [pass_at_kt.pass_at_kt(FIRST_SUCCESS_PN, k, t) for k in (1, 2, 4, 8)]
    np.testing.assert_allclose(values, row, atol=1e-8)
    assert all(isinstance(value, float) for value in values)


def test_the_grid_holds_every_cell_with_its_interval():
    grid = pass_at_kt.pass_grid(FIRST_SUCCESS_PN, ks=(1, 2, 4, 8), ts=tuple(TABLE), resamples=500)
    np.testing.assert_allclose(grid.mean.estimate, np.array(list(TABLE.values())).T, atol=1e-8)
    assert grid.values_KTP.shape == (4, 8, 3)
    assert grid.mean.n == 3
    assert (grid.mean.low <= grid.mean.estimate).all()
    assert (grid.mean.estimate <= grid.mean.high).all()


def test_success_grows_with_k_and_with_t():
    first_PN = np.random.default_rng(0).integers(0, 17, size=(20, 16))
    mean = pass_at_kt.pass_grid(first_PN, ts=pass_at_kt.turn_grid(16), resamples=10).mean.estimate
    assert (np.diff(mean, axis=0) >= 0).all()
    assert (np.diff(mean, axis=1) >= 0).all()


def test_a_difference_of_grids_is_paired_over_tasks():
    ts = (2, 8)
    base = pass_at_kt.pass_grid(FIRST_SUCCESS_PN, ts=ts, resamples=100)
    same = pass_at_kt.grid_difference(base, base, resamples=100)
    assert not same.estimate.any()
    assert not same.high.any()
    worse = pass_at_kt.pass_grid(np.where(FIRST_SUCCESS_PN == 1, 0, FIRST_SUCCESS_PN), ts=ts, resamples=100)
    difference = pass_at_kt.grid_difference(base, worse, resamples=100)
    np.testing.assert_allclose(difference.estimate, base.mean.estimate - worse.mean.estimate)
    with pytest.raises(ArgumentError, match="same ks and ts"):
        pass_at_kt.grid_difference(base, pass_at_kt.pass_grid(FIRST_SUCCESS_PN, ts=(2, 9), resamples=10))


def test_turns_are_rounded_up_in_integers():
    assert pass_at_kt.turn_grid(16) == (2, 4, 4, 5, 7, 8, 10, 12, 12, 13, 15, 16)
    assert pass_at_kt.turn_grid(50) == (
        5,
        10,
        13,
        15,
        20,
        25,
        30,
        35,
        38,
        40,
        45,
        50,
    )  # ceil(0.3 * 50) is 16 in float32
    assert pass_at_kt.turn_grid(1) == (1,) * 12


@pytest.mark.parametrize(
    ("n", "ks"),
    [
        (1, (1,)),
        (2, (1,)),
        (3, (1,)),
        (4, (1, 2)),
        (16, (1, 2, 4, 8)),
        (31, (1, 2, 4, 8)),
        (128, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_default_ks_are_powers_of_two_up_to_half_the_samples(n, ks):
    assert pass_at_kt.default_ks(n) == ks


@pytest.mark.parametrize(("k", "t"), [(9, 4), (0, 4), (-1, 4), (2, 0), (2, -1)])
def test_impossible_k_and_t_are_refused(k, t):
    with pytest.raises(ValueError, match="Pass"):
        pass_at_kt.pass_at_kt(FIRST_SUCCESS_PN, k, t)


@pytest.mark.parametrize("first", [[[1.5]], [[-1, 2]], [1, 2], [], [[]], [[None, 1]]])
def test_malformed_success_turns_are_refused(first):
    with pytest.raises(ValueError, match="first success"):
        pass_at_kt.pass_at_kt(first, 1, 1)


def test_an_empty_grid_is_refused():
    with pytest.raises(ArgumentError, match="at least one"):
        pass_at_kt.pass_grid(FIRST_SUCCESS_PN, ts=())
    for function in (pass_at_kt.turn_grid, pass_at_kt.default_ks):
        with pytest.raises(ArgumentError, match="1 or more"):
            function(0)


def test_pass_at_k_refuses_k_beyond_n():
    assert pass_at_kt.pass_at_k(8, 2, 4) == pytest.approx(11 / 14)
    with pytest.raises(ValueError, match="samples"):
        pass_at_kt.pass_at_k(4, 2, 8)
