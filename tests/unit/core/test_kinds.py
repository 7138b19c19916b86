"""R17, R19: which way did it go wrong?"""

import pytest

from evalstop.core.points import Kind, State
from evalstop.detectors.monitor import Monitor
from evalstop.detectors.scan import Scan

SCORES = [0.40, 0.50, 0.60, 0.55, 0.50, 0.46, 0.42]


def last(scores, proxies=None, *, stderr=0.01):
    monitor = Monitor(Scan(), direction="max")
    for step, score in enumerate(scores):
        proxy = None if proxies is None else proxies[step]
        verdict = monitor.update(score=score, step=step, stderr=stderr, proxy=proxy)
    return verdict


@pytest.mark.parametrize(
    ("proxies", "kind"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], Kind.OVEROPTIMISED),
        ([1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0], Kind.OVEROPTIMISED),
        ([1.0, 2.0, 3.0, 3.1, 2.9, 3.0, 3.05], Kind.OVEROPTIMISED),
        ([1.0, 2.0, 3.0, 2.0, 1.0, 0.0, -1.0], Kind.DEGRADED),
        (None, Kind.DECLINING),
        ([1.0, 2.0, 3.0, None, None, None, None], Kind.DECLINING),
    ],
)
def test_the_proxy_tells_over_optimised_from_degraded(proxies, kind):
    verdict = last(SCORES, proxies)
    assert verdict.alarm
    assert verdict.kind is kind


def test_a_collapse_below_the_start_has_a_kind_of_its_own():
    proxies = [1.0, 2.0, 3.0, 4.0, 5.0]
    one = last([0.40, 0.50, 0.60, 0.10], proxies[:4])
    two = last([0.40, 0.50, 0.60, 0.10, 0.11], proxies)
    assert one.kind is Kind.OVEROPTIMISED
    assert two.alarm
    assert two.kind is Kind.COLLAPSED
    assert "collapsed" in two.reason


def test_no_kind_without_a_suspicion():
    verdict = last([0.4, 0.5, 0.6, 0.6, 0.6])
    assert verdict.state is State.OK
    assert verdict.kind is Kind.NONE


@pytest.mark.parametrize("direction", ["max", "min"])
def test_the_proxy_keeps_its_own_direction(direction):
    sign = 1 if direction == "max" else -1
    monitor = Monitor(Scan(), direction=direction)
    for step, score in enumerate(SCORES):
        verdict = monitor.update(score=sign * score, step=step, stderr=0.01, proxy=float(step))
    assert verdict.kind is Kind.OVEROPTIMISED
