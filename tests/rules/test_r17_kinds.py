"""R17: the kind of a decline is said, and each kind can have its own action.

Which kind a curve has is held by tests/unit/core/test_kinds.py.
"""

from __future__ import annotations

import pytest
from rule_cluster import RuleCluster

from evalstop.config.settings import PolicySettings, Settings
from evalstop.policies.modes import Mode

SCORES = (0.50, 0.60, 0.70, 0.80, 0.70, 0.60)
RISING = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
FALLING = (1.0, 2.0, 3.0, 4.0, 2.5, 1.0)
CURVES = {
    "overoptimised": (SCORES, RISING),
    "degraded": (SCORES, FALLING),
    "declining": (SCORES, (None,) * 6),
    "collapsed": ((0.50, 0.52, 0.10, 0.09), (None,) * 4),
}


def run(kind, mode, kinds):
    policy = PolicySettings(
        mode=mode, rule="consecutive:k=2", warn_s=0.0, confirm_s=0.0, backed_s=0.0, kinds=kinds
    )
    cluster = RuleCluster(Settings(policy=policy))
    cluster.submit()
    for step, (score, proxy) in enumerate(zip(*CURVES[kind], strict=True), start=1):
        cluster.report(score, start=step, proxy=proxy)
    return cluster


@pytest.mark.parametrize("other", CURVES)
@pytest.mark.parametrize("kind", CURVES)
def test_a_mode_of_one_kind_is_that_kinds_alone(kind, other):
    cluster = run(kind, Mode.ENFORCE, {other: Mode.ADVISE})
    if kind == other:
        assert cluster.stops() == []
        (advice,) = cluster.advice()
        assert advice.action.verdict.kind.value == kind
    else:
        (stop,) = cluster.stops()
        assert stop.verdict.kind.value == kind


@pytest.mark.parametrize("kind", CURVES)
def test_a_kind_never_goes_further_than_the_mode(kind):
    cluster = run(kind, Mode.OBSERVE, dict.fromkeys(CURVES, Mode.ENFORCE))
    assert cluster.stops() == []
    (advice,) = cluster.advice()
    assert advice.note.startswith("observe")
