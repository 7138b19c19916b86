"""What is known of a job: the white list that policies may read, and nothing else.

The true duration, the true curve and the hacking label are not here and cannot be: they live in
``workloads`` and ``sim``, which the layers forbid policies to import.

A `JobView` is frozen for everyone who holds it. `evalstop.core.cluster.ClusterState` alone moves
it along, through `msgspec.structs.force_setattr`: a live view costs a tenth of a copy an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

__all__ = ["JOB_TYPE_ALIASES", "JobSpec", "JobView", "Outcome", "Phase", "canonical_job_type"]


class Phase(StrEnum):
    """Where a job stands. GPUs are held in starting, running, preempting and releasing."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    PREEMPTING = "preempting"
    RELEASING = "releasing"
    ENDED = "ended"


class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED_BY_POLICY = "stopped_by_policy"


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a tenant submits.

    Attributes:
        id: unique name of the job.
        tenant: who pays.
        job_type: rlhf, dpo, lora or other (or whatever the rules name).
        gpus: GPUs of the gang, all or nothing.
        min_gpus: fewest GPUs an elastic job can run on; None for a rigid job.
        max_gpus: most GPUs an elastic job can use; None for a rigid job.
        estimated_s: the tenant's or profiler's estimate of total service in seconds on ``gpus``.
        labels: opt-outs, queue, priority class and the like.
    """

    id: str
    tenant: str = ""
    job_type: str = "other"
    gpus: int = 1
    min_gpus: int | None = None
    max_gpus: int | None = None
    estimated_s: float | None = None
    labels: dict[str, str] = {}


class JobView(Struct, frozen=True, kw_only=True, weakref=False, gc=False):
    """A job as policies and guards may see it.

    Attributes:
        id, tenant, job_type, gpus, min_gpus, max_gpus, estimated_s, labels: as submitted.
        submitted_at: time of submission in seconds.
        phase: see `Phase`.
        held_gpus: GPUs allocated now, 0 unless they are held.
        attempt: how often the job has been started, 0 before the first start.
        started_at: time of the current start; NaN while the job does not run.
        first_started_at: time of the first start; NaN before.
        rate: service per second of the current start; 1 on the submitted gang.
        service_s: seconds of service attained in earlier starts, on the submitted gang.
        gpu_seconds: GPU-seconds held in earlier starts.
        evals_seen: evaluations reported.
        last_eval_at: time of the newest evaluation; NaN before the first.
        losses_seen: losses reported.
        throughput: examples per second, as last reported; None if never.
        efficiency: statistical efficiency in 0-1, as last reported; None if never.
    """

    id: str
    tenant: str
    job_type: str
    gpus: int
    min_gpus: int | None
    max_gpus: int | None
    estimated_s: float | None
    labels: Mapping[str, str]
    submitted_at: float
    phase: Phase = Phase.WAITING
    held_gpus: int = 0
    attempt: int = 0
    started_at: float = float("nan")
    first_started_at: float = float("nan")
    rate: float = 1.0
    service_s: float = 0.0
    gpu_seconds: float = 0.0
    evals_seen: int = 0
    last_eval_at: float = float("nan")
    losses_seen: int = 0
    throughput: float | None = None
    efficiency: float | None = None

    def attained_s(self, now: float) -> float:
        """Return seconds of service attained until ``now``."""
        started = self.started_at
        if started != started:  # noqa: PLR0124 -- NaN test without a call
            return self.service_s
        return self.service_s + (now - started) * self.rate

    def attained_gpu_s(self, now: float) -> float:
        """Return GPU-seconds attained until ``now``."""
        started = self.started_at
        if started != started:  # noqa: PLR0124 -- NaN test without a call
            return self.gpu_seconds
        return self.gpu_seconds + (now - started) * self.held_gpus

    def remaining_s(self, now: float) -> float:
        """Return estimated seconds of service left, never negative; infinite without estimate."""
        if self.estimated_s is None:
            return float("inf")
        return max(0.0, self.estimated_s - self.attained_s(now))


JOB_TYPE_ALIASES = {
    "grpo": "rlhf",
    "ppo": "rlhf",
    "rloo": "rlhf",
    "opd": "rlhf",
    "sft": "lora",
}
"""Names of training methods that count as one of the job types rules are written for."""


@lru_cache(maxsize=1024)
def canonical_job_type(name: str) -> str:
    """Return the job type that ``name`` counts as, lower case; unknown names are themselves."""
    lowered = name.strip().lower()
    return JOB_TYPE_ALIASES.get(lowered, lowered)
