"""A steep rise is no drop: windows that overlap are not compared."""

from __future__ import annotations

import pytest

from evalstop.config.rules import parse_rule
from evalstop.detectors.monitor import Monitor

RISES = {
    "jump": [0.50, 0.52, 0.70, 0.69, 0.69, 0.70, 0.69],
    "late jump": [0.5] * 8 + [0.9] + [0.895] * 6,
    "steps": [0.1, 0.1, 0.4, 0.39, 0.7, 0.69, 0.9, 0.89, 0.9],
}


@pytest.mark.parametrize("rule", ["default", "scan"])
@pytest.mark.parametrize("scores", RISES.values(), ids=RISES)
def test_a_curve_that_jumps_up_and_stays_is_not_stopped(rule, scores):
    monitor = Monitor(parse_rule(rule), direction="max")
    verdicts = [
        monitor.update(score=score, step=step, stderr=0.01) for step, score in enumerate(scores)
    ]
    assert not any(verdict.alarm for verdict in verdicts)
