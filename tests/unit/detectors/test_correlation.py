"""Autocorrelation, read off the curve and off a known error."""

import math

import numpy as np
import pytest

from evalstop.detectors.scatter import LARGEST_CORRELATION, START, correlation, spread


def after(scores, variance):
    scatter = START
    for score in scores:
        scatter = spread(scatter, score, variance)
    return scatter


def noise(rho, runs, evals, seed=1):
    generator = np.random.default_rng(seed)
    draws = generator.standard_normal((runs, evals))
    for index in range(1, evals):
        draws[:, index] = rho * draws[:, index - 1] + math.sqrt(1 - rho * rho) * draws[:, index]
    return draws


@pytest.mark.parametrize("rho", [0.15, 0.3])
def test_both_readings_tell_it_on_level_curves(rho):
    curves = noise(rho, 60, 800)
    for variance in (0.0, 1.0):
        found = [correlation(after(curve, 1.0), variance) for curve in curves]
        assert np.mean(found) == pytest.approx(rho, abs=0.03)  # less SLACK / sqrt(800) = 0.014


def test_a_known_error_tells_a_slow_decline_from_correlation():
    decline = -0.4 * np.arange(40) + noise(0.0, 60, 40)
    by_ratio = np.mean([correlation(after(curve, 1.0)) for curve in decline])
    by_both = np.mean([correlation(after(curve, 1.0), 1.0) for curve in decline])
    assert by_both < by_ratio


def test_steps_that_the_error_does_not_allow_say_nothing():
    wild = 3.0 * noise(0.0, 20, 40)
    for curve in wild:
        scatter = after(curve, 1.0)
        assert correlation(scatter, 1.0) == correlation(scatter)


def test_it_lies_between_nothing_and_a_half_and_needs_twelve_scores():
    for curve in [*noise(0.9, 20, 60), *noise(-0.9, 20, 60), np.arange(60.0)]:
        for variance in (0.0, 1.0):
            assert 0.0 <= correlation(after(curve, 1.0), variance) <= LARGEST_CORRELATION
            assert correlation(after(curve[:11], 1.0), variance) == 0.0
