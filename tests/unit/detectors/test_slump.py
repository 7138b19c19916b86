"""Falls from the very start, where no error is known."""

import math

import numpy as np
import pytest

from evalstop.core.points import EvalPoint, State
from evalstop.detectors.fleet import judge
from evalstop.detectors.scan import Scan
from evalstop.detectors.slump import (
    LAST_SLUMP,
    WEIGHT,
    mixed_with_slump,
    mixed_with_slump_one,
)


def verdict_on(scores):
    rule = Scan()
    state = rule.start()
    for step, score in enumerate(scores):
        state, verdict = rule.step(state, EvalPoint(step=step, score=score))
    return verdict


def bayes_factor(scores, level):
    """By a least-squares fit, as Liang et al. write it, for drops only."""
    count = len(scores)
    fall = np.maximum(np.arange(count) - level + 1, 0) / (count - level)
    shape = -np.sqrt(fall)
    design = np.column_stack([np.ones(count), shape])
    (_, size), (left,), _, _ = np.linalg.lstsq(design, scores, rcond=None)
    share = 1.0 - left / ((scores - scores.mean()) ** 2).sum()
    spread = 16.0 * ((shape - shape.mean()) ** 2).sum()
    if size <= 0:
        return 0.0
    return (
        2.0
        * (1.0 + spread) ** ((count - 2) / 2)
        / (1.0 + spread * (1.0 - share)) ** ((count - 1) / 2)
    )


@pytest.mark.parametrize("count", range(6, LAST_SLUMP + 1))
def test_evidence_is_the_mean_bayes_factor_of_three_falls(count):
    generator = np.random.default_rng(count)
    scores = 0.5 - 0.03 * np.arange(count) + 0.05 * generator.standard_normal((40, count))
    statistic = generator.standard_normal(40)
    wanted = [
        math.log(
            (1.0 - WEIGHT) * math.exp(own)
            + WEIGHT * np.mean([bayes_factor(curve, level) for level in (1, 2, 3)])
        )
        for own, curve in zip(statistic, scores, strict=True)
    ]
    assert mixed_with_slump(statistic, scores) == pytest.approx(wanted, rel=1e-9)
    one_by_one = [
        mixed_with_slump_one(own, curve) for own, curve in zip(statistic, scores, strict=True)
    ]
    assert one_by_one == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("count", range(6, LAST_SLUMP + 1))
def test_no_rise_is_evidence(count):
    generator = np.random.default_rng(count)
    rises = np.cumsum(np.abs(generator.standard_normal((200, count))), axis=1)
    level = np.zeros((1, count))
    for curves in (rises, level):
        found = mixed_with_slump(np.zeros(len(curves)), curves)
        assert found == pytest.approx(math.log(1.0 - WEIGHT))
        assert mixed_with_slump_one(0.0, curves[0]) == pytest.approx(math.log(1.0 - WEIGHT))


def test_a_curve_that_falls_from_its_start_is_stopped_before_its_eleventh_evaluation():
    generator = np.random.default_rng(3)
    noise = 0.05 * generator.standard_normal((400, 10))
    falling = 0.7 - 0.3 * np.sqrt(np.linspace(0.0, 1.0, 10)) + noise
    stopped = sum(verdict_on(curve).state is State.ALARM for curve in falling)
    assert stopped > 200  # at the tenth evaluation; the bank alone would stop 91
    rising = sum(verdict_on(curve).state is State.ALARM for curve in -falling)
    assert rising == 0


def test_scale_and_level_change_nothing():
    curve = np.array([4.4, 4.5, 5.5, 5.4, 5.1, 5.6, 6.0, 6.1, 6.4])
    verdicts = [verdict_on(-curve), verdict_on(-1e6 * curve), verdict_on(100.0 - curve)]
    assert verdicts[0].statistic > 0
    assert [v.statistic for v in verdicts] == pytest.approx([verdicts[0].statistic] * 3, rel=1e-6)


def test_a_reported_error_leaves_it_out():
    curve = 0.5 - 0.01 * np.arange(9)
    known = judge(Scan(), [curve], 1.0)  # an error that dwarfs the fall
    assert not known.alarm.any()
    assert judge(Scan(), [curve + 0.0001 * np.cos(np.arange(9.0))]).alarm.any()
