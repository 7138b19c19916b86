"""Noise has the size and the memory it says; side signals improve whatever quality does."""

import math

import numpy as np
import pytest

from evalstop.workloads.noise import (
    ar1_noise,
    binomial_sigma,
    proxy_reward,
    reported_stderr,
    training_loss,
)

JOBS = 20_000
TOLERANCE = 5 / math.sqrt(JOBS)  # five standard errors of a mean of unit noise


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_ar1_noise_is_stationary_with_the_correlation_asked_for(rho):
    noise = ar1_noise(np.random.default_rng(3), (JOBS, 6), rho=rho)
    assert noise.mean(axis=0) == pytest.approx(np.zeros(6), abs=TOLERANCE)
    assert noise.std(axis=0) == pytest.approx(np.ones(6), abs=TOLERANCE)
    for lag in (1, 2):
        products = (noise[:, lag:] * noise[:, :-lag]).mean(axis=0)
        assert products == pytest.approx(np.full(6 - lag, rho**lag), abs=TOLERANCE)


def test_binomial_sigma_known_answers():
    assert binomial_sigma(0.5, items=100) == pytest.approx(0.05)
    assert binomial_sigma(1.0, items=98) == pytest.approx(math.sqrt(0.99 * 0.01 / 98))


def test_binomial_sigma_is_never_zero_and_largest_in_the_middle():
    sigma = binomial_sigma(np.array([-0.5, 0.0, 0.5, 1.0, 1.7]), items=50)
    assert (sigma > 0).all()
    assert sigma.argmax() == 2
    assert sigma[0] == sigma[1]


def test_reports_tell_the_truth_two_thirds_of_it_or_nothing():
    sigma = np.array([0.03, 0.06])
    assert reported_stderr(sigma, reported="true") == pytest.approx([0.03, 0.06])
    assert reported_stderr(sigma, reported="understated") == pytest.approx([0.02, 0.04])
    assert reported_stderr(sigma, reported="unknown") is None


def test_proxy_and_loss_improve_through_the_peak_and_beyond():
    x = np.linspace(0.0, 4.0, 100)
    assert (np.diff(proxy_reward(x)) > 0).all()
    assert (np.diff(training_loss(x)) < 0).all()
    assert training_loss(0.0) == pytest.approx(2.0)
