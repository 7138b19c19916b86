"""What lies ahead in a simulation, in the order in which it will happen.

Order is (time, job's place in the workload), then what is no job's evaluation or end, in the order
in which it was scheduled; then arrivals. So equal times are resolved the same way in every run,
whether an evaluation has an entry of its own or not.

**Evaluations that nobody answers** have none. When a job sets out, the policy is asked up to where
it foresees to answer none of its evaluations (`evalstop.core.policy.FarSighted`). The job's entry
is the first that may be answered, or its end. Those before it are told when that comes due, or
when anything else happens to the job: exactly those that come before it in the order above.
"""

from __future__ import annotations

import math
from heapq import heappush
from itertools import count
from sys import maxsize
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from evalstop.core.events import Event
    from evalstop.core.kernel import Kernel
    from evalstop.sim.run import Run

__all__ = ["BEHIND", "Agenda", "Due"]

Due: TypeAlias = "tuple[float, int, int, Run | Event]"
"""Time, place in the order of equal times, ticket, and what happens.

A `Run` stands for its next evaluation that may be answered, or its end; where the ticket is not
its own any more, the entry is void: the job was preempted, resized or stopped meanwhile.
"""

BEHIND = maxsize
"""Place of what is no job's evaluation or end: behind those of the same time."""


class Agenda:
    """The heap of what lies ahead, and what was told of it.

    Args:
        kernel: who is told of quiet evaluations.
        foresees: whether it is asked which ones are quiet; otherwise none is.

    Attributes:
        heap: what lies ahead.
        now: time of the last that has happened.
        place: its place in the order of equal times.
    """

    def __init__(self, kernel: Kernel, *, foresees: bool) -> None:
        self.heap: list[Due] = []
        self.now = -math.inf
        self.place = 0
        self._kernel = kernel
        self._foresees = foresees
        self._tickets = count(1)

    def later(self, time: float, event: Event) -> None:
        """Let an event happen that is no job's evaluation or end."""
        heappush(self.heap, (time, BEHIND, next(self._tickets), event))

    def set_out(self, run: Run) -> None:
        """Give a job that begins to train, or goes on, its entry."""
        cursor, evals = run.cursor, run.evals
        if cursor < evals:
            if run.quiet <= cursor and self._foresees:
                quiet = self._kernel.foresee(run.id, run.ahead, cursor)
                # Where nothing is, nobody is asked again before the job sets out again.
                run.quiet = min(evals, quiet) if quiet > cursor else -1
            due_s = run.next_due()
        else:
            run.due = evals
            due_s, begun_at = run.origin + run.pace * run.last_s, run.begun_at
            if due_s < begun_at:  # noqa: PLR1730 -- as in Run.time_of, in place
                due_s = begun_at
        run.ticket = ticket = next(self._tickets)
        heappush(self.heap, (due_s, run.index, ticket, run))

    def forget_foreseen(self, run: Run) -> None:
        """Trust no longer in what was foreseen of a job: it is about to be told of otherwise."""
        self.catch_up(run)
        run.quiet = run.cursor
        if run.ticket and run.due > run.cursor:
            run.ticket = ticket = next(self._tickets)
            heappush(self.heap, (run.next_due(), run.index, ticket, run))

    def catch_up(self, run: Run) -> None:
        """Tell the quiet evaluations of a job that come before now in the order of things."""
        if run.ticket and run.due > run.cursor:
            stop = run.made_before(self.now, inclusive=run.index < self.place)
            if stop > run.cursor:
                self.tell_quiet(run, stop)

    def tell_quiet(self, run: Run, stop: int) -> None:
        """Tell the evaluations up to ``stop`` that were foreseen to be answered with nothing."""
        last_at = run.time_of(stop - 1)
        self._kernel.hear_quiet(run.id, run.ahead, run.cursor, stop, last_at=last_at)
        run.cursor = stop
