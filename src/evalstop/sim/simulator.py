"""Discrete-event simulation of a cluster: the policy cannot tell it from the real one.

The heap holds one entry for each job that runs, one for each delayed fact and each timer; arrivals
are read lazily from the workload, in order. So its size is that of the cluster, not of the
backlog, and an event costs O(log running jobs).

The order of equal times, and which evaluations have an entry, is told in `evalstop.sim.agenda`.
With an observer, losses or deliveries to tell, each has its entry and is told in its order.

The simulator alone knows the truth (`evalstop.workloads.job.SimJob`). What the kernel is given
is what a cluster would report.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heapreplace
from typing import TYPE_CHECKING, TypeAlias, assert_never

from msgspec.structs import replace

from evalstop.core.actions import (
    Action,
    Advise,
    Preempt,
    RequestEval,
    RequestSave,
    Resize,
    Start,
    Stop,
    WakeAt,
)
from evalstop.core.cluster import ClusterState
from evalstop.core.errors import InputError
from evalstop.core.events import (
    EvalReported,
    Event,
    JobEnded,
    JobPreempted,
    JobResized,
    JobStarted,
    JobSubmitted,
    TimerFired,
)
from evalstop.core.job import Outcome
from evalstop.core.kernel import Kernel
from evalstop.sim.agenda import BEHIND, Agenda
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.possible import require_possible
from evalstop.sim.run import Run, Stage
from evalstop.sim.runlog import RunLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evalstop.core.policy import Policy
    from evalstop.workloads.job import SimJob, Workload

__all__ = ["Observer", "Simulator"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_FINISHED = Stage.FINISHED
_RUNNING = Stage.RUNNING
_STARTING = Stage.STARTING
_COMPLETED = Outcome.COMPLETED
_FAILED = Outcome.FAILED
_STOPPED_BY_POLICY = Outcome.STOPPED_BY_POLICY

Observer: TypeAlias = "Callable[[Event, Sequence[Action]], None]"
"""Called with every event and the actions it was answered with, in order."""

_TIMERS_WITHOUT_PROGRESS = 100_000


class Simulator:
    """Run a workload on a cluster of interchangeable GPUs under a policy.

    Args:
        workload: jobs and their hidden truth, in order of submission.
        gpus: GPUs in the cluster, or GPUs by node type.
        speeds: service per second by node type, 1 where none is given. A policy must name the
            type in its starts (`evalstop.schedulers.partitioned.Partitioned` does).
        policy: any policy; it is used up by the run.
        costs: delays of starting, preempting, stopping and releasing; none by default.
        losses: report training losses too, where the workload has them. Leave it on unless
            nothing that decides reads them: it doubles the number of events.
        observer: called with each event and the actions it was answered with.

    Raises:
        InputError: if a job asks for more GPUs than there are, or the cluster cannot be.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        gpus: int | Mapping[str, int],
        policy: Policy,
        speeds: Mapping[str, float] | None = None,
        costs: ExecutionCosts | None = None,
        losses: bool = True,
        observer: Observer | None = None,
    ) -> None:
        require_possible(workload, gpus=gpus, speeds=speeds, policy=policy)
        self.kernel = Kernel(ClusterState(gpus), policy)
        self.log = RunLog(len(workload))
        self._workload = workload
        self._speeds = dict(speeds or {})
        self._costs = costs or ExecutionCosts()
        self._losses = losses and workload.losses is not None
        # Whether an evaluation is more than one event at once: a loss beside it, or a delay.
        self._told_apart = self._losses or workload.delivery_bounds is not None
        self._observer = observer
        self._facts: deque[Event] = deque()  # facts of this very moment, in order
        self._runs: dict[str, Run] = {}
        self._idle_timers = 0
        self._agenda = Agenda(self.kernel, foresees=observer is None and not self._told_apart)
        self._ask: Callable[[Event], Sequence[Action]] = self.kernel.handle
        if observer is not None:
            self._ask = self._hear
        self._tell_evaluation: Callable[[EvalReported], Sequence[Action]] = self._ask
        if self._told_apart:
            self._tell_evaluation = self._report

    def run(self) -> RunLog:
        """Simulate until every job has ended, or nothing more can happen; return the record.

        Raises:
            IllegalActionError: if the policy asks for something impossible.
            InputError: if nothing but timers happen, with jobs waiting: a policy that is stuck.
        """
        arrivals = self._workload.reported()
        arrival = next(arrivals, None)
        arrives_s = math.inf if arrival is None else arrival.submit_s
        agenda, facts = self._agenda, self._facts
        heap = agenda.heap
        while True:
            while facts:
                self._happen(facts.popleft())
            if arrival is None and not self._runs:
                return self.log
            if heap and heap[0][0] <= arrives_s:
                self._let_happen(arrives_s)
            elif arrival is not None:
                agenda.now, agenda.place = arrives_s, BEHIND
                self._submit(arrival)
                arrival = next(arrivals, None)
                arrives_s = math.inf if arrival is None else arrival.submit_s
            else:
                return self.log

    def _let_happen(self, until: float) -> None:  # noqa: C901, PLR0912 -- in place for speed
        """Let things happen in order until one is answered, or something else is due.

        This loop runs more often than all else together.
        """
        agenda = self._agenda
        heap = agenda.heap
        while heap:
            time, place, ticket, due = heap[0]
            if time > until:
                return
            if type(due) is not Run:
                heappop(heap)
                agenda.now, agenda.place = time, BEHIND
                if type(due) is TimerFired:
                    self._fire(due)
                else:
                    self._happen(due)
                return
            if due.ticket != ticket:
                heappop(heap)
                continue
            if time > agenda.now:
                agenda.now, agenda.place = time, place
            elif place > agenda.place:
                agenda.place = place
            index = due.due
            if index < due.quiet:  # it was waited for because it is one at which its job set out
                agenda.tell_quiet(due, index + 1)
                heapreplace(heap, (due.next_due(), place, ticket, due))
                continue
            if index > due.cursor:
                agenda.tell_quiet(due, index)
            if index >= due.evals:
                heappop(heap)
                self._come_to_its_end(time, due)
                return
            asks = due.quiet == index  # here ends what was foreseen
            due.cursor = due.due = index + 1
            if asks:
                heappop(heap)
            else:
                heapreplace(heap, (due.time_of(index + 1), place, ticket, due))
            point = due.ahead.point(index)
            actions = self._tell_evaluation(EvalReported(time=time, job=due.id, point=point))
            if actions:
                self._carry_out(time, actions)
            if asks and due.ticket == ticket:
                agenda.set_out(due)
            if actions:
                return

    # ---- what happens --------------------------------------------------------------------

    def _submit(self, job: SimJob) -> None:
        spec, time, log = job.spec, job.submit_s, self.log
        self._runs[spec.id] = Run(log.submits, job)
        log.submits += 1
        self._idle_timers = 0
        ask = self._ask  # a method that an object holds is found faster as what it holds
        actions = ask(JobSubmitted(time=time, job=spec))
        if actions:
            self._carry_out(time, actions)

    def _report(self, event: EvalReported) -> Sequence[Action]:
        """Report the loss, and the evaluation now, later, twice or never; see to what follows."""
        time, run = event.time, self._runs[event.job]
        job, index = run.job, run.cursor - 1
        if self._losses and job.losses is not None:
            self._happen(run.loss(time, event.point.step, job.losses[index]))
        for delay in (0.0,) if job.deliveries is None else job.deliveries[index]:
            arrives = time + delay
            self._at(time, arrives, replace(event, time=arrives))
        while self._facts:
            self._happen(self._facts.popleft())
        return ()

    def _come_to_its_end(self, time: float, run: Run) -> None:
        outcome = _FAILED if run.fails else _COMPLETED
        run.finish(time, outcome)
        release_s = self._costs.release_s
        event = JobEnded(time=time + release_s, job=run.id, outcome=outcome)
        if release_s:
            self._at(time, event.time, event)
        else:
            self._happen(event)

    def _happen(self, event: Event) -> None:  # noqa: C901 -- one arm for each fact
        """Let a scheduled fact come true, then tell the kernel."""
        time = event.time
        if type(event) is JobStarted:
            run = self._runs.get(event.job)
            if run is None or run.stage is not _STARTING:
                return  # stopped before it came up, and perhaps gone
            log = self.log
            log.starts += 1
            if not run.started_before:
                log.first_start_s[run.index] = time
            run.begin(time)
            self._agenda.set_out(run)
        elif type(event) is JobEnded:
            gone, log = self._runs.pop(event.job), self.log
            gpu_seconds = gone.gpu_seconds + (time - gone.held_since) * gone.held_gpus
            log.end(gone.index, time, event.outcome, gpu_seconds, gone.service_s)
            log.evals += gone.delivered if self._told_apart else gone.cursor
        elif type(event) is JobPreempted:
            self._runs[event.job].release(time)
            self.log.preemptions += 1
        elif type(event) is EvalReported:
            known = self._runs.get(event.job)
            if known is None:
                return  # its job has ended: nobody is left to decide about
            if event.point.eval_id is None:
                known.delivered += 1
                known.heard = known.index_of_step(event.point.step)
            self._agenda.forget_foreseen(known)
        elif type(event) is JobResized:
            self.log.resizes += 1
        self._idle_timers = 0
        ask = self._ask
        actions = ask(event)
        if actions:
            self._carry_out(time, actions)

    def _fire(self, timer: TimerFired) -> None:
        """Wake the policy, unless it is stuck."""
        ask = self._ask
        actions = ask(timer)
        self._idle_timers += 1
        for action in actions:
            if type(action) is not WakeAt:
                self._idle_timers = 0
                break
        if self._idle_timers > _TIMERS_WITHOUT_PROGRESS:
            msg = (
                f"the policy set {self._idle_timers} timers in a row and did nothing else, with "
                f"{len(self._runs)} jobs waiting: it is stuck"
            )
            raise InputError(msg)
        if actions:
            self._carry_out(timer.time, actions)

    def _hear(self, event: Event) -> Sequence[Action]:
        """Return what the policy answers."""
        actions = self.kernel.handle(event)
        if self._observer is not None:
            self._observer(event, actions)
        return actions

    def _at(self, now: float, time: float, event: Event) -> None:
        if time > now:
            self._agenda.later(time, event)
        else:
            self._facts.append(event)

    # ---- what is done --------------------------------------------------------------------

    def _carry_out(self, now: float, actions: Sequence[Action]) -> None:
        for action in actions:
            # By type, not by match: see evalstop.core.events.
            if type(action) is Start:
                self._start(now, action)
            elif type(action) is Preempt:
                self._preempt(now, action)
            elif type(action) is WakeAt:
                time = action.time if action.time > now else now  # noqa: FURB136 -- as in Run
                self._agenda.later(time, TimerFired(time=time, token=action.token))
            elif type(action) is Stop:
                self._stop(now, action)
            elif type(action) is Resize:
                self._resize(now, action)
            elif type(action) is RequestEval:
                self._evaluate_again(now, action)
            elif type(action) is RequestSave or type(action) is Advise:
                pass  # every simulated evaluation has a checkpoint
            else:
                assert_never(action)

    def _start(self, now: float, action: Start) -> None:
        name, gpus, pool, speeds = action.job, action.gpus, action.pool, self._speeds
        run = self._runs[name]
        speed = speeds.get(pool, 1.0) if speeds else 1.0
        rate: float | None = run.hold(now, gpus, speed)
        if speed == 1.0 and run.job.noise_scale is None:
            rate = None
        time = now + (self._costs.restart_s if run.started_before else self._costs.start_s)
        started = JobStarted(time=time, job=name, gpus=gpus, pool=pool, rate=rate)
        if time > now:  # what `_at` does, in place: starts are most of all
            self._agenda.later(time, started)
        else:
            self._facts.append(started)

    def _evaluate_again(self, now: float, action: RequestEval) -> None:
        """Evaluate checkpoints once more, if there are further scores: the newest, or these."""
        run = self._runs[action.job]
        self._agenda.catch_up(run)
        newest = self._heard(run)
        for step in action.steps or run.job.eval_steps[max(0, newest) : newest + 1]:
            point = run.replicate(run.index_of_step(step))
            if point is not None:
                time = now + self._costs.extra_eval_s
                self.log.extra_evals += 1
                self._at(now, time, EvalReported(time=time, job=run.id, point=point))

    def _heard(self, run: Run) -> int:
        """Return the newest evaluation that was told, -1 before the first."""
        return run.heard if self._told_apart else run.cursor - 1

    def _stop(self, now: float, action: Stop) -> None:
        run = self._runs[action.job]
        self._agenda.catch_up(run)
        if run.stage is _RUNNING and run.at_its_end(now):
            return  # it is at its end and ends by itself: there is nothing left to stop
        if run.stage is _FINISHED:
            return
        run.finish(now, _STOPPED_BY_POLICY)
        self.log.stop_eval[run.index] = self._heard(run)
        self.log.kept_eval[run.index] = run.index_of_step(action.best_step)
        delay = 0.0 if not run.held_gpus else self._costs.stop_s + self._costs.release_s
        self._end_at(now, now + delay, run)

    def _preempt(self, now: float, action: Preempt) -> None:
        run = self._runs[action.job]
        if run.due > run.cursor:
            self._agenda.catch_up(run)
        if run.stage is not _RUNNING or run.at_its_end(now):
            return  # it ends by itself
        run.pause(now)
        time = now + self._costs.preempt_s
        self._at(now, time, JobPreempted(time=time, job=action.job))

    def _resize(self, now: float, action: Resize) -> None:
        run = self._runs[action.job]
        if run.stage is not _RUNNING:
            return
        self._agenda.catch_up(run)
        run.resize(now, action.gpus)
        self._agenda.set_out(run)
        event = JobResized(
            time=now,
            job=action.job,
            gpus=action.gpus,
            service_s=run.service_s,
            rate=None if run.job.noise_scale is None and run.speed == 1.0 else run.rate,
        )
        self._facts.append(event)

    def _end_at(self, now: float, time: float, run: Run) -> None:
        event = JobEnded(time=time, job=run.id, outcome=run.outcome)
        self._at(now, time, event)
