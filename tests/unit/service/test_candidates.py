"""Which checkpoints the evaluator should score, also after a restart amid a question."""

from __future__ import annotations

import pytest

from evalstop.config.rules import parse_rule
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guards import Confirmed
from evalstop.ports import Pin
from evalstop.schedulers.fifo import Fifo
from evalstop.service.candidates import Candidates

SPEC = {"labels": {"metric": "acc", "direction": "max"}}


class Pins:
    """Custody that holds the checkpoints of steps 1 to 3."""

    def pins(self, job):
        return [Pin(job=job, step=step, name=f"c-{step}", path=f"/c-{step}") for step in (1, 2, 3)]


@pytest.fixture
def confirmed(make_platform):
    class Asking(make_platform):
        def policy(self):
            guard = Confirmed(limit_s=600.0)
            return EvalStop(base=Fifo(), rules=parse_rule("consecutive:k=2"), guard=guard)

    platform = Asking()
    platform.look()
    platform.submit("a", **SPEC)
    platform.look()
    return platform


def _wanted(platform):
    return [(one.step, one.repeat) for one in Candidates(platform.controller, Pins())()]


def test_each_checkpoint_is_scored_once(confirmed):
    assert _wanted(confirmed) == [(1, 0), (2, 0), (3, 0)]


def test_a_confirming_evaluation_that_was_asked_for_is_not_lost_at_a_restart(confirmed):
    for step in (1, 2, 3):
        confirmed.report("a", step, -0.1 * step)
    asked = [(1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]
    assert _wanted(confirmed) == asked
    confirmed.restart()
    assert confirmed.phase("a") == "running"
    assert _wanted(confirmed) == asked


def test_nothing_is_scored_of_a_job_that_does_not_run(confirmed):
    confirmed.backend.finish("a")
    confirmed.look()
    assert _wanted(confirmed) == []
