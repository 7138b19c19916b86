"""The picture of the cluster: the only mutable thing in the core.

Rule 1: everything that moves a job from phase to phase is here. Rule 2: this file does not know
which driver runs it.

A job is somewhere in this table, and holds GPUs in the middle four:

    WAITING ──promise Start──> STARTING ──JobStarted──> RUNNING ──JobEnded──> ENDED
       ^                                                |  |                    ^
       └──JobPreempted── PREEMPTING <──promise Preempt──┘  |                JobEnded
                                                           |                    |
                                                           └──promise Stop──> RELEASING

Facts win over wishes: a job may end, or be preempted from outside, while a stop is under way.
GPUs are taken when a start is promised and given back when their release is a fact, so that no
GPU is ever in two allocations. `check` verifies that the sum is conserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, assert_never

from msgspec.structs import force_setattr

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
from evalstop.core.errors import IllegalActionError, IllegalEventError
from evalstop.core.events import (
    CapacityChanged,
    CheckpointSaved,
    EvalReported,
    Event,
    JobEnded,
    JobPreempted,
    JobResized,
    JobStarted,
    JobSubmitted,
    LossReported,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.job import JobView, Outcome, Phase
from evalstop.core.live_view import LiveView, Pool, WholeCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalstop.core.policy import PoolView

__all__ = ["ClusterState"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ENDED = Phase.ENDED
_PREEMPTING = Phase.PREEMPTING
_RELEASING = Phase.RELEASING
_RUNNING = Phase.RUNNING
_STARTING = Phase.STARTING
_WAITING = Phase.WAITING

NOT_RUNNING = float("nan")
_NO_LABELS = MappingProxyType[str, str]({})

MAY_START = frozenset({_STARTING, _WAITING, _RELEASING})
"""WAITING: started by a scheduler that is not ours. RELEASING: stopped while it was starting."""

MAY_BE_PREEMPTED = frozenset({_PREEMPTING, _RUNNING, _RELEASING, _STARTING})
MAY_BE_STOPPED = frozenset({_WAITING, _STARTING, _RUNNING})


class ClusterState:
    """Fold of the events so far, plus what has been promised and not happened yet.

    Args:
        gpus: GPUs in the cluster, or GPUs by node type.
    """

    def __init__(self, gpus: int | Mapping[str, int] = 0) -> None:
        totals = dict(gpus) if isinstance(gpus, Mapping) else {}
        self._jobs: dict[str, JobView] = {}
        self._pool_of: dict[str, str] = {}
        self._resizing: dict[str, int] = {}
        self._pools = {name: Pool(name, total, total) for name, total in totals.items()}
        """Node types that are told apart; none where all GPUs are interchangeable."""
        self.ended: dict[str, Outcome] = {}
        total = sum(totals.values()) if isinstance(gpus, Mapping) else int(gpus)
        jobs = MappingProxyType(self._jobs)
        self.view = LiveView(float("-inf"), total, total, jobs, MappingProxyType({}))
        self.show_pools()

    def show_pools(self) -> None:
        """Show policies the node types, or the whole cluster as one."""
        pools: Mapping[str, PoolView] = self._pools or {"": WholeCluster(self.view)}
        force_setattr(self.view, "pools", MappingProxyType(pools))

    # ---- facts ---------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Fold one event into the picture.

        Raises:
            IllegalEventError: if time goes back, the job is unknown, or the fact cannot follow
                from the phase the job is in.
        """
        if event.time != self.view.now:
            self.move_on(event)
        FOLDS[type(event)](self, event)

    def move_on(self, event: Event) -> None:
        """Let time go on to that of an event, the first half of `apply`.

        Raises:
            IllegalEventError: if it goes back.
        """
        time, view = event.time, self.view
        if not time >= view.now:
            self._refuse(event, f"time went back from {view.now!r}")
        force_setattr(view, "now", time)

    def count_evals(self, name: str, evals: int, last_at: float) -> None:
        """Fold evaluations of a job, the newest of this time, into the picture all at once.

        They may be older than what happened to other jobs since, but not than what happened to
        this one.

        Raises:
            IllegalEventError: if the job is unknown, or time goes back for it.
        """
        job, view = self._jobs.get(name), self.view
        # Where there was none before it is NaN, which nothing is earlier than.
        if job is None or last_at < job.last_eval_at or last_at < job.started_at:
            msg = f"illegal evaluations of {name!r} up to {last_at!r}; the job's story: {job!r}"
            raise IllegalEventError(msg)
        if last_at > view.now:
            force_setattr(view, "now", last_at)
        force_setattr(job, "evals_seen", job.evals_seen + evals)
        force_setattr(job, "last_eval_at", last_at)

    def _count_eval(self, event: EvalReported) -> None:
        job = self._jobs.get(event.job) or self._living(event)
        if job is None:
            return
        force_setattr(job, "evals_seen", job.evals_seen + 1)
        force_setattr(job, "last_eval_at", event.time)

    def _submit(self, event: JobSubmitted) -> None:
        spec = event.job
        if spec.id in self._jobs or spec.id in self.ended:
            self._refuse(event, "a job of this id is known already")
        if spec.gpus < 1:
            self._refuse(event, f"a job needs at least 1 GPU, but asks for {spec.gpus}")
        self._jobs[spec.id] = JobView(
            id=spec.id,
            tenant=spec.tenant,
            job_type=spec.job_type,
            gpus=spec.gpus,
            min_gpus=spec.min_gpus,
            max_gpus=spec.max_gpus,
            estimated_s=spec.estimated_s,
            labels=MappingProxyType(spec.labels) if spec.labels else _NO_LABELS,
            submitted_at=event.time,
        )

    def _start(self, event: JobStarted) -> None:
        job, gpus, rate = self._jobs.get(event.job), event.gpus, event.rate
        if job is not None and job.phase is _STARTING and job.held_gpus == gpus:
            force_setattr(job, "phase", _RUNNING)
        else:
            job = self._start_otherwise(event)
        attempt = job.attempt
        force_setattr(job, "attempt", attempt + 1)
        force_setattr(job, "started_at", event.time)
        if rate is None:
            rate = gpus / job.gpus
        if rate != job.rate:
            force_setattr(job, "rate", rate)
        if not attempt:
            force_setattr(job, "first_started_at", event.time)

    def _start_otherwise(self, event: JobStarted) -> JobView:
        """Start a job that was promised other GPUs, or none; return it."""
        job = self._known(event, event.job, MAY_START)
        if job.phase is _WAITING:
            self._hold(job, event.gpus, event.pool)
        elif job.held_gpus != event.gpus:
            self._hold(job, event.gpus - job.held_gpus, self._pool_of.get(job.id, ""))
        if job.phase is not _RELEASING:
            force_setattr(job, "phase", _RUNNING)
        return job

    def _wait(self, event: JobPreempted) -> None:
        job = self._jobs.get(event.job)
        if job is None or job.phase is not _PREEMPTING:
            job = self._known(event, event.job, MAY_BE_PREEMPTED)
        self._release(job)
        if job.phase is not _RELEASING:
            force_setattr(job, "phase", _WAITING)

    def _end(self, event: JobEnded) -> None:
        name = event.job
        job = self._jobs.pop(name, None) or self._known(event, name, None)
        self._release(job)
        force_setattr(job, "phase", _ENDED)
        if self._pool_of:
            self._pool_of.pop(name, None)
        self.ended[name] = event.outcome

    def _resize(self, event: JobResized) -> None:
        job = self._known(event, event.job, None)
        self._settle(job)
        if event.service_s is not None:
            force_setattr(job, "service_s", event.service_s)
        promised = self._resizing.pop(job.id, job.held_gpus)
        # What a growing job was promised is held already; what a shrinking one gives is not free
        # before it is a fact.
        self._hold(job, event.gpus - max(promised, job.held_gpus), self._pool_of.get(job.id, ""))
        force_setattr(job, "held_gpus", event.gpus)
        whole = event.gpus / job.gpus
        force_setattr(job, "rate", whole if event.rate is None else event.rate)

    def _hear_loss(self, event: LossReported) -> None:
        if (job := self._living(event)) is None:
            return
        force_setattr(job, "losses_seen", job.losses_seen + 1)
        if event.throughput is not None:
            force_setattr(job, "throughput", event.throughput)
        if event.efficiency is not None:
            force_setattr(job, "efficiency", event.efficiency)

    def _obey(self, event: OperatorCommanded) -> None:
        if event.command == "undo":
            self.ended.pop(event.job, None)

    def _wake(self, event: TimerFired) -> None:
        """Change nothing."""

    def _change_capacity(self, event: CapacityChanged) -> None:
        view, pools = self.view, self._pools
        if event.pool and not pools:
            pools[""] = Pool("", view.total_gpus, view.free_gpus)
            self.show_pools()
        grown = event.gpus - view.total_gpus
        if pools:
            pool = pools.setdefault(event.pool, Pool(event.pool, 0, 0))
            grown = event.gpus - pool.total
            force_setattr(pool, "total", event.gpus)
        force_setattr(view, "total_gpus", view.total_gpus + grown)
        self._move_free(event.pool, grown)

    # ---- wishes --------------------------------------------------------------------------

    def promise(self, action: Action) -> None:
        """Note what is about to be done.

        Raises:
            IllegalActionError: if the action is impossible in the picture as it stands.
        """
        if type(action) is Start:
            self._promise_start(action)
            return
        if type(action) is WakeAt:
            return
        job = self._jobs.get(action.job)
        if type(action) is Preempt:
            if job is None or job.phase is not _RUNNING:
                self._deny(action, job, "only a running job can be preempted")
            force_setattr(job, "phase", _PREEMPTING)
        elif type(action) is Stop:
            if job is None or job.phase not in MAY_BE_STOPPED:
                self._deny(action, job, "only a waiting, starting or running job can stop")
            force_setattr(job, "phase", _RELEASING)
        elif type(action) is Resize:
            self._promise_resize(action, job)
        elif type(action) is RequestEval or type(action) is RequestSave or type(action) is Advise:
            if job is None:
                self._deny(action, job, "no such job")
        else:
            assert_never(action)

    def _promise_start(self, action: Start) -> None:
        name, gpus, where = action.job, action.gpus, action.pool
        job = self._jobs.get(name)
        if job is None or job.phase is not _WAITING:
            self._deny(action, job, "only a waiting job can start")
        if gpus != job.gpus or job.min_gpus is not None or job.max_gpus is not None:
            self._require_allowed(action, job)
        view = self.view
        free = view.free_gpus
        if where or self._pools:
            self._take_from(where, gpus, action, job)
        elif gpus > free:
            self._deny(action, job, f"{free} GPUs are free")
        force_setattr(job, "held_gpus", gpus)
        force_setattr(job, "phase", _STARTING)
        force_setattr(view, "free_gpus", free - gpus)

    def _take_from(self, where: str, gpus: int, action: Start, job: JobView) -> None:
        """Take GPUs of a pool for a job that starts; the view's sum is the caller's."""
        pool = self._pools.get(where)
        if pool is None or gpus > pool.free:
            self._deny(action, job, f"{pool.free if pool else 0} GPUs are free in pool {where!r}")
        if where:
            self._pool_of[job.id] = where
        force_setattr(pool, "free", pool.free - gpus)

    def _require_allowed(self, action: Start | Resize, job: JobView) -> None:
        """Deny a number of GPUs that the job does not run on."""
        fewest = job.gpus if job.min_gpus is None else job.min_gpus
        most = job.gpus if job.max_gpus is None else job.max_gpus
        if not fewest <= action.gpus <= most:
            self._deny(action, job, f"the job runs on {fewest} to {most} GPUs, all or nothing")

    def _promise_resize(self, action: Resize, job: JobView | None) -> None:
        if job is None or job.phase is not _RUNNING or job.id in self._resizing:
            self._deny(action, job, "only a running job that is not being resized can be resized")
        self._require_allowed(action, job)
        extra = max(0, action.gpus - job.held_gpus)
        pool = self._pool_of.get(job.id, "")
        free = self.view.pools[pool].free
        if extra > free:
            self._deny(action, job, f"{free} GPUs are free in pool {pool!r}")
        self._move_free(pool, -extra)
        self._resizing[job.id] = action.gpus

    # ---- accounting ----------------------------------------------------------------------

    def _hold(self, job: JobView, gpus: int, pool: str) -> None:
        force_setattr(job, "held_gpus", job.held_gpus + gpus)
        if pool:
            self._pool_of[job.id] = pool
        self._move_free(pool, -gpus)

    def _release(self, job: JobView) -> None:
        started, held, view = job.started_at, job.held_gpus, self.view
        if started == started:  # noqa: PLR0124 -- NaN test
            ran = view.now - started  # from here on what `_settle` does, in place
            force_setattr(job, "service_s", job.service_s + ran * job.rate)
            force_setattr(job, "gpu_seconds", job.gpu_seconds + ran * held)
            force_setattr(job, "started_at", NOT_RUNNING)
        if held:
            force_setattr(job, "held_gpus", 0)
            if self._resizing:
                held = max(held, self._resizing.pop(job.id, 0))
            if self._pools:
                pool = self._pools[self._pool_of.get(job.id, "")]
                force_setattr(pool, "free", pool.free + held)
            force_setattr(view, "free_gpus", view.free_gpus + held)

    def _settle(self, job: JobView) -> None:
        """Move the service of the current start into the sums; it goes on from now."""
        started, now = job.started_at, self.view.now
        if started == started:  # noqa: PLR0124 -- NaN test
            ran = now - started
            force_setattr(job, "service_s", job.service_s + ran * job.rate)
            force_setattr(job, "gpu_seconds", job.gpu_seconds + ran * job.held_gpus)
            force_setattr(job, "started_at", now)

    def _move_free(self, name: str, gpus: int) -> None:
        if gpus:
            if name or self._pools:
                pool = self._pools[name]
                force_setattr(pool, "free", pool.free + gpus)
            view = self.view
            force_setattr(view, "free_gpus", view.free_gpus + gpus)

    def check(self) -> None:
        """Verify that every GPU is in exactly one place.

        Raises:
            IllegalEventError: if the sums do not match; a bug in this file or its driver.
        """
        reserved = sum(
            max(0, target - self._jobs[name].held_gpus) for name, target in self._resizing.items()
        )
        held = sum(job.held_gpus for job in self._jobs.values()) + reserved
        free = sum(pool.free for pool in self.view.pools.values())
        total = sum(pool.total for pool in self.view.pools.values())
        if held + free != total or free != self.view.free_gpus or total != self.view.total_gpus:
            msg = f"GPUs are not conserved: {held} held + {free} free != {total} in all"
            raise IllegalEventError(msg)

    # ---- refusals ------------------------------------------------------------------------

    def _known(self, event: Event, name: str, phases: frozenset[Phase] | None) -> JobView:
        job = self._jobs.get(name)
        if job is None:
            self._refuse(event, f"no job {name!r} is waiting or running")
        if phases is not None and job.phase not in phases:
            self._refuse(event, "this cannot follow", job)
        return job

    def _living(self, event: EvalReported | LossReported | CheckpointSaved) -> JobView | None:
        """Return whose fact it is, None if it has ended; refuse those of nobody's job."""
        job = self._jobs.get(event.job)
        if job is None and event.job not in self.ended:
            self._refuse(event, f"no job {event.job!r} was ever submitted")
        return job

    def _refuse(self, event: Event, why: str, job: JobView | None = None) -> NoReturn:
        story = f"; the job's story: {job!r}" if job is not None else ""
        msg = f"illegal event {event!r}: {why}{story}"
        raise IllegalEventError(msg)

    def _deny(self, action: Action, job: JobView | None, why: str) -> NoReturn:
        msg = f"illegal action {action!r}: {why}; the job's story: {job!r}"
        raise IllegalActionError(msg)

    # By type: see evalstop.core.events. A test shows that none is missing.
    FOLDS: ClassVar[Mapping[type, Callable[[ClusterState, Any], object]]] = {
        CapacityChanged: _change_capacity,
        CheckpointSaved: _living,
        EvalReported: _count_eval,
        JobEnded: _end,
        JobPreempted: _wait,
        JobResized: _resize,
        JobStarted: _start,
        JobSubmitted: _submit,
        LossReported: _hear_loss,
        OperatorCommanded: _obey,
        TimerFired: _wake,
    }


FOLDS = ClusterState.FOLDS
"""How each kind of event is folded into a picture, the second half of `ClusterState.apply`.

Bound once: CPython 3.11 finds what belongs to a class slowly through its objects."""
