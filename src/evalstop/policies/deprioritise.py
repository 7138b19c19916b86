"""The alternative the paper argues against: let a declining job run on, behind everyone else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evalstop.core.actions import Action, Preempt, Start, Stop
from evalstop.core.events import CapacityChanged, JobEnded, JobPreempted
from evalstop.core.job import Phase
from evalstop.policies.evalstop import EvalStop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView, Policy
    from evalstop.policies.rules import Rule, Rules

__all__ = ["Deprioritise"]


class Deprioritise:
    """Where EvalStop would stop a job, put it behind all others for good.

    From the alarm on the base no longer knows the job. It runs on GPUs that no other job waits
    for, in order of the alarms, and is preempted as soon as another job waits.

    Args:
        base: any policy.
        rules: as `evalstop.policies.evalstop.EvalStop`.
    """

    def __init__(self, *, base: Policy, rules: Rules | Mapping[str, Rule] | Rule) -> None:
        self._base = base
        self._judge = EvalStop(base=_Nobody(), rules=rules)
        self._behind: dict[str, None] = {}

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Let the base decide on those in good standing; fill up with the others."""
        fresh: list[str] = []
        for action in self._judge.decide(event, view):
            if isinstance(action, Stop) and action.job not in self._behind:
                self._behind[action.job] = None
                fresh.append(action.job)
        actions = [*self._tell_base(event, view)]
        for name in fresh:
            actions += self._base.decide(JobEnded(time=view.now, job=name), view)
        if isinstance(event, JobEnded):
            self._behind.pop(event.job, None)
        return [*actions, *self._place_those_behind(view, actions)]

    def _tell_base(self, event: Event, view: ClusterView) -> Sequence[Action]:
        name: Any = getattr(event, "job", None)
        if not isinstance(name, str) or name not in self._behind:
            return self._base.decide(event, view)
        if isinstance(event, (JobEnded, JobPreempted)):
            # To the base this job is long gone: what it learns is that GPUs came free.
            return self._base.decide(CapacityChanged(time=view.now, gpus=view.total_gpus), view)
        return ()

    def _place_those_behind(self, view: ClusterView, actions: Sequence[Action]) -> Sequence[Action]:
        started = {action.job for action in actions if isinstance(action, Start)}
        free = view.free_gpus - sum(a.gpus for a in actions if isinstance(a, Start))
        behind = [view.jobs[name] for name in self._behind if name in view.jobs]
        running = [job for job in behind if job.phase is Phase.RUNNING]
        gang = self._smallest_that_waits(view, started)
        # Those on their way out count too: their GPUs are meant for the one who waits.
        if gang is not None and gang <= free + sum(job.held_gpus for job in behind):
            return [Preempt(job=job.id) for job in running]
        starts: list[Action] = []
        for job in behind:
            if job.phase is Phase.WAITING and job.gpus <= free:
                free -= job.gpus
                starts.append(Start(job=job.id, gpus=job.gpus))
        return starts

    def _smallest_that_waits(self, view: ClusterView, started: set[str]) -> int | None:
        """Return the smallest gang in good standing without GPUs; None if all have theirs."""
        return min(
            (
                job.gpus
                for job in view.jobs.values()
                if job.phase in {Phase.WAITING, Phase.PREEMPTING}
                and job.id not in self._behind
                and job.id not in started
            ),
            default=None,
        )


class _Nobody:
    """Base of the judge: it places nothing."""

    hears_evals = False

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        del event, view
        return ()
