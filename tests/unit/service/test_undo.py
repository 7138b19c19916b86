"""A stop that is undone: the job runs again, wherever the stop met it; its reports count."""

from __future__ import annotations

import pytest

from evalstop.core.events import JobSubmitted, OperatorCommanded


class Undoable:
    """A platform whose backend notes which attempts it was told to start."""

    def __init__(self, platform):
        self.platform = platform
        self.attempts = []
        start = platform.backend.start

        def noted(order):
            self.attempts.append(order.attempt)
            start(order)

        platform.backend.start = noted

    def decline(self, job):
        for step in (1, 2, 3):
            self.platform.report(job, step, -0.1 * step)

    def undo(self, job):
        def build(situation):
            spec = situation.ledger.jobs[job].spec
            order = OperatorCommanded(time=situation.now, command="undo", actor="ann", job=job)
            return [order, JobSubmitted(time=situation.now, job=spec)]

        self.platform.ask(build)


@pytest.fixture
def undoable(platform):
    platform.look()
    return Undoable(platform)


def test_an_attempt_that_was_stopped_before_it_was_seen_is_not_used_again(undoable):
    platform = undoable.platform
    platform.submit("a")
    assert platform.phase("a") == "starting"
    undoable.decline("a")
    platform.backend._runs.clear()  # a backend that lists no run which never began
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
    undoable.undo("a")
    platform.look()
    assert platform.phase("a") == "running"
    assert undoable.attempts == [1, 2]


@pytest.mark.parametrize("seen", [False, True])
def test_the_run_before_an_undo_says_nothing_of_the_one_after(undoable, seen):
    platform = undoable.platform
    platform.submit("a")
    if seen:
        platform.look()
    undoable.decline("a")
    old = dict(platform.backend._runs)
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
    platform.submit("first", gpus=2)  # so that the job waits when it comes back
    undoable.undo("a")
    platform.backend._runs |= old  # still listed: nobody has forgotten it yet
    platform.look()
    platform.look()
    assert platform.phase("a") == "waiting"
    platform.backend.finish("first")
    for _ in range(3):
        platform.look()
    assert platform.phase("a") == "running"
    assert undoable.attempts == [1, 1, 2]


def test_an_undone_job_is_stopped_again_by_the_attempt_it_runs_as(undoable):
    platform = undoable.platform
    platform.submit("a")
    undoable.decline("a")
    platform.backend._runs.clear()
    platform.look()
    undoable.undo("a")
    platform.look()
    stopped = []
    stop = platform.backend.stop
    platform.backend.stop = lambda order: (stopped.append(order.attempt), stop(order))
    for step in (11, 12, 13):
        platform.report("a", step, -0.1 * step)
    platform.look()
    assert platform.phase("a") == "stopped_by_policy"
    assert stopped == [2]
    assert platform.controller.ledger.jobs["a"].starts == 1
