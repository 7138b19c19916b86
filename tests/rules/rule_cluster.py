"""A kernel driven by hand under the guards that `evalstop.toml` makes: pure, no clock."""

from __future__ import annotations

from evalstop.config.settings import Settings, make_policy
from evalstop.core.actions import Advise, RequestEval, RequestSave, Start, Stop, WakeAt
from evalstop.core.cluster import ClusterState
from evalstop.core.events import (
    CheckpointSaved,
    EvalReported,
    JobEnded,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint

FALLING = (0.5, 0.9, 0.8, 0.7)
"""What `consecutive:k=2` stops at the fourth evaluation; best is the second."""


class RuleCluster:
    """Starts come true at once; timers fire when `wait` passes them; all actions are kept."""

    def __init__(self, settings: Settings, gpus: int = 64) -> None:
        self.policy = make_policy(settings)
        self.kernel = Kernel(ClusterState(gpus), self.policy)
        self.now = 0.0
        self.timers: list[WakeAt] = []
        self.actions: list[object] = []

    def tell(self, event):
        actions = list(self.kernel.handle(event))
        self.actions += actions
        self.timers += [action for action in actions if isinstance(action, WakeAt)]
        for action in list(actions):
            if isinstance(action, Start):
                actions += self.tell(JobStarted(time=self.now, job=action.job, gpus=action.gpus))
        return actions

    def submit(self, name="a", **fields):
        spec = JobSpec(id=name, **({"job_type": "rlhf"} | fields))
        return self.tell(JobSubmitted(time=self.now, job=spec))

    def report(self, *scores, name="a", start=1, after=10.0, checkpoint=True, **fields):
        actions = []
        for step, score in enumerate(scores, start=start):
            self.wait(after)
            named = f"c{step}" if checkpoint else None
            point = EvalPoint(step=step, score=score, checkpoint=named, **fields)
            actions += self.tell(EvalReported(time=self.now, job=name, point=point))
        return actions

    def saved(self, step, name="a"):
        event = CheckpointSaved(time=self.now, job=name, step=step, checkpoint=f"c{step}")
        return self.tell(event)

    def end(self, name="a", **fields):
        return self.tell(JobEnded(time=self.now, job=name, **fields))

    def order(self, command, job="a", actor="ann", **fields):
        event = OperatorCommanded(time=self.now, command=command, actor=actor, job=job, **fields)
        return self.tell(event)

    def wait(self, seconds):
        """Let time pass, and every timer that is due fire at its time."""
        until = self.now + seconds
        fired = []
        while due := sorted((t for t in self.timers if t.time <= until), key=lambda t: t.time):
            self.timers.remove(due[0])
            self.now = max(self.now, due[0].time)
            fired += self.tell(TimerFired(time=self.now, token=due[0].token))
        self.now = until
        return fired

    def stops(self):
        return [action for action in self.actions if isinstance(action, Stop)]

    def advice(self):
        return [action for action in self.actions if isinstance(action, Advise)]

    def requests(self):
        kinds = (RequestEval, RequestSave)
        return [action for action in self.actions if isinstance(action, kinds)]
