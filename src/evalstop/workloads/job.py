"""Jobs with their hidden truth, and a million of them in flat arrays.

Nothing in this file ever reaches a policy or a detector: they are given `SimJob.spec` and the
evaluations that have arrived, by the simulator, and the layers forbid them to import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.core.job import JobSpec
from evalstop.schedulers.goodput import goodput
from evalstop.workloads.flat import (
    flat_floats,
    flat_integers,
    index_of,
    known,
    listed,
    nested,
    optional_column,
    optional_floats,
    optional_integers,
    optional_values,
    packed,
    padded,
    ragged,
)
from evalstop.workloads.soundness import (
    PER_EVAL,
    PER_EVAL_OPTIONAL,
    require_fitting,
    require_sound,
)

__all__ = ["SimJob", "Workload"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]

_CHUNK = 1024
"""Jobs turned into Python objects at a time: numpy's `tolist` is far cheaper than single items."""

_Row: TypeAlias = tuple[
    JobSpec, float, float, bool, float, float | None, float | None, float | None
]
"""Spec, submit_s, duration_s, hacking, peak_s, fails_at_s, noise_scale and sync_share of a job."""


class SimJob(Struct, frozen=True, kw_only=True, gc=False):
    """One job and the truth about it, known to the simulator alone.

    Offsets and durations are seconds of service on ``spec.gpus`` GPUs, so they do not move when
    the job waits or is preempted. Sequences over evaluations have one entry an evaluation.

    Attributes:
        spec: what the tenant submits, the only part that policies may see.
        submit_s: time of submission in seconds.
        duration_s: true total service.
        eval_offsets: service at which each evaluated checkpoint is made, increasing; the last
            may equal ``duration_s``.
        eval_steps: training step of each checkpoint.
        scores: observed, noisy scores, higher is better; NaN where the evaluation gave none.
        true_scores: the same without noise.
        stderrs: reported standard error of each score; None if the reporter knows none.
        proxies: training reward at each checkpoint; None if not reported.
        losses: training loss at each checkpoint; None if not reported.
        deliveries: for each evaluation the delays in seconds after which its report arrives: one
            entry usually, none if it is lost, two if it comes twice. None: each arrives at once.
        replicates: for each evaluation the scores that further ones of the same checkpoint would
            give, one after the other, NaN for none; None: it cannot be evaluated again.
        hacking: the hidden label: true quality peaks inside the run and then declines.
        peak_s: service at the true peak; ``duration_s`` where it never declines (infinite, the
            default, means the same).
        fails_at_s: service at which the job crashes; None if it does not.
        noise_scale: of the gradient, in batches of one GPU: how well an elastic job uses more
            GPUs (`evalstop.schedulers.goodput`); None: service is in proportion to the GPUs.
        sync_share: share of a step that each further GPU costs; read with ``noise_scale`` only.
    """

    spec: JobSpec
    submit_s: float
    duration_s: float
    eval_offsets: Sequence[float] = ()
    eval_steps: Sequence[int] = ()
    scores: Sequence[float] = ()
    true_scores: Sequence[float] = ()
    stderrs: Sequence[float] | None = None
    proxies: Sequence[float] | None = None
    losses: Sequence[float] | None = None
    deliveries: Sequence[Sequence[float]] | None = None
    replicates: Sequence[Sequence[float]] | None = None
    hacking: bool = False
    peak_s: float = float("inf")
    fails_at_s: float | None = None
    noise_scale: float | None = None
    sync_share: float = 0.0

    def rate(self, gpus: int) -> float:
        """Return service per second on ``gpus`` GPUs: 1 on the submitted gang."""
        if self.noise_scale is None:
            return gpus / self.spec.gpus
        sync, noise = self.sync_share, self.noise_scale
        alone = goodput(self.spec.gpus, sync=sync, noise=noise)
        return goodput(gpus, sync=sync, noise=noise) / alone


