"""Intervals: textbook answers, properties, coverage, and what too little data gives."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evalstop.metrics.stats import (
    bootstrap_interval,
    holm_adjusted,
    paired_difference,
    relative_change_interval,
    t_interval,
    wilson_interval,
)


def test_wilson_known_answer():
    # Newcombe (1998), Statistics in Medicine 17: 81 of 263, score method: 0.2553 to 0.3662
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)


@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_proportion_and_stays_in_the_unit_interval(case):
    successes, trials = case
    low, high = wilson_interval(successes, trials)
    if trials == 0:
        assert math.isnan(low)
        assert math.isnan(high)
    else:
        assert -1e-12 <= low <= successes / trials + 1e-12
        assert successes / trials - 1e-12 <= high <= 1 + 1e-12


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_scipy(case):
    expected = stats.binomtest(*case).proportion_ci(0.95, method="wilson")
    assert wilson_interval(*case) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.lists(st.integers(-100, 100), min_size=2, max_size=20).filter(lambda v: len(set(v)) > 1))
def test_paired_p_value_agrees_with_scipy(values):
    expected = stats.ttest_1samp(values, 0.0).pvalue
    assert paired_difference(values, [0.0] * len(values)).p_value == pytest.approx(expected)


def test_t_interval_known_answer():
    # mean 3, sd sqrt(2.5), n 5, t(0.975, 4) = 2.7764
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert t_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=1e-4)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [math.inf, 2.0]])
def test_fewer_than_two_numbers_have_no_interval(values):
    for interval in (t_interval(values), bootstrap_interval(values, rng=0)):
        assert interval == pytest.approx((math.nan, math.nan), nan_ok=True)


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_bootstrap_is_near_the_t_interval_for_a_normal_sample(method):
    sample = np.random.default_rng(1).normal(5.0, 2.0, 200)
    assert bootstrap_interval(sample, rng=7, method=method) == pytest.approx(
        t_interval(sample), abs=0.05
    )


def test_bootstrap_repeats_with_a_seed_and_takes_a_generator():
    sample = [1.0, 4.0, 2.0, 8.0]
    assert bootstrap_interval(sample, rng=3) == bootstrap_interval(
        sample, rng=np.random.default_rng(3)
    )


def test_bootstrap_of_equal_values_is_that_value():
    assert bootstrap_interval([2.0, 2.0, 2.0], rng=0) == (2.0, 2.0)


def test_bootstrap_takes_another_statistic():
    low, high = bootstrap_interval([1.0, 2.0, 3.0, 100.0], rng=0, statistic=np.median)
    assert 1.0 <= low <= 2.5 <= high <= 100.0


def test_paired_difference_known_answer():
    # differences 1, 2, 3: mean 2, sd 1, t = 2 sqrt(3) on 2 degrees: p = 0.0742
    test = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert test.mean == pytest.approx(2.0)
    assert test.p_value == pytest.approx(0.0742, abs=5e-5)
    assert test.effect_size == pytest.approx(2.0)
    assert test.pairs == 3


@pytest.mark.parametrize(
    ("treated", "control", "mean", "p_value", "pairs"),
    [
        ([], [], math.nan, math.nan, 0),
        ([1.0], [0.5], 0.5, math.nan, 1),
        ([1.0, math.nan], [0.5, 1.0], 0.5, math.nan, 1),
        ([1.0, 2.0], [1.0, 2.0], 0.0, 1.0, 2),
        ([2.0, 3.0], [1.0, 2.0], 1.0, 0.0, 2),
    ],
)
def test_paired_difference_edge_cases(treated, control, mean, p_value, pairs):
    test = paired_difference(treated, control)
    assert (test.mean, test.p_value) == pytest.approx((mean, p_value), nan_ok=True)
    assert math.isnan(test.effect_size)
    assert test.pairs == pairs


def test_relative_change_leaves_out_what_cannot_be_divided():
    mean, (low, high) = relative_change_interval(
        [90.0, 80.0, 1.0, math.nan], [100.0, 100.0, 0.0, 3.0]
    )
    assert mean == pytest.approx(-0.15)
    assert low < -0.15 < high


def test_relative_change_of_nothing_is_nan():
    mean, interval = relative_change_interval([], [])
    assert math.isnan(mean)
    assert interval == pytest.approx((math.nan, math.nan), nan_ok=True)


def test_holm_known_answer():
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_leaves_nan_and_takes_nothing():
    assert holm_adjusted([]) == []
    assert holm_adjusted([math.nan, 0.6]) == pytest.approx([math.nan, 0.6], nan_ok=True)


@given(st.lists(st.floats(0, 1), max_size=10))
def test_holm_never_lowers_a_p_value_nor_their_order(p_values):
    adjusted = holm_adjusted(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(adjusted)[order]) >= 0)


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for found in rng.binomial(100, 0.03, size=2000):
        low, high = wilson_interval(int(found), 100)
        covered += low <= 0.03 <= high
    assert 0.93 <= covered / 2000 <= 0.99  # sd of the share: 0.005; the exact coverage is 0.97


def test_importing_the_metrics_does_not_import_scipy_stats():
    code = "import sys, evalstop.metrics.summary; sys.exit('scipy.stats' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        ).returncode
        == 0
    )
