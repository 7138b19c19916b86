"""One base scheduler for each node type, and a choice of node type for each job.

A gang runs on nodes of one type. A new job is sent to the type where it should end first, as
far as operators know speeds and tenants state estimates:

    expected end on type p = (work of jobs that are there + GPUs x estimate) / (GPUs_p speed_p)

work in GPU-seconds of service at speed 1. It stays there: what was saved on one type may not load
on another. Each part sees its own GPUs and jobs alone, so that any base scheduler will do.

This is how sites partition (Slurm partitions, one queue a type), with the greedy choice that
keeps related machines balanced: Horowitz and Sahni, Exact and approximate algorithms for
scheduling nonidentical processors (1976); Gavel (Narayanan et al., OSDI 2020) optimises over
types jointly and moves jobs between them, which this does not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.core.actions import Action, Start, WakeAt
from evalstop.core.errors import SpecError
from evalstop.core.events import (
    CapacityChanged,
    JobEnded,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
    TimerFired,
)
from evalstop.core.policy import hears_evals
from evalstop.core.settings import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evalstop.core.events import Event
    from evalstop.core.job import JobSpec, JobView
    from evalstop.core.policy import ClusterView, Policy, PoolView

__all__ = ["Partitioned"]

_SEPARATOR = "\x1f"  # between a part's name and its token: in nobody's token


class Partitioned:
    """Base schedulers side by side, one a node type.

    Args:
        base: makes a fresh base scheduler; called once for each type.
        speeds: service per second relative to the reference, by node type.

    Cost: that of the base, and O(types) a submission.

    Raises:
        SpecError: if there is no type, or a speed is not above 0.
    """

    def __init__(self, *, base: Callable[[], Policy], speeds: Mapping[str, float]) -> None:
        if not speeds or not all(is_number(one) and one > 0 for one in speeds.values()):
            msg = f"every node type needs a speed above 0, and there must be one, got {speeds}"
            raise SpecError(msg)
        self._parts = {name: _Part(base(), speed) for name, speed in speeds.items()}
        self._homes: dict[str, str] = {}

    @property
    def hears_evals(self) -> bool:
        """Whether the base does."""
        return any(hears_evals(part.policy) for part in self._parts.values())

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Ask the part that the event concerns."""
        match event:
            case JobSubmitted():
                name = self._choose(event.job, view)
                self._homes[event.job.id] = name
                self._parts[name].admit(event.job, view.jobs[event.job.id])
            case CapacityChanged():
                name = event.pool
            case TimerFired():
                name, _, token = event.token.partition(_SEPARATOR)
                event = replace(event, token=token)
            case OperatorCommanded():
                name = self._homes.get(event.job, "")
            case JobStarted():
                name = self._homes.setdefault(event.job, event.pool)
            case _:
                name = self._homes.get(event.job, "")
        part = self._parts.get(name)
        if part is None:
            return ()
        if isinstance(event, JobEnded):
            part.forget(event.job)
            del self._homes[event.job]
        pool = view.pools.get(name)
        if pool is None:
            return ()
        actions = part.policy.decide(event, _PartView(view, pool, part.jobs))
        return [_addressed(action, name) for action in actions]

    def _choose(self, job: JobSpec, view: ClusterView) -> str:
        """Return the node type where the job should end first; the first of equal ones."""
        fitting = [
            name
            for name, pool in view.pools.items()
            if name in self._parts and pool.total >= job.gpus
        ]
        if not fitting:
            return next(iter(self._parts))
        return min(fitting, key=lambda name: self._parts[name].expected_s(job, view.pools[name]))


class _Part:
    """One node type: its scheduler, its jobs, and the work they asked for."""

    __slots__ = ("jobs", "policy", "speed", "work", "work_of")

    def __init__(self, policy: Policy, speed: float) -> None:
        self.policy = policy
        self.speed = speed
        self.jobs: dict[str, JobView] = {}
        self.work_of: dict[str, float] = {}
        self.work = 0.0

    def admit(self, job: JobSpec, seen: JobView) -> None:
        """Take in a job."""
        self.jobs[job.id] = seen
        self.work_of[job.id] = work = _work(job)
        self.work += work

    def forget(self, job: str) -> None:
        """Let a job go."""
        self.jobs.pop(job, None)
        self.work -= self.work_of.pop(job, 0.0)

    def expected_s(self, job: JobSpec, pool: PoolView) -> float:
        """Return when a job that came now would end here, if all GPUs shared the work."""
        alone = (job.estimated_s or 1.0) / self.speed
        return max(alone, (self.work + _work(job)) / (pool.total * self.speed))


class _PartView:
    """What a part may see: its own GPUs and jobs."""

    __slots__ = ("_jobs", "_pool", "_view")

    def __init__(self, view: ClusterView, pool: PoolView, jobs: dict[str, JobView]) -> None:
        self._view, self._pool, self._jobs = view, pool, jobs

    @property
    def now(self) -> float:
        """Time of the event being decided on, in seconds."""
        return self._view.now

    @property
    def total_gpus(self) -> int:
        """GPUs of this node type."""
        return self._pool.total

    @property
    def free_gpus(self) -> int:
        """GPUs of this node type in no allocation."""
        return self._pool.free

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """Jobs sent here that have not ended, in order of submission."""
        return MappingProxyType(self._jobs)

    @property
    def pools(self) -> Mapping[str, PoolView]:
        """This node type alone, as if it were the cluster."""
        return {"": self._pool}


def _work(job: JobSpec) -> float:
    """Return GPU-seconds asked for; a job without an estimate counts its GPUs."""
    return job.gpus * (1.0 if job.estimated_s is None else job.estimated_s)


def _addressed(action: Action, name: str) -> Action:
    """Return a part's action as one on the whole cluster."""
    if isinstance(action, Start):
        return replace(action, pool=name)
    if isinstance(action, WakeAt):
        return replace(action, token=f"{name}{_SEPARATOR}{action.token}")
    return action
