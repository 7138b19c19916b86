"""Scores of any size: a perplexity of exp(loss) grows to 1e300 before it is infinite."""

import csv
import math
import warnings

import numpy as np
import pytest

from evalstop.config.rules import RULES, parse_rule
from evalstop.core.points import State
from evalstop.detectors.monitor import Monitor
from evalstop.traces.replay import replay

JUDGES = [name for name in RULES if name not in {"stop-at", "loss-plateau"}]

RISING = [0.50, 0.55, 0.58, 0.61, 0.60, 0.62]

CURVES = {
    "explodes": [*RISING, 1e99, -1e99, 1e98, -1e99, -1e99],
    "beyond": [*RISING, -1e160, -1e304, -1.7e308, -1e200, -1e308],
    "whole range": [1.7e308, -1.7e308] * 8,
    "largest": [1e100, -1e100] * 8,
    "tiny": [1e-320 * i for i in range(20)],
    "level": [1e100] * 20,
}


@pytest.mark.parametrize("rule", JUDGES)
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("stderr", [None, 0.0, 1e-300, 1e-9, 1e100, 1.7e308])
def test_a_verdict_is_of_finite_numbers_whatever_is_scored(rule, curve, stderr):
    monitor = Monitor(parse_rule(rule), direction="max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, score in enumerate(CURVES[curve]):
            verdict = monitor.update(score=score, step=step, stderr=stderr)
            assert math.isfinite(verdict.statistic)
            assert math.isfinite(verdict.threshold)


@pytest.mark.parametrize("rule", JUDGES)
def test_scores_that_no_rule_can_reckon_with_are_as_good_as_infinite(rule):
    huge, infinite = (Monitor(parse_rule(rule), direction="min") for _ in range(2))
    for step, (score, instead) in enumerate(
        [
            (2.5, 2.5),
            (2.4, 2.4),
            (2.3, 2.3),
            (1e160, math.inf),
            (1e304, math.inf),
            (1e101, math.inf),
        ]
    ):
        seen = huge.update(score=score, step=step)
        assert seen == infinite.update(score=instead, step=step)
    assert seen.state is State.DIVERGED
    assert seen.best_score == pytest.approx(2.3)


def test_the_default_rule_goes_on_after_an_explosion():
    monitor = Monitor(parse_rule("default"), direction="max")
    scores = [*RISING, -1e160, *RISING[::-1], 0.1, 0.1, 0.1, 0.1]
    states = [
        monitor.update(score=score, step=step, stderr=0.01).state
        for step, score in enumerate(scores)
    ]
    assert states[-1] is State.ALARM


def test_many_curves_at_once_leave_out_what_one_at_a_time_does():
    scores = np.array([[*RISING, 1e160, 0.6, 0.2, 0.2], [*RISING, math.nan, 0.6, 0.2, 0.2]])
    for rule in ("default", "consecutive:k=2", "bayes"):
        fleet = Monitor(parse_rule(rule), direction="max").update_many(scores, stderr=0.01)
        assert fleet.statistic[0].tolist() == fleet.statistic[1].tolist()
        assert fleet.best[0].tolist() == fleet.best[1].tolist()


def test_replay_leaves_them_out_and_says_so(tmp_path):
    path = tmp_path / "runs.csv"
    rows = [("a", step, score) for step, score in enumerate([*RISING, 1e160, 0.6, 0.59])]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("trace_id", "step", "score"), *rows])
    result = replay(path, parse_rule("default"), direction="max").results[0]
    assert result.best_score == 0.62
    assert [point.step for point in result.skipped_points] == [6]
