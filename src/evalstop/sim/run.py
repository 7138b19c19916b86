"""One job as the simulator moves it: what it has done, and when its next thing happens."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING, final

from evalstop.core.ahead import Ahead
from evalstop.core.events import LossReported
from evalstop.core.job import Outcome
from evalstop.core.points import EvalPoint
from evalstop.schedulers.goodput import efficiency, throughput

if TYPE_CHECKING:
    from evalstop.workloads.job import SimJob

__all__ = ["Run", "Stage"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_COMPLETED = Outcome.COMPLETED


class Stage(Enum):
    """Where a simulated job stands."""

    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    SAVING = auto()
    FINISHED = auto()


_WAITING = Stage.WAITING
_STARTING = Stage.STARTING
_RUNNING = Stage.RUNNING
_SAVING = Stage.SAVING
_FINISHED = Stage.FINISHED


@final
class Run:
    """Progress of one job. Service and offsets in seconds on the submitted gang.

    While it trains, the instant of an evaluation at offset m (or of the end) is
    ``origin + pace * m``: nothing is added up, so nothing drifts.

    Attributes:
        cursor: index of the first evaluation that was not told yet.
        quiet: index of the first that the policy may answer, as far as it foresaw; -1 where it
            foresaw nothing.
        fails: whether it crashes before it is through.
        due: index of the evaluation, or number of them if it is the end, that the job's entry
            in the heap stands for; those from ``cursor`` on up to it are quiet.
        ticket: that of its entry; 0 for a job that does not train.
    """

    __slots__ = (
        "ahead",
        "asked",
        "begun_at",
        "cursor",
        "delivered",
        "due",
        "evals",
        "fails",
        "gpu_seconds",
        "heard",
        "held_gpus",
        "held_since",
        "id",
        "index",
        "job",
        "last_s",
        "origin",
        "outcome",
        "pace",
        "quiet",
        "rate",
        "service_s",
        "speed",
        "stage",
        "started_before",
        "ticket",
    )

    def __init__(self, index: int, job: SimJob) -> None:
        self.index = index
        self.id = job.spec.id
        self.job = job
        fails_at_s, offsets = job.fails_at_s, job.eval_offsets
        self.last_s = last = job.duration_s
        self.fails = False
        if fails_at_s is not None and fails_at_s < last:
            self.fails = True
            self.last_s = last = fails_at_s
        self.evals = 0
        if offsets:
            self.evals = len(offsets) if offsets[-1] <= last else bisect_right(offsets, last)
        self.asked: dict[int, int] | None = None
        self.cursor = self.quiet = self.due = self.ticket = self.delivered = self.held_gpus = 0
        self.heard = -1
        self.stage = _WAITING
        self.started_before = False
        self.service_s = self.gpu_seconds = self.held_since = 0.0

    def hold(self, now: float, gpus: int, speed: float) -> float:
        """Take GPUs of this speed: a start was ordered. Return the service per second on them."""
        job = self.job
        self.rate = rate = speed if gpus == job.spec.gpus else job.rate(gpus) * speed
        self.speed = speed
        self.stage = _STARTING
        self.held_gpus = gpus
        self.held_since = now
        return rate

    def begin(self, now: float) -> None:
        """Train from here on."""
        self.stage = _RUNNING
        if not self.started_before:
            self.started_before = True
            if self.evals:
                job = self.job
                self.ahead = Ahead(
                    steps=job.eval_steps,
                    scores=job.scores,
                    stderrs=job.stderrs,
                    proxies=job.proxies,
                )
        self.begun_at = now
        self.pace = pace = 1.0 / self.rate
        self.origin = now - pace * self.service_s

    def time_of(self, index: int) -> float:
        """Return when an evaluation is made, or, past the last one, when the job ends."""
        mark = self.job.eval_offsets[index] if index < self.evals else self.last_s
        at = self.origin + self.pace * mark
        # A mark that was reached in the instant of a preemption may round to just before the
        # resumption: time never goes back.
        begun_at = self.begun_at
        return at if at >= begun_at else begun_at  # noqa: FURB136 -- a call costs more than the rest

    def next_due(self) -> float:
        """Choose what happens next that may matter, and return when.

        That is the first evaluation that is not quiet, or the end. One made in the very instant
        in which the job set out is waited for too: things that happened before the job did may
        come after it in the order of equal times.
        """
        offsets, cursor, begun_at = self.job.eval_offsets, self.cursor, self.begun_at
        if cursor < self.quiet and self.origin + self.pace * offsets[cursor] > begun_at:
            cursor = self.quiet
        self.due = cursor
        at = self.origin + self.pace * (offsets[cursor] if cursor < self.evals else self.last_s)
        # As in time_of, in place.
        return at if at >= begun_at else begun_at  # noqa: FURB136 -- as there

    def made_before(self, time: float, *, inclusive: bool) -> int:
        """Return the index of the first evaluation that was not made before a time.

        Args:
            time: now.
            inclusive: whether those made at that very time count as made.
        """
        search = bisect_right if inclusive else bisect_left
        origin, pace = self.origin, self.pace
        return search(
            self.job.eval_offsets,
            time,
            self.cursor,
            self.due,
            key=lambda mark: origin + pace * mark,
        )

    def at_its_end(self, now: float) -> bool:
        """Return whether a job that trains ends now by itself, in the order of things."""
        return self.cursor >= self.evals and self.origin + self.pace * self.last_s <= now

    def pause(self, now: float) -> None:
        """Stop training and save."""
        self.ticket = 0
        self._settle(now)
        self.stage = _SAVING

    def finish(self, now: float, outcome: Outcome) -> None:
        """Stop training for good."""
        self.ticket = 0
        if self.stage is _RUNNING:
            if outcome is _COMPLETED:
                self.service_s = self.last_s  # adding up pieces of service would lose some
            else:
                self._settle(now)
        self.stage = _FINISHED
        self.outcome = outcome

    def release(self, now: float) -> None:
        """Give the GPUs back and wait again, unless the job has finished meanwhile."""
        self.gpu_seconds += (now - self.held_since) * self.held_gpus
        self.held_gpus = 0
        if self.stage is not _FINISHED:
            self.stage = _WAITING

    def resize(self, now: float, gpus: int) -> None:
        """Go on with another number of GPUs, at the rate of the job's goodput."""
        self._settle(now)
        self.gpu_seconds += (now - self.held_since) * self.held_gpus
        self.held_gpus = gpus
        self.held_since = now
        self._go(now, gpus)

    def index_of_step(self, step: int) -> int:
        """Return which evaluation is of this step, -1 if none is."""
        try:
            return self.job.eval_steps.index(step)
        except ValueError:
            return -1

    def replicate(self, index: int) -> EvalPoint | None:
        """Return one more evaluation of a checkpoint; None if it is not made, or none is left."""
        again = self.job.replicates
        if again is None or not 0 <= index < self.cursor:
            return None
        if self.asked is None:
            self.asked = {}
        number = self.asked.get(index, 0)
        if number >= len(again[index]) or math.isnan(again[index][number]):
            return None
        self.asked[index] = number + 1
        return EvalPoint(
            step=self.job.eval_steps[index],
            score=again[index][number],
            stderr=None if self.job.stderrs is None else self.job.stderrs[index],
            eval_id=f"extra-{number + 1}",
        )

    def loss(self, time: float, step: int, loss: float) -> LossReported:
        """Return a loss as the trainer reports it, with its speed where that is modelled."""
        noise = self.job.noise_scale
        if noise is None:
            return LossReported(time=time, job=self.id, step=step, loss=loss)
        return LossReported(
            time=time,
            job=self.id,
            step=step,
            loss=loss,
            throughput=throughput(self.held_gpus, self.job.sync_share),
            efficiency=efficiency(self.held_gpus, noise),
        )

    def _go(self, now: float, gpus: int) -> None:
        self.begun_at = now
        self.rate = self.job.rate(gpus) * self.speed
        self.pace = 1.0 / self.rate
        self.origin = now - self.pace * self.service_s

    def _settle(self, now: float) -> None:
        """Count the service since the job began to train, or was resized."""
        self.service_s += (now - self.begun_at) * self.rate
