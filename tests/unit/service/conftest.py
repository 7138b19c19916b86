"""A whole platform in memory, one step at a time."""

from __future__ import annotations

import msgspec
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.events import EvalReported, JobSubmitted, OperatorCommanded
from evalstop.core.job import JobSpec
from evalstop.core.points import EvalPoint
from evalstop.policies.evalstop import EvalStop
from evalstop.ports import Launch
from evalstop.schedulers.fifo import Fifo
from evalstop.service.carry_out import LAUNCH, BackendCarryOut
from evalstop.service.controller import Controller
from evalstop.service.ledger import report_identity
from evalstop.store.memory import MemoryStore
from evalstop.testing import FakeBackend, FakeClock


class Platform:
    """Store, backend and clock outlive the controller; `restart` is a kill -9 and a start."""

    def __init__(self, *, gpus=2, rule="consecutive:k=2"):
        self.rule = rule
        self.store = MemoryStore()
        self.documents = self.store
        self.backend = FakeBackend(gpus=gpus)
        self.clock = FakeClock()
        self.restart()

    def policy(self):
        return EvalStop(base=Fifo(), rules=parse_rule(self.rule))

    def restart(self):
        self.carry_out = BackendCarryOut(self.backend, self.documents, inline=True)
        self.controller = Controller(
            store=self.store, policy=self.policy(), clock=self.clock, carry_out=self.carry_out
        )
        self.controller.resume()

    def ask(self, build):
        future = self.controller.ask(build)
        self.controller.settle()
        return future.result(timeout=0)

    def submit(self, job, *, gpus=1, command=("last",), **spec):
        data = msgspec.json.encode(Launch(command=command, grace_s=0.05))
        self.documents.put(LAUNCH, job, data)
        spec = JobSpec(id=job, gpus=gpus, job_type="rlhf", **spec)

        def build(situation):
            known = job in situation.ledger.jobs
            return [] if known else [JobSubmitted(time=situation.now, job=spec)]

        return self.ask(build)

    def report(self, job, step, score, **fields):
        point = EvalPoint(step=step, score=score, **fields)

        def build(situation):
            if report_identity("", point) in situation.ledger.jobs[job].reports:
                return []
            return [EvalReported(time=situation.now, job=job, point=point)]

        return self.ask(build)

    def command(self, command, job="", actor="ops"):
        return self.ask(
            lambda s: [OperatorCommanded(time=s.now, command=command, actor=actor, job=job)]
        )

    def look(self):
        future = self.carry_out.look()
        self.controller.settle()
        entries = future.result(timeout=0)
        self.carry_out.tidy()
        self.controller.kernel.state.check()
        self.clock.advance(1.0)
        return entries

    def phase(self, job):
        """Phase or outcome; with a controller's thread beside, none in the middle of a fact."""
        view = self.controller.kernel.state.view.jobs.get(job)
        if view is not None:
            return view.phase.value
        outcome = self.controller.ledger.jobs[job].outcome
        return outcome and outcome.value

    def picture(self):
        """Everything that a restart must bring back."""
        state = self.controller.kernel.state
        jobs = {name: repr(job) for name, job in state.view.jobs.items()}
        records = {
            name: (
                r.starts,
                r.launched,
                sorted(r.pending),
                r.saved,
                r.outcome,
                r.stop_key,
                repr(r.best),
            )
            for name, r in self.controller.ledger.jobs.items()
        }
        watches = {
            name: repr((w.verdict, w.history.reports))
            for name, w in self.controller.kernel.policy.watches.items()
        }
        return (
            state.view.now,
            state.view.free_gpus,
            state.view.total_gpus,
            jobs,
            dict(state.ended),
            records,
            watches,
            list(self.controller._timers),
        )


@pytest.fixture
def platform():
    return Platform()


@pytest.fixture
def make_platform():
    return Platform
