"""Many curves at once: the same verdicts as one at a time."""

import math

import numpy as np
import pytest

from evalstop.core.errors import InputError
from evalstop.core.points import EvalPoint
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.fleet import judge
from evalstop.detectors.monitor import Monitor
from evalstop.detectors.scan import Scan


def table():
    generator = np.random.default_rng(2)
    scores = generator.standard_normal((12, 30))
    scores[3:6, 15:] -= 6.0  # cliffs
    scores[1, 20:] = np.nan  # shorter
    scores[4, 7] = np.nan  # an evaluation that gave no number
    scores[5, 0] = np.nan
    return scores


@pytest.mark.parametrize("rule", [Scan(), Scan(alpha=0.2), ConsecutiveDecline(k=2)])
@pytest.mark.parametrize("direction", ["max", "min"])
@pytest.mark.parametrize("stderr", [None, 1.0, "some"])
def test_a_table_gives_the_verdicts_of_its_rows(rule, direction, stderr):
    scores = table()
    errors = np.full(scores.shape, 1.0)
    if stderr is None:
        errors[:] = np.nan
    elif stderr == "some":
        errors[::2, ::3] = np.nan
    fleet = Monitor(rule, direction=direction).update_many(scores, stderr=errors)
    assert fleet.alarm.any() or direction == "min"
    for run in range(scores.shape[0]):
        monitor = Monitor(rule, direction=direction)
        for step in range(scores.shape[1]):
            score, error = scores[run, step], errors[run, step]
            if math.isnan(score):
                continue
            verdict = monitor.update(
                score=score, step=step, stderr=None if math.isnan(error) else error
            )
            assert fleet.alarm[run, step] == verdict.alarm
            assert fleet.statistic[run, step] == pytest.approx(verdict.statistic, abs=1e-9)
            assert fleet.threshold[run, step] == pytest.approx(verdict.threshold)
            assert fleet.best[run, step] == verdict.best_step


@pytest.mark.parametrize("stderr", [1e-2, 1e-4, 1e-6, None])
def test_evidence_beyond_all_bounds_is_the_same(stderr):
    # The exponential of such evidence is infinite; other rows are ordinary ones.
    generator = np.random.default_rng(4)
    scores = 0.5 + 0.01 * generator.standard_normal((6, 80))
    scores[::2] += np.linspace(0.0, 0.9, 80)
    scores[::2, 60:] -= 0.2
    rule = Scan()
    found = judge(rule, scores, stderr).statistic
    for run in range(scores.shape[0]):
        state = rule.start()
        for step in range(scores.shape[1]):
            point = EvalPoint(step=step, score=scores[run, step], stderr=stderr)
            state, verdict = rule.step(state, point)
            assert found[run, step] == pytest.approx(verdict.statistic, abs=1e-9)


def test_the_first_alarm_is_the_stop():
    fleet = Monitor(Scan(), direction="max").update_many(
        [[0.2, 0.6, 0.6, 0.2, 0.2], [0.5, 0.6, 0.6, 0.2, 0.2], [0.5, 0.6, 0.6, 0.6, 0.6]],
        stderr=0.02,
    )
    assert fleet.stop.tolist() == [3, 4, -1]  # the second falls below its start: R19


@pytest.mark.parametrize(
    ("scores", "stderr", "words"),
    [([0.1, 0.2], None, "runs by evaluations"), ([[0.1, 0.2]], [1.0, 2.0, 3.0], "does not fit")],
)
def test_says_what_does_not_fit(scores, stderr, words):
    with pytest.raises(InputError, match=words):
        Monitor(Scan(), direction="max").update_many(scores, stderr=stderr)


@pytest.mark.parametrize("stderr", [None, 0.1])
def test_no_runs_are_no_trouble(stderr):
    fleet = Monitor(Scan(), direction="max").update_many(np.zeros((0, 5)), stderr=stderr)
    assert fleet.stop.tolist() == []


@pytest.mark.parametrize("stderr", [None, 0.1])
def test_runs_without_evaluations_are_no_trouble(stderr):
    monitor = Monitor(Scan(), direction="max")
    assert monitor.update_many(np.full((3, 5), np.nan), stderr=stderr).stop.tolist() == [-1] * 3
    assert monitor.update_many(np.zeros((3, 1)), stderr=stderr).stop.tolist() == [-1] * 3
