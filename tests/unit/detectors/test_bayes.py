"""Rule `bayes`: what a stated prior buys, what its guarantee is, and when it says nothing."""

import math

import numpy as np
import pytest
from msgspec import structs

from evalstop.config.rules import parse_rule
from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State
from evalstop.detectors.bayes import Bayes
from evalstop.detectors.fleet import judge
from evalstop.detectors.prior import LONGEST, beliefs
from evalstop.experiments.detection.equal import curves, margins, odds, set_equal
from evalstop.metrics.stats import wilson_interval

# The prior of the benchmark's worlds: uniform ranges as mean and standard deviation.
WORLD = {"base": 0.3, "base_sd": 0.0577, "gain": 0.4, "gain_sd": 0.0577, "misfit": 0.0}


def drawn(rule, fate, *, runs, evals, sigma, seed):
    """Runs of the rule's own prior, and the evaluation of each one's peak."""
    generator = np.random.default_rng(seed)
    believed = beliefs(rule.prior)
    half = slice(0, believed.falling) if fate == "falling" else slice(believed.falling, None)
    shares = believed.shares[:evals, half].T
    chosen = generator.integers(0, shares.shape[0], runs)
    base = rule.base + rule.base_sd * generator.standard_normal((runs, 1))
    gain = rule.gain + rule.gain_sd * generator.standard_normal((runs, 1))
    return base + gain * shares[chosen] + sigma * generator.standard_normal((runs, evals))


@pytest.mark.parametrize(("shape", "sigma"), [("linear", 0.12), ("cliff", 0.12), ("gao", 0.05)])
def test_finds_nine_tenths_of_what_the_reference_finds(shape, sigma):
    # Both set to 1 % of this cell's healthy runs on one half, measured on the other.
    cell = curves(shape, 10, sigma, runs=3000, seed=31)
    spec = f"bayes:shape={shape},declining=0.6," + ",".join(f"{k}={v}" for k, v in WORLD.items())
    found = set_equal(margins(spec, cell), odds(cell, seed=32, particles=250), 0.01, seed=33)
    assert found.share >= 0.9
    assert found.interval[0] <= found.share <= found.interval[1]


@pytest.mark.parametrize("horizon", [0, 10])
def test_healthy_runs_of_the_prior_are_stopped_at_most_at_alpha(horizon):
    # Ville's inequality: at any time, without a threshold that was ever tuned.
    rule = Bayes(horizon=horizon, alpha=0.05, **WORLD)
    scores = drawn(rule, "healthy", runs=2000, evals=10, sigma=0.08, seed=41)
    stopped = int((judge(rule, scores, 0.08).stop >= 0).sum())
    assert wilson_interval(stopped, 2000)[0] <= 0.05


def test_odds_of_nineteen_mean_that_of_the_stopped_ones_95_in_100_decline():
    rule = Bayes(horizon=12, odds=19.0, declining=0.5, **WORLD)
    good, bad = (
        judge(rule, drawn(rule, fate, runs=1500, evals=12, sigma=0.08, seed=seed), 0.08).stop >= 0
        for fate, seed in (("healthy", 51), ("falling", 52))
    )
    assert bad.mean() > 0.3
    low, _ = wilson_interval(int(bad.sum()), int(bad.sum() + good.sum()))
    assert low >= 0.93


def test_the_guarantee_rests_on_the_prior():
    # Healthy runs that flatten are stopped by a rule that was told they rise to their end.
    flatten = Bayes(horizon=10, **WORLD)
    rise = structs.replace(flatten, healthy_low=1.0, healthy_high=2.0)
    scores = drawn(flatten, "healthy", runs=500, evals=10, sigma=0.05, seed=61)
    told_right, told_wrong = ((judge(r, scores, 0.05).stop >= 0).mean() for r in (flatten, rise))
    assert told_right <= 0.02
    assert told_wrong > 0.05


@pytest.mark.parametrize("errors", ["equal", "unequal", "missing"])
def test_batch_and_stream_agree(errors):
    generator = np.random.default_rng(5)
    scores = 0.6 + 0.1 * generator.standard_normal((5, 20))
    stderr = {
        "equal": np.full(scores.shape, 0.05),
        "unequal": generator.uniform(0.03, 0.08, scores.shape),
        "missing": np.full(scores.shape, np.nan),
    }[errors]
    rule = Bayes()
    fleet = judge(rule, scores, stderr)
    for run in range(scores.shape[0]):
        state = rule.start()
        for step, score in enumerate(scores[run].tolist()):
            error = float(stderr[run, step])
            point = EvalPoint(step=step, score=score, stderr=None if math.isnan(error) else error)
            state, verdict = rule.step(state, point)
            assert verdict.statistic == pytest.approx(
                fleet.statistic[run, step], rel=1e-6, abs=1e-6
            )
            assert verdict.alarm == fleet.alarm[run, step]


def test_a_stated_error_stands_in_for_one_that_is_not_reported():
    scores = [0.5, 0.6, 0.65, 0.64, 0.45]
    one, other = Bayes(stderr=0.02), Bayes()
    states = [one.start(), other.start()]
    for step, score in enumerate(scores):
        states[0], with_stated = one.step(states[0], EvalPoint(step=step, score=score))
        point = EvalPoint(step=step, score=score, stderr=0.02)
        states[1], with_reported = other.step(states[1], point)
    assert with_stated == with_reported
    assert with_stated.state is State.ALARM


def test_says_nothing_beyond_the_curves_of_its_prior():
    rule = Bayes()
    state = rule.start()
    for step in range(LONGEST + 5):
        state, verdict = rule.step(state, EvalPoint(step=step, score=0.5, stderr=0.01))
    assert verdict.state is State.OK
    assert "beyond" in verdict.note


def test_a_spec_states_the_prior():
    rule = parse_rule("bayes:gain=12,gain_sd=3,base=40,base_sd=5,shape=cliff,horizon=10")
    assert rule.for_type("rlhf") == Bayes(
        gain=12.0, gain_sd=3.0, base=40.0, base_sd=5.0, shape="cliff", horizon=10
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"peak_low": 0.0}, "peak_low"),
        ({"peak_high": 1.0}, "peak_high < 1"),
        ({"drop_low": 0.9}, "drop_low <= drop_high"),
        ({"gain": 0.0}, "gain > 0"),
        ({"base_sd": 0.0}, "base_sd > 0"),
        ({"odds": -1.0}, "odds >= 0"),
        ({"horizon": LONGEST + 1}, "horizon <="),
        ({"declining": 1.0}, "declining"),
        ({"alpha": 0.4}, "alpha"),
        ({"shape": "tent"}, "shape"),
    ],
)
def test_refuses_a_prior_that_is_none(changed, words):
    with pytest.raises(SpecError, match=words):
        Bayes(**changed)
