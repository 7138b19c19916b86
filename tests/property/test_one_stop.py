"""No job is stopped twice (R09): between its submission and its end there is one order at most.

Any facts in any order, those that cannot follow included; restarts between any two of them, from
what the log holds; people's orders amid the policy's.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.settings import Settings, make_policy
from evalstop.core.actions import Stop
from evalstop.core.cluster import ClusterState
from evalstop.core.errors import IllegalEventError
from evalstop.core.events import (
    CheckpointSaved,
    EvalReported,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobSpec, Outcome
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint
from evalstop.ports import Entry
from evalstop.service.ledger import Ledger
from evalstop.service.recover import Recovered, decide, promise, recover

JOBS = ("a", "b")
START = Recovered(sequence=0, time=float("-inf"), changed=0, timers=[])
POLICIES = {
    "bare": {"warn_s": 0, "backed_s": 0, "confirm_s": 0},
    "warned": {"warn_s": 5, "backed_s": 0, "confirm_s": 0},
    "backed": {"warn_s": 0, "backed_s": 5, "confirm_s": 0},
    "confirmed": {"warn_s": 2, "backed_s": 5, "confirm_s": 5},
    "budget": {"warn_s": 0, "stops_per_tenant_hour": 1},
}

names = st.sampled_from(JOBS)
FACTS = st.one_of(
    st.builds(lambda job: ("submit", job), names),
    st.builds(lambda job: ("start", job), names),
    st.builds(lambda job, step, fall: ("eval", job, step, fall), names, st.integers(0, 9),
              st.sampled_from([0.1, -0.1, 0.0])),
    st.builds(lambda job: ("fall", job), names),
    st.builds(lambda job, step: ("save", job, step), names, st.integers(0, 9)),
    st.builds(lambda job: ("preempt", job), names),
    st.builds(lambda job, how: ("end", job, how), names, st.sampled_from(Outcome)),
    st.builds(lambda word, job: ("order", word, job),
              st.sampled_from(["stop", "approve", "snooze", "undo", "freeze", "unfreeze"]), names),
    st.just(("timers",)),
    st.just(("restart",)),
)  # fmt: skip


class Driver:
    """The controller's turn without its threads: apply, decide, promise, log; restart at will."""

    def __init__(self, policy):
        self.settings = msgspec.convert(
            {"policy": {"mode": "enforce", "rule": "consecutive:k=1", **policy}}, Settings
        )
        self.log: list[Entry] = []
        self.now = 0.0
        self.step = 10
        self.restart()

    def restart(self):
        self.kernel = Kernel(ClusterState(8), make_policy(self.settings))
        self.ledger = Ledger()
        self.timers = recover(self.log, self.kernel, self.ledger, START).timers

    def take(self, event):
        try:
            self.kernel.state.apply(event)
        except IllegalEventError:
            return
        actions = promise(self.kernel, decide(self.kernel, event))
        entry = Entry(sequence=len(self.log) + 1, event=event, actions=actions)
        self.log.append(entry)
        self.ledger.note(entry, self.kernel.state.view.jobs)
        self.timers += [
            (action.time, action.token) for action in actions if hasattr(action, "token")
        ]

    def play(self, fact):
        self.now += 1.0
        match fact:
            case ("restart",):
                self.restart()
            case ("timers",):
                due, self.timers = self.timers, []
                for time, token in due:
                    self.now = max(self.now, time)
                    self.take(TimerFired(time=self.now, token=token))
            case ("fall", job):
                for score in (0.9, 0.5, 0.1):
                    self.step += 1
                    self.take(self.report(job, self.step, score))
            case _:
                self.take(self.event(fact))

    def report(self, job, step, score):
        point = EvalPoint(step=step, score=score, checkpoint=f"c{step}")
        return EvalReported(time=self.now, job=job, point=point)

    def event(self, fact):  # noqa: PLR0911 -- one arm a kind of fact
        now, (kind, *words) = self.now, fact
        if kind == "order":
            command, job = words
            if command == "undo" and job not in self.kernel.state.ended:
                command = "approve"  # at the door, nothing else is undone
            target = "" if "freeze" in command else job
            return OperatorCommanded(time=now, command=command, actor="ann", job=target)
        job, *more = words
        match kind:
            case "submit":
                return JobSubmitted(time=now, job=JobSpec(id=job, gpus=1, job_type="rlhf"))
            case "start":
                return JobStarted(time=now, job=job, gpus=1)
            case "save":
                return CheckpointSaved(time=now, job=job, step=more[0], checkpoint=f"c{more[0]}")
            case "preempt":
                return JobPreempted(time=now, job=job)
            case "end":
                return JobEnded(time=now, job=job, outcome=more[0])
            case _:
                return self.report(job, more[0], 0.5 - more[1] * more[0])


def lives(log):
    """Return the stops of each job between a submission and the end that follows."""
    open_, counts = {}, []
    for entry in log:
        event = entry.event
        if isinstance(event, JobSubmitted):
            open_[event.job.id] = []
            counts.append(open_[event.job.id])
        for action in entry.actions:
            if isinstance(action, Stop):
                assert action.job in open_, "a job was stopped that nobody submitted"
                open_[action.job].append(entry.sequence)
        if isinstance(event, JobEnded):
            del open_[event.job]
    return counts


@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(FACTS, max_size=40))
def test_between_its_submission_and_its_end_a_job_is_stopped_once_at_most(policy, facts):
    driver = Driver(POLICIES[policy])
    for job in JOBS:
        driver.play(("submit", job))
    for fact in facts:
        driver.play(fact)
    for stops in lives(driver.log):
        assert len(stops) <= 1
    driver.kernel.state.check()
    sent = [key for record in driver.ledger.live() for key in record.pending]
    assert len(sent) == len(set(sent))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_falling_job_is_stopped_and_what_comes_after_stops_it_no_more(policy):
    driver = Driver(POLICIES[policy])
    driver.play(("submit", "a"))
    facts = [("start", "a"), ("fall", "a"), ("timers",), ("fall", "a"), ("restart",), ("fall", "a"),
             ("preempt", "a"), ("start", "a"), ("order", "stop", "a"), ("timers",), ("fall", "a"),
             ("restart",), ("order", "approve", "a"), ("fall", "a")]  # fmt: skip
    for fact in facts:
        driver.play(fact)
    assert [len(stops) for stops in lives(driver.log)] == [1]
