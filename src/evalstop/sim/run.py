"""One job as the simulator moves it: what it has done, and when its next thing happens."""

from __future__ import annotations

import math
from enum import Enum, auto
from itertools import repeat
from typing import TYPE_CHECKING

from evalstop.core.job import Outcome
from evalstop.core.points import NOT_FINITE, EvalPoint

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


class Run:
    """Progress of one job. Service and offsets in seconds on the submitted gang.

    While it trains, the instant of mark i (an evaluation, or the end) is
    ``origin + pace * marks[i]``: nothing is added up, so nothing drifts.
    """

    __slots__ = (
        "asked",
        "begun_at",
        "cursor",
        "delivered",
        "evals",
        "generation",
        "gpu_seconds",
        "heard",
        "held_gpus",
        "held_since",
        "id",
        "index",
        "job",
        "last_s",
        "marks",
        "origin",
        "outcome",
        "pace",
        "points",
        "rate",
        "service_s",
        "speed",
        "stage",
        "started_before",
    )

    def __init__(self, index: int, job: SimJob) -> None:
        self.index = index
        self.id = job.spec.id
        self.job = job
        last = job.duration_s
        if job.fails_at_s is not None and job.fails_at_s < last:
            last = job.fails_at_s
        self.last_s = last
        marks = [offset for offset in job.eval_offsets if offset <= last]
        self.evals = len(marks)
        marks.append(last)
        self.marks = marks
        self.points: list[EvalPoint] = []
        self.asked: dict[int, int] = {}
        self.cursor = 0
        self.delivered = 0
        self.heard = -1
        self.generation = 0
        self.stage = Stage.WAITING
        self.outcome = _COMPLETED
        self.started_before = False
        self.service_s = 0.0
        self.gpu_seconds = 0.0
        self.begun_at = self.origin = 0.0
        self.rate = self.pace = self.speed = 1.0
        self.held_gpus = 0
        self.held_since = 0.0

    def hold(self, now: float, gpus: int, speed: float) -> None:
        """Take GPUs of this speed: a start was ordered."""
        self.speed = speed
        self.stage = Stage.STARTING
        self.held_gpus = gpus
        self.held_since = now

    def begin(self, now: float) -> None:
        """Train from here on."""
        self.stage = Stage.RUNNING
        if not self.started_before:
            self.started_before = True
            self.points = _points(self.job, self.evals)
        self._go(now, self.held_gpus)

    def next_time(self) -> float:
        """Return when the next evaluation is made, or else when the job ends."""
        at = self.origin + self.pace * self.marks[self.cursor]
        # A mark that was reached in the instant of a preemption may round to just before the
        # resumption: time never goes back.
        return max(at, self.begun_at)

    def pause(self, now: float) -> None:
        """Stop training and save."""
        self._settle(now)
        self.stage = Stage.SAVING

    def finish(self, now: float, outcome: Outcome) -> None:
        """Stop training for good."""
        if self.stage is Stage.RUNNING:
            self._settle(now)
            if outcome is _COMPLETED:
                self.service_s = self.last_s  # what adding up pieces of service loses
        self.stage = Stage.FINISHED
        self.outcome = outcome

    def release(self, now: float) -> None:
        """Give the GPUs back; a job that is not finished waits again."""
        self.gpu_seconds += (now - self.held_since) * self.held_gpus
        self.held_gpus = 0
        if self.stage is not Stage.FINISHED:
            self.stage = Stage.WAITING

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

    def _go(self, now: float, gpus: int) -> None:
        self.begun_at = now
        self.rate = self.job.rate(gpus) * self.speed
        self.pace = 1.0 / self.rate
        self.origin = now - self.pace * self.service_s

    def _settle(self, now: float) -> None:
        self.service_s += (now - self.begun_at) * self.rate
        self.begun_at = now


def _points(job: SimJob, evals: int) -> list[EvalPoint]:
    """Return the evaluations as their trainer reports them, made at once: a call each is dear."""
    columns = zip(
        job.eval_steps[:evals],
        job.scores,
        repeat(None) if job.stderrs is None else job.stderrs,
        repeat(None) if job.proxies is None else job.proxies,
        strict=False,
    )
    return [
        EvalPoint(
            step=step,
            score=score if score - score == 0.0 else NOT_FINITE,
            stderr=stderr,
            proxy=proxy,
        )
        for step, score, stderr, proxy in columns
    ]
