"""LossAware, after SLAQ: GPUs go where the training loss is predicted to fall most.

Model of a job's loss after k reports: L(k) = p + q / (k + 1), the O(1/k) convergence of first
order methods that SLAQ assumes, fitted by least squares with weights decay^(n - k), so that old
losses count less. With the seconds of service a report takes (attained / reports), one more
epoch of service makes m = epoch / seconds more reports, and the predicted fall is

    q (1 / (k + 1) - 1 / (k + 1 + m)) / (largest loss so far - smallest so far),

never negative, per GPU of the gang. Dividing by the range makes jobs with different losses
comparable (SLAQ, section 4.1). A job with fewer than two losses comes first, in order of
submission: its fall is unknown, and early falls are the steepest.

SLAQ divides cores among jobs that can run on any number; here gangs are whole, so that its
greedy step becomes: walk the jobs in order of the predicted fall per GPU, give each whole gang
that fits its GPUs. Running jobs are preempted at the ends of epochs only; in between, free GPUs
go to those who wait. It looks at training losses and nothing else, which is why it keeps feeding
jobs whose quality falls while their loss does.

Zhang, Stafman, Or, Freedman, SLAQ: quality-driven scheduling for distributed machine learning,
SoCC 2017. Simplified: no exponential family for second-order methods, no per-core allocation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Preempt, Start, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobPreempted,
    JobStarted,
    JobSubmitted,
    LossReported,
    TimerFired,
)
from evalstop.core.job import JobView, Phase
from evalstop.core.settings import is_number
from evalstop.schedulers.waiting import Entry, WaitingJobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["LossAware", "LossCurve"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_PREEMPTING = Phase.PREEMPTING
_RUNNING = Phase.RUNNING
_WAITING = Phase.WAITING

_TOKEN = "loss-aware epoch"  # noqa: S105 -- names a timer

_FEWEST = 2
"""Losses a fit needs."""


class LossCurve:
    """Weighted least squares of L(k) = p + q / (k + 1), one report at a time, in O(1).

    Args:
        decay: weight of a loss relative to the next one, in (0, 1].
    """

    __slots__ = ("_decay", "_w", "_wx", "_wxx", "_wxy", "_wy", "highest", "lowest", "reports")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._w = self._wx = self._wxx = self._wy = self._wxy = 0.0
        self.reports = 0
        self.highest = -math.inf
        self.lowest = math.inf

    def hear(self, loss: float) -> None:
        """Take in the next loss; one that is not finite counts as a report and nothing else."""
        x = 1.0 / (self.reports + 1)
        self.reports += 1
        if not math.isfinite(loss):
            return
        self.highest = max(self.highest, loss)
        self.lowest = min(self.lowest, loss)
        keep = self._decay
        self._w = keep * self._w + 1.0
        self._wx = keep * self._wx + x
        self._wxx = keep * self._wxx + x * x
        self._wy = keep * self._wy + loss
        self._wxy = keep * self._wxy + x * loss

    def predicted_fall(self, more: float) -> float:
        """Return the fall over ``more`` reports as a share of the range so far, >= 0.

        Infinite while fewer than two losses are known, 0 if they are all alike.
        """
        if self.reports < _FEWEST or self.highest < self.lowest:
            return math.inf
        spread = self._w * self._wxx - self._wx * self._wx
        extent = self.highest - self.lowest
        if spread <= 0.0 or extent <= 0.0:
            return 0.0
        slope = (self._w * self._wxy - self._wx * self._wy) / spread
        next_x = 1.0 / (self.reports + 1)
        return max(0.0, slope * (next_x - 1.0 / (self.reports + 1 + more)) / extent)


class LossAware:
    """Largest predicted fall of the training loss per GPU first; preemptive at epochs.

    Args:
        epoch_s: seconds between two looks at running jobs.
        decay: weight of a loss relative to the next one in the fit, in (0, 1].

    Cost: O(running log running + sizes log n) an epoch, O(1) a loss.

    Raises:
        SpecError: if a setting is out of range.
    """

    hears_evals = False

    def __init__(self, *, epoch_s: float = 600.0, decay: float = 0.9) -> None:
        known = is_number(epoch_s) and is_number(decay)
        if not (known and epoch_s > 0 and 0 < decay <= 1):
            msg = (
                "loss-aware: expected epoch_s > 0 and decay in (0, 1], but got "
                f"epoch_s={epoch_s}, decay={decay}"
            )
            raise SpecError(msg)
        self._epoch_s = epoch_s
        self._decay = decay
        self._waiting = WaitingJobs()
        self._curves: dict[str, LossCurve] = {}
        self._tickets: dict[str, int] = {}
        self._running: dict[str, None] = {}
        self._leaving: set[str] = set()  # preempted by us, and not yet a fact
        self._next_ticket = 0
        self._asleep_until = -math.inf  # a timer is under way until then

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Give free GPUs away at once, and all of them anew when an epoch ends."""
        if type(event) is LossReported:
            curve = self._curves.get(event.job)
            if curve is not None:
                curve.hear(event.loss)
            return ()
        if type(event) is TimerFired:
            return self._end_epoch(view) if event.token == _TOKEN else ()
        if type(event) is JobStarted:
            self._waiting.discard(event.job)
            self._running[event.job] = None
            return ()
        if type(event) is JobSubmitted:
            self._tickets[event.job.id] = self._next_ticket
            self._next_ticket += 1
            self._curves[event.job.id] = LossCurve(self._decay)
            self._wait(view.jobs[event.job.id], view.now)
        elif type(event) is JobPreempted:
            self._running.pop(event.job, None)
            self._leaving.discard(event.job)
            job = view.jobs.get(event.job)
            if job is not None and job.phase is _WAITING:
                self._wait(job, view.now)
        elif type(event) is JobEnded:
            self._waiting.discard(event.job)
            self._running.pop(event.job, None)
            self._leaving.discard(event.job)
            self._curves.pop(event.job, None)
            self._tickets.pop(event.job, None)
        elif type(event) is not CapacityChanged:
            return ()
        return self._with_timer(self._fill(view), view)

    def predicted_fall(self, job: JobView, now: float) -> float:
        """Return the predicted fall over the next epoch per GPU, as a share of the range so far."""
        curve = self._curves[job.id]
        if curve.reports < _FEWEST:
            return math.inf
        seconds = job.attained_s(now) / curve.reports
        more = self._epoch_s / seconds if seconds > 0 else math.inf
        return curve.predicted_fall(more) / job.gpus

    def _entry(self, job: JobView, now: float) -> Entry:
        return -self.predicted_fall(job, now), self._tickets[job.id], job.id, job.gpus

    def _wait(self, job: JobView, now: float) -> None:
        self._waiting.add(self._entry(job, now))

    def _fill(self, view: ClusterView) -> list[Action]:
        """Start who fits beside those who run, once all who were preempted have left."""
        if self._leaving:
            return []  # their GPUs were taken for gangs that need several of them
        free = view.free_gpus
        starts: list[Action] = []
        while free and (found := self._waiting.first(free)):
            free -= self._take(found, view, starts)
        return starts

    def _end_epoch(self, view: ClusterView) -> Sequence[Action]:
        """Divide all GPUs anew."""
        if not len(self._waiting) or self._leaving:
            return self._with_timer([], view)
        now, jobs = view.now, view.jobs
        spare = view.free_gpus
        placed: list[tuple[Entry, JobView]] = []
        for name in self._running:
            job = jobs[name]
            if job.phase is _RUNNING or job.phase is _PREEMPTING:
                spare += job.held_gpus
                placed.append((self._entry(job, now), job))
        placed.sort(key=_first)
        chosen: list[Action] = []
        preempts: list[Action] = []
        for entry, job in placed:
            while spare and (found := self._waiting.first(spare)) and found < entry:
                spare -= self._take(found, view, chosen)
            if job.held_gpus <= spare:
                spare -= job.held_gpus
            elif job.phase is _RUNNING:
                preempts.append(Preempt(job=job.id))
                self._leaving.add(job.id)
        while spare and (found := self._waiting.first(spare)):
            spare -= self._take(found, view, chosen)
        return self._with_timer([*preempts, *self._startable(chosen, view)], view)

    def _startable(self, chosen: list[Action], view: ClusterView) -> list[Action]:
        """Return the starts whose GPUs are free now; the others wait for the preemptions."""
        free = view.free_gpus
        starts: list[Action] = []
        for action in chosen:
            assert isinstance(action, Start)
            if action.gpus <= free:
                free -= action.gpus
                starts.append(action)
            else:
                self._wait(view.jobs[action.job], view.now)
        return starts

    def _take(self, found: Entry, view: ClusterView, chosen: list[Action]) -> int:
        _, _, name, size = found
        self._waiting.discard(name)
        job = view.jobs.get(name)
        if job is None or job.phase is not _WAITING:
            return 0
        chosen.append(Start(job=name, gpus=size))
        return size

    def _with_timer(self, actions: list[Action], view: ClusterView) -> Sequence[Action]:
        """Ask for the end of the epoch while jobs run and others wait for their GPUs."""
        if self._asleep_until <= view.now and len(self._waiting) and self._running:
            self._asleep_until = view.now + self._epoch_s
            actions.append(WakeAt(time=self._asleep_until, token=_TOKEN))
        return actions


def _first(placed: tuple[Entry, JobView]) -> Entry:
    return placed[0]
