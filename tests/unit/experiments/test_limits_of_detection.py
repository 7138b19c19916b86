"""Equal rates, the restricted limit, and priors fitted to a history."""

import numpy as np
import pytest

from evalstop.core.errors import InputError
from evalstop.core.points import EvalPoint
from evalstop.detectors.bayes import Bayes
from evalstop.detectors.fleet import judge
from evalstop.detectors.scan import Scan
from evalstop.experiments.detection.equal import curves, margins, set_equal
from evalstop.experiments.detection.prior_fit import fit_prior, fitted_to, odds_for
from evalstop.experiments.detection.restricted import never_falling, restricted_limit
from evalstop.experiments.detection.worlds import draw
from evalstop.traces.series import Series


def test_two_dials_on_one_statistic_find_the_same():
    cell = curves("linear", 10, 0.05, runs=400, seed=1)
    own = margins("default", cell)
    found = set_equal(own, own, 0.02, seed=2)
    assert found.share == 1.0
    assert found.found == found.reference
    assert found.intervals["found"][0] <= found.found <= found.intervals["found"][1]


def test_a_better_statistic_has_the_larger_share():
    generator = np.random.default_rng(3)
    healthy, declining = generator.standard_normal(4000), generator.standard_normal(4000)
    sharp, dull = (healthy, declining + 3.0), (healthy, declining + 2.0)
    found = set_equal(dull, sharp, 0.01, seed=4)
    assert found.stopped == pytest.approx(0.01, abs=0.006)
    assert found.interval[1] < 0.75


def test_worlds_without_declines_and_rules_without_scores_are_refused():
    with pytest.raises(InputError, match="no declining runs"):
        curves("flat", 10, 0.05, runs=5, seed=1)
    with pytest.raises(InputError, match="more than scores"):
        margins("loss-plateau", curves("linear", 10, 0.05, runs=5, seed=1))


def test_the_best_rising_fit_never_falls_and_leaves_risers_alone():
    rows = np.array([[0.0, 1.0, 0.5, 0.5], [0.0, 1.0, 2.0, 3.0]])
    assert never_falling(rows).tolist() == [[0.0, 2 / 3, 2 / 3, 2 / 3], [0.0, 1.0, 2.0, 3.0]]


def test_no_rule_beats_the_restricted_limit():
    # Cliffs at high noise: the default, set to stop 1 % of flat curves in ten evaluations.
    (limit,) = restricted_limit("cliff", 10, 0.12, (0.01,), runs=2000, seed=5)
    cell = curves("cliff", 10, 0.12, runs=2000, seed=6)
    flat = np.random.default_rng(7).standard_normal((4000, 10))
    fleet = judge(Scan(), flat, 1.0)
    level = np.quantile((fleet.statistic - fleet.threshold).max(axis=1), 0.99)
    found = (margins("default", cell)[1] >= level).mean()
    assert 0.1 < found <= limit + 0.03
    assert limit < 0.5


def history(scores, stderr):
    return [
        Series(
            trace_id=f"run{run}",
            source="memory",
            metric="score",
            direction="max",
            job_type="rlhf",
            points=tuple(
                EvalPoint(step=step, score=float(score), stderr=stderr)
                for step, score in enumerate(row)
            ),
        )
        for run, row in enumerate(scores)
    ]


def world(seed, runs=60, evals=12, sigma=0.05):
    generator = np.random.default_rng(seed)
    truth = draw("linear", generator, runs, evals)
    noise = sigma * generator.standard_normal((2, runs, evals))
    return truth.healthy + noise[0], truth.declining + noise[1]


@pytest.mark.parametrize("stderr", [0.05, None], ids=["known", "unknown"])
def test_a_fitted_prior_is_near_the_one_that_drew_the_runs(stderr):
    healthy, declining = world(11)
    rule, error = fitted_to(history(healthy, stderr), history(declining, stderr))
    assert rule.horizon == 12
    # Where a run starts is never evaluated: what it reaches is what can be known.
    assert rule.base + rule.gain == pytest.approx(0.7, abs=0.05)
    assert 0.02 <= rule.gain_sd <= 0.15
    assert error == pytest.approx(0.05, rel=0.25)
    assert (rule.stderr == 0.0) is (stderr is not None)


def test_a_fitted_prior_finds_nearly_what_the_true_one_finds():
    healthy, declining = world(13, runs=100, evals=10, sigma=0.12)
    rule, _ = fitted_to(history(healthy, 0.12), history(declining, 0.12))
    cell = curves("linear", 10, 0.12, runs=1000, seed=14)

    def tops(believer):
        found = [
            judge(believer, scores, 0.12).statistic for scores in (cell.healthy, cell.declining)
        ]
        return tuple(statistic.max(axis=1) for statistic in found)

    true = Bayes(
        horizon=10, shape="linear", base_sd=0.058, gain_sd=0.058, declining=0.6, misfit=0.0
    )
    assert set_equal(tops(rule), tops(true), 0.02, seed=15).share >= 0.75
    assert set_equal(margins("default", cell), tops(true), 0.02, seed=15).share < 0.75


def test_the_odds_hold_alpha_on_fresh_runs_of_the_prior():
    rule = Bayes(horizon=12, base=0.3, base_sd=0.06, gain=0.4, gain_sd=0.06, misfit=0.0)
    healthy, declining = world(12, runs=3000)
    level = np.log(odds_for(rule, 0.05, alpha=0.05, seed=1))

    def highest(scores):
        tops = [rule.log_odds(scores[:, :n], np.full(n, 0.0025)) for n in range(1, 13)]
        return np.max(tops, axis=0)

    assert (highest(healthy) >= level).mean() == pytest.approx(0.05, abs=0.02)
    assert (highest(declining) >= level).mean() > 0.8


def test_runs_that_do_not_rise_give_no_prior():
    generator = np.random.default_rng(16)
    falling = 0.5 - 0.3 * (np.arange(12) > 5) + 0.02 * generator.standard_normal((20, 12))
    with pytest.raises(InputError, match="do not rise"):
        fitted_to(history(falling, 0.02), [])


def test_few_runs_give_no_prior(tmp_path):
    path = tmp_path / "runs.csv"
    rows = [f"r{run},{step},{0.5},0.01" for run in range(3) for step in range(6)]
    path.write_text("\n".join(["trace_id,step,score,stderr", *rows]) + "\n")
    found = fit_prior([path], direction="max")
    assert found.spec == ""
    assert "10 healthy runs" in found.note
