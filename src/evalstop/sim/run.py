"""One job as the simulator moves it: what it has done, and when its next thing happens."""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import Enum, auto
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from evalstop.core.events import EvalReported
from evalstop.core.job import Outcome
from evalstop.core.points import NOT_FINITE, EvalPoint

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from evalstop.workloads.job import SimJob

__all__ = ["Course", "Due", "Run", "Stage"]

Due: TypeAlias = "tuple[float, int, Course, Any]"
"""What happens at a time: its ticket, what makes the one after it, and what it is.

It is an `EvalReported` on a job's course; the `Run` itself where that ends; or, with an empty
course, any other event.
"""

Course: TypeAlias = "Generator[Due, None, None]"
"""What a job does from one start to the next preemption, resize or stop, then closed."""

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

    While it trains, the instant of an evaluation at offset m (or of the end) is
    ``origin + pace * m``: nothing is added up, so nothing drifts.
    """

    __slots__ = (
        "asked",
        "begun_at",
        "course",
        "cursor",
        "delivered",
        "evals",
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
        offsets = job.eval_offsets
        whole = not offsets or offsets[-1] <= last
        self.evals = len(offsets) if whole else bisect_right(offsets, last)
        self.course: Course | None = None
        self.asked: dict[int, int] = {}
        self.cursor = 0
        self.delivered = 0
        self.heard = -1
        self.stage = Stage.WAITING
        self.outcome = _COMPLETED
        self.started_before = False
        self.service_s = 0.0
        self.gpu_seconds = 0.0
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
        self.started_before = True
        self._go(now, self.held_gpus)

    def next_time(self) -> float:
        """Return when the next evaluation is made, or else when the job ends."""
        cursor = self.cursor
        mark = self.job.eval_offsets[cursor] if cursor < self.evals else self.last_s
        at = self.origin + self.pace * mark
        # A mark that was reached in the instant of a preemption may round to just before the
        # resumption: time never goes back.
        return max(at, self.begun_at)

    def set_out(self, tickets: Iterator[int]) -> Due:
        """Return what happens next to a job that trains, and take its course from there."""
        self.course = course = self._take_course(tickets)
        return next(course)

    def _take_course(self, tickets: Iterator[int]) -> Course:
        """Make evaluation after evaluation, then the end.

        This runs more often than all else together. What it needs lies in local variables, and
        what is yielded goes to the heap as it is. Its frame and itself keep each other alive
        until it has ended or was closed.
        """
        course, name = self.course, self.id
        assert course is not None
        origin, pace, begun_at = self.origin, self.pace, self.begun_at
        for cursor, mark, step, score, stderr, proxy in self._ahead():
            self.cursor = cursor  # those before it have been told by now
            time = origin + pace * mark
            if time < begun_at:  # noqa: PLR1730 -- a call of max costs more than the rest
                time = begun_at  # see next_time
            point = EvalPoint(step=step, score=score, stderr=stderr, proxy=proxy)
            yield time, next(tickets), course, EvalReported(time=time, job=name, point=point)
        self.cursor = self.evals
        yield self.next_time(), next(tickets), course, self

    def _ahead(
        self,
    ) -> Iterator[tuple[int, float, int, float, float | None, float | None]]:
        """Return index, offset, step, score, error and proxy of the evaluations not made yet."""
        job = self.job
        columns = zip(
            range(self.evals),
            job.eval_offsets,
            job.eval_steps,
            _finite(job.scores),
            repeat(None) if job.stderrs is None else job.stderrs,
            repeat(None) if job.proxies is None else job.proxies,
            strict=False,
        )
        return islice(columns, self.cursor, None)

    def leave_course(self) -> None:
        """Drop what lay ahead: the job is preempted, resized or stopped."""
        if self.course is not None:
            self.course.close()
            self.course = None

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


def _finite(scores: Sequence[float]) -> Sequence[float]:
    """Return the scores, `NOT_FINITE` for every one that is no finite number."""
    if math.isfinite(sum(scores)):
        return scores
    return [score if math.isfinite(score) else NOT_FINITE for score in scores]