class Workload(Struct, frozen=True, kw_only=True, eq=False):
    """Many jobs as flat arrays, in order of submission; `SimJob` objects are made when asked for.

    A million jobs of 18 evaluations take 144 MB a float64 column and half of that in float32:
    constructors keep the precision they are given.

    Attributes:
        submit_s, duration_s, gpus, hacking, peak_s: shape (jobs,), as in `SimJob`.
        estimated_s, fails_at_s: shape (jobs,), NaN for None; or None where no job has one.
        min_gpus, max_gpus: shape (jobs,), 0 for None; or None where every job is rigid.
        noise_scale, sync_share: shape (jobs,); None: service is in proportion to the GPUs.
        ids: names; None for "0", "1", ...
        tenants, tenant: the names, and each job's index into them.
        job_types, job_type: likewise.
        labels: of each job; None where no job has any.
        bounds: shape (jobs + 1,): evaluations of job i are ``bounds[i]:bounds[i + 1]``.
        eval_offsets, eval_steps, scores, true_scores: shape (evals,).
        stderrs, proxies, losses: shape (evals,), or None. NaN throughout a job means None there.
        replicates: shape (evals, most further evaluations of one checkpoint), NaN for none; None:
            no checkpoint can be evaluated again.
        delivery_bounds, delivery_delays_s: delays of evaluation e are
            ``delivery_delays_s[delivery_bounds[e]:delivery_bounds[e + 1]]``; None: all at once.
    """

    submit_s: Floats
    duration_s: Floats
    gpus: Integers
    hacking: NDArray[np.bool_]
    peak_s: Floats
    tenant: Integers
    job_type: Integers
    bounds: Integers
    eval_offsets: Floats
    eval_steps: Integers
    scores: Floats
    true_scores: Floats
    tenants: tuple[str, ...] = ("",)
    job_types: tuple[str, ...] = ("other",)
    estimated_s: Floats | None = None
    fails_at_s: Floats | None = None
    min_gpus: Integers | None = None
    max_gpus: Integers | None = None
    noise_scale: Floats | None = None
    sync_share: Floats | None = None
    ids: Sequence[str] | None = None
    labels: Sequence[dict[str, str]] | None = None
    stderrs: Floats | None = None
    proxies: Floats | None = None
    losses: Floats | None = None
    replicates: Floats | None = None
    delivery_bounds: Integers | None = None
    delivery_delays_s: Floats | None = None

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together.

        Raises:
            InputError: if lengths differ, submissions or a job's evaluations are out of order, or
                a job is impossible.
        """
        require_sound(self)

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.submit_s)

    def __iter__(self) -> Iterator[SimJob]:
        """Yield the jobs in order of submission."""
        for start in range(0, len(self), _CHUNK):
            yield from self.slice(start, min(start + _CHUNK, len(self)))

    def reported(self) -> Iterator[SimJob]:
        """Yield the jobs in order of submission as a simulator needs them, thousands at a time.

        Without true scores, which nobody is told, and the columns over evaluations in
        `array.array`: a number takes 8 bytes there, and 32 somewhere else in a list.
        """
        for start in range(0, len(self), _CHUNK):
            yield from self.slice(start, min(start + _CHUNK, len(self)), compact=True)

    def job(self, index: int) -> SimJob:
        """Return one job.

        Raises:
            IndexError: if there is no such job.
        """
        if not 0 <= index < len(self):
            message = f"job {index} of {len(self)}"
            raise IndexError(message)
        return next(self.slice(index, index + 1))

    @property
    def evals(self) -> int:
        """Evaluations of all jobs together."""
        return int(self.bounds[-1])

    def job_id(self, index: int) -> str:
        """Return the name of a job."""
        return str(index) if self.ids is None else self.ids[index]

    def slice(self, start: int, stop: int, *, compact: bool = False) -> Iterator[SimJob]:
        """Yield jobs ``start`` to ``stop - 1``; compact: as `reported` does."""
        bounds = self.bounds[start : stop + 1].tolist()
        first, last = bounds[0], bounds[-1]
        rows = self._rows(start, stop)
        if compact and first == last:
            yield from _without_evaluations(rows)
            return
        take = packed if compact else listed
        offsets, steps, scores = (take(getattr(self, name), first, last) for name in PER_EVAL[:-1])
        true_scores = () if compact else listed(self.true_scores, first, last)
        errors, rewards, training = (
            None if column is None else take(column, first, last)
            for column in (getattr(self, name) for name in PER_EVAL_OPTIONAL)
        )
        deliveries = self._deliveries(first, last)
        again = optional_column(self.replicates, first, last)
        for (spec, submit_s, duration_s, hacking, peak_s, fails, noise, sync), low, high in zip(
            rows,
            [bound - first for bound in bounds[:-1]],
            [bound - first for bound in bounds[1:]],
            strict=True,
        ):
            yield SimJob(
                spec=spec,
                submit_s=submit_s,
                duration_s=duration_s,
                eval_offsets=offsets[low:high],
                eval_steps=steps[low:high],
                scores=scores[low:high],
                true_scores=true_scores[low:high],
                stderrs=None if errors is None else known(errors, low, high),
                proxies=None if rewards is None else known(rewards, low, high),
                losses=None if training is None else known(training, low, high),
                deliveries=None if deliveries is None else deliveries[low:high],
                replicates=None if again is None else again[low:high],
                hacking=hacking,
                peak_s=peak_s,
                fails_at_s=fails,
                noise_scale=noise,
                sync_share=sync or 0.0,
            )

    def _rows(self, start: int, stop: int) -> Iterator[_Row]:
        """Return what is known of jobs beside their evaluations."""
        nothing = [None] * (stop - start)
        return zip(
            self._specs(start, stop),
            self.submit_s[start:stop].tolist(),
            self.duration_s[start:stop].tolist(),
            self.hacking[start:stop].tolist(),
            self.peak_s[start:stop].tolist(),
            optional_values(self.fails_at_s, start, stop) or nothing,
            optional_values(self.noise_scale, start, stop) or nothing,
            optional_values(self.sync_share, start, stop) or nothing,
            strict=True,
        )

    def _specs(self, start: int, stop: int) -> Iterator[JobSpec]:
        """Yield what the tenants submit."""
        nothing = [None] * (stop - start)
        for name, gpus, tenant, job_type, estimated_s, fewest, most, labels in zip(
            map(str, range(start, stop)) if self.ids is None else self.ids[start:stop],
            self.gpus[start:stop].tolist(),
            [self.tenants[index] for index in self.tenant[start:stop].tolist()],
            [self.job_types[index] for index in self.job_type[start:stop].tolist()],
            optional_values(self.estimated_s, start, stop) or nothing,
            optional_column(self.min_gpus, start, stop) or nothing,
            optional_column(self.max_gpus, start, stop) or nothing,
            nothing if self.labels is None else self.labels[start:stop],
            strict=True,
        ):
            yield JobSpec(
                id=name,
                tenant=tenant,
                job_type=job_type,
                gpus=gpus,
                min_gpus=fewest or None,
                max_gpus=most or None,
                estimated_s=estimated_s,
                labels={} if labels is None else labels,
            )

    def _deliveries(self, first: int, last: int) -> list[list[float]] | None:
        """Return the delays of evaluations ``first`` to ``last - 1``."""
        if self.delivery_bounds is None or self.delivery_delays_s is None:
            return None
        bounds = self.delivery_bounds[first : last + 1].tolist()
        delays = self.delivery_delays_s[bounds[0] : bounds[-1]].tolist()
        zero = bounds[0]
        return [delays[low - zero : high - zero] for low, high in pairwise(bounds)]

    @classmethod
    def from_jobs(cls, jobs: Sequence[SimJob]) -> Workload:
        """Return these jobs, sorted by submission (stable), without loss of precision.

        Raises:
            InputError: a job is impossible, or its lists are of different lengths.
        """
        ordered = sorted(jobs, key=lambda job: job.submit_s)
        for job in ordered:
            require_fitting(job)
        specs = [job.spec for job in ordered]
        tenants, tenant = index_of([spec.tenant for spec in specs])
        job_types, job_type = index_of([spec.job_type for spec in specs])
        counts = [len(job.eval_offsets) for job in ordered]
        delivery_bounds, delays = nested([job.deliveries for job in ordered], counts)
        return cls(
            submit_s=flat_floats([job.submit_s for job in ordered]),
            duration_s=flat_floats([job.duration_s for job in ordered]),
            gpus=flat_integers([spec.gpus for spec in specs]),
            hacking=np.array([job.hacking for job in ordered], dtype=np.bool_),
            peak_s=flat_floats([job.peak_s for job in ordered]),
            tenant=tenant,
            job_type=job_type,
            bounds=flat_integers([0, *accumulate(counts)]),
            eval_offsets=flat_floats(chain.from_iterable(job.eval_offsets for job in ordered)),
            eval_steps=flat_integers(chain.from_iterable(job.eval_steps for job in ordered)),
            scores=flat_floats(chain.from_iterable(job.scores for job in ordered)),
            true_scores=flat_floats(chain.from_iterable(job.true_scores for job in ordered)),
            tenants=tenants,
            job_types=job_types,
            estimated_s=optional_floats([spec.estimated_s for spec in specs]),
            fails_at_s=optional_floats([job.fails_at_s for job in ordered]),
            min_gpus=optional_integers([spec.min_gpus for spec in specs]),
            max_gpus=optional_integers([spec.max_gpus for spec in specs]),
            noise_scale=optional_floats([job.noise_scale for job in ordered]),
            sync_share=optional_floats([job.sync_share or None for job in ordered]),
            ids=[spec.id for spec in specs],
            labels=[spec.labels for spec in specs] if any(s.labels for s in specs) else None,
            stderrs=ragged([job.stderrs for job in ordered], counts),
            proxies=ragged([job.proxies for job in ordered], counts),
            losses=ragged([job.losses for job in ordered], counts),
            replicates=padded([job.replicates for job in ordered], counts),
            delivery_bounds=delivery_bounds,
            delivery_delays_s=delays,
        )


def _without_evaluations(rows: Iterable[_Row]) -> Iterator[SimJob]:
    """Yield jobs that make none: 2.5 times as fast as cutting empty columns into pieces."""
    for spec, submit_s, duration_s, hacking, peak_s, fails_at_s, noise_scale, sync_share in rows:
        yield SimJob(
            spec=spec,
            submit_s=submit_s,
            duration_s=duration_s,
            hacking=hacking,
            peak_s=peak_s,
            fails_at_s=fails_at_s,
            noise_scale=noise_scale,
            sync_share=sync_share or 0.0,
        )
