"""Families of curves: closed-form answers, known turning points, one shape before the peak."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.workloads import curves

PEAKS = st.floats(0.05, 0.95)
POWERS = st.floats(1.0, 2.0)
FINE = np.linspace(0.0, 1.0, 2001)


@pytest.mark.parametrize(
    ("ratio", "share"),
    [(1.25, 0.993), (1.5, 0.976), (2, 0.924), (3, 0.781), (4, 0.614), (6, 0.255)],
)
def test_rl_law_at_known_kl_ratios(ratio, share):
    # from the closed form, R/R* at KL/KL* (research/users.md, D2)
    peak = curves.peak_for_kl_ratio(ratio, power=1.5)
    assert curves.gao_rl(1.0, peak=peak, power=1.5) == pytest.approx(share, abs=6e-4)


@pytest.mark.parametrize(("ratio", "share"), [(1.25, 0.986), (2, 0.828), (3, 0.464), (4, 0.0)])
def test_best_of_n_law_at_known_kl_ratios(ratio, share):
    peak = curves.peak_for_kl_ratio(ratio, power=1.0)
    assert curves.best_of_n(1.0, peak=peak, power=1.0) == pytest.approx(share, abs=6e-4)


@given(POWERS)
def test_rl_has_lost_all_gain_at_e_squared_times_the_peak_kl(power):
    peak = curves.peak_for_kl_ratio(math.e**2, power=power)
    assert curves.gao_rl(1.0, peak=peak, power=power) == pytest.approx(0.0, abs=1e-9)


@given(st.floats(0.01, 1.0), POWERS)
def test_a_run_that_spends_less_kl_than_its_peak_needs_ends_before_it(ratio, power):
    assert curves.peak_for_kl_ratio(ratio, power=power) >= 1.0


DECLINING = {
    "gao_rl": lambda t, peak, power: curves.gao_rl(t, peak=peak, power=power),
    "best_of_n": lambda t, peak, power: curves.best_of_n(t, peak=peak, power=power),
    "linear_decline": lambda t, peak, power: curves.linear_decline(
        t, peak=peak, drop=0.5, power=power
    ),
    "cliff": lambda t, peak, power: curves.cliff(t, peak=peak, drop=0.5, power=power),
    "collapse": lambda t, peak, power: curves.collapse(t, peak=peak, depth=0.5, power=power),
}


@pytest.mark.parametrize("family", DECLINING)
@given(peak=PEAKS, power=POWERS)
def test_a_declining_family_rises_to_one_at_its_peak_and_falls_after_it(family, peak, power):
    curve = DECLINING[family]
    assert curve(np.array(peak), peak, power) == pytest.approx(1.0)
    values = curve(FINE, peak, power)
    assert values[0] == pytest.approx(0.0)
    before, after = values[peak >= FINE], values[peak < FINE]
    assert (np.diff(before) >= -1e-12).all()
    assert (np.diff(after) <= 1e-12).all()
    assert after[-1] < 1.0


@pytest.mark.parametrize("family", DECLINING)
@given(peak=PEAKS, power=POWERS)
def test_healthy_and_hacking_are_one_curve_before_the_peak(family, peak, power):
    """In units of its own peak, a healthy run is the start of a hacking one."""
    curve = DECLINING[family]
    share_of_way = np.linspace(0.0, 1.0, 50)
    hacking = curve(share_of_way * peak, peak, power)
    healthy = curve(share_of_way / 1.0, 1.0, power)
    assert hacking == pytest.approx(healthy, abs=1e-9)


@pytest.mark.parametrize("family", ["linear_decline", "cliff", "collapse"])
def test_every_declining_family_rises_as_the_rl_law_does(family):
    rising = np.linspace(0.0, 0.4, 50)
    expected = curves.gao_rl(rising, peak=0.4, power=1.3)
    assert DECLINING[family](rising, 0.4, 1.3) == pytest.approx(expected)


def test_linear_decline_loses_its_drop_at_the_end_and_half_of_it_half_way():
    values = curves.linear_decline(np.array([0.6, 0.8, 1.0]), peak=0.6, drop=0.4)
    assert values == pytest.approx([1.0, 0.8, 0.6])


def test_a_cliff_falls_once_and_stays():
    values = curves.cliff(np.array([0.5, 0.51, 0.75, 1.0]), peak=0.5, drop=0.3)
    assert values == pytest.approx([1.0, 0.7, 0.7, 0.7])


def test_a_collapse_ends_far_below_its_start():
    assert curves.collapse(1.0, peak=0.4, depth=0.5) == pytest.approx(-0.5, abs=1e-4)


@pytest.mark.parametrize(
    "curve",
    [
        curves.saturating,
        curves.slow_rise,
        curves.plateau,
        curves.late_bloomer,
        lambda t: curves.plateau(t, knee=0.0),
    ],
)
def test_healthy_families_never_fall(curve):
    values = curve(FINE)
    assert (np.diff(values) >= 0).all()
    assert values[-1] == pytest.approx(1.0, abs=0.02)


def test_a_plateau_without_a_rise_is_flat_throughout():
    assert (curves.plateau(FINE, knee=0.0) == 1.0).all()


def test_a_dip_is_real_and_recovers():
    values = curves.dip(FINE, place=0.5, depth=0.3, width=0.2, time_constant=0.1)
    at = {round(t, 4): v for t, v in zip(FINE.tolist(), values.tolist(), strict=True)}
    smooth = curves.saturating(FINE, time_constant=0.1)
    assert at[0.5] == pytest.approx(smooth[1000] - 0.3)
    outside = np.abs(FINE - 0.5) >= 0.1
    assert values[outside] == pytest.approx(smooth[outside])


def test_a_restart_falls_at_once_and_is_overtaken():
    values = curves.restart(FINE, place=0.5, depth=0.3, time_constant=0.2)
    assert values[1001] - values[1000] == pytest.approx(-0.3, abs=0.01)
    assert values[-1] > values[1000]


def test_a_random_walk_has_the_mean_and_spread_it_says():
    normals = np.random.default_rng(2).standard_normal((20_000, 10))
    progress = np.broadcast_to(np.arange(1, 11) / 10, normals.shape)
    ends = curves.random_walk(progress, normals, roughness=0.3)[:, -1]
    assert ends.mean() == pytest.approx(1.0, abs=4 * 0.3 / math.sqrt(20_000))
    assert ends.std() == pytest.approx(0.3, rel=0.03)


def test_curves_broadcast_over_jobs_and_evals():
    peak = np.array([[0.3], [0.6], [2.0]])
    values = curves.gao_rl(np.arange(1, 9) / 8, peak=peak, power=1.5)
    assert values.shape == (3, 8)
    assert values.argmax(axis=1).tolist() == [1, 4, 7]
