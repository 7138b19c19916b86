"""From a scenario and a seed to a workload: the one place where a generator is made.

Each concern draws from its own child generator, so that changing one (noise, load, the hacking
share) leaves what the others drew as it was: sweeps and paired comparisons share their luck.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evalstop.core.errors import InputError
from evalstop.workloads.arrivals import bursty_arrivals, mean_gap_s, poisson_arrivals
from evalstop.workloads.job import Workload
from evalstop.workloads.observe import delivery_delays
from evalstop.workloads.scenario_text import check_scenario
from evalstop.workloads.series import Series, Ways, draw, draw_ways, make_series
from evalstop.workloads.sizes import (
    draw_gangs,
    estimate_durations,
    nested_labels,
    shuffled_kinds,
    zipf_tenants,
)

if TYPE_CHECKING:
    from evalstop.workloads.scenario import Scenario

__all__ = ["Arrived", "generate", "generate_on"]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_BLOCK = 1 << 16
"""Jobs worked on at once: bounds what is held beside the columns."""


class Arrived(Struct, frozen=True, kw_only=True, eq=False):
    """What came to the cluster, without curves: drawn, or read from a trace.

    Attributes:
        submit_s: increasing, shape (jobs,).
        duration_s, gpus: shape (jobs,).
        evals: evaluations of each job, shape (jobs,); None: as the scenario says.
        tenant, tenants: index and names; None: as the scenario says.
        job_type, job_types: likewise.
        estimated_s: NaN for none; None: as the scenario says.
        ids: names; None: numbers.
    """

    submit_s: Floats
    duration_s: Floats
    gpus: Integers
    evals: Integers | None = None
    tenant: Integers | None = None
    tenants: tuple[str, ...] = ()
    job_type: Integers | None = None
    job_types: tuple[str, ...] = ()
    estimated_s: Floats | None = None
    ids: tuple[str, ...] | None = None


class _Roles(Struct, frozen=True, kw_only=True, eq=False):
    """Who is what. ``stretch``: how much longer a run is than the law of durations says."""

    kinds: Integers
    names: tuple[str, ...]
    hacking: NDArray[np.bool_]
    ways: Ways
    evals: Integers
    stretch: Floats


class _Streams(Struct, frozen=True, kw_only=True):
    """One generator a concern. New ones go to the end, or every seed changes its meaning."""

    arrivals: np.random.Generator
    gangs: np.random.Generator
    durations: np.random.Generator
    evals: np.random.Generator
    estimates: np.random.Generator
    tenants: np.random.Generator
    types: np.random.Generator
    labels: np.random.Generator
    curves: np.random.Generator
    noise: np.random.Generator
    signals: np.random.Generator
    deliveries: np.random.Generator
    failures: np.random.Generator
    elasticity: np.random.Generator
    mitigation: np.random.Generator
    ways: np.random.Generator
    replicates: np.random.Generator


def generate(scenario: Scenario, seed: int) -> Workload:
    """Return the workload that a scenario gives with a seed: the same one, always.

    Raises:
        SpecError: the scenario is none that a file could describe.
        InputError: its jobs do not fit into memory, or are longer than a number can say.
    """
    check_scenario(scenario)
    streams = _streams(seed)
    try:
        roles = _cast(scenario, scenario.jobs, streams)
        arrived = _draw_arrivals(scenario, roles, streams)
        return _with_elasticity(scenario, _with_curves(scenario, arrived, roles, streams), streams)
    except MemoryError as error:
        message = f"{scenario.jobs} jobs do not fit into memory ({error}): ask for fewer"
        raise InputError(message) from None


def generate_on(scenario: Scenario, arrived: Arrived, seed: int) -> Workload:
    """Return jobs that came at other times and sizes (a real trace) with the scenario's curves.

    Types, labels, evaluations and whatever else the trace leaves open are the scenario's.

    Raises:
        SpecError: as for `generate`.
    """
    check_scenario(scenario)
    streams = _streams(seed)
    roles = _cast(scenario, arrived.submit_s.size, streams, arrived)
    return _with_elasticity(scenario, _with_curves(scenario, arrived, roles, streams), streams)


def _streams(seed: int) -> _Streams:
    """Return independent generators."""
    fields = _Streams.__struct_fields__
    children = np.random.default_rng(seed).spawn(len(fields))
    return _Streams(**dict(zip(fields, children, strict=True)))


def _cast(
    scenario: Scenario, jobs: int, streams: _Streams, arrived: Arrived | None = None
) -> _Roles:
    """Draw who is what: types, hidden labels, where jobs peak, how often they are evaluated."""
    if arrived is not None and arrived.job_type is not None:
        kinds, names = arrived.job_type, arrived.job_types
    else:
        names = tuple(scenario.types)
        kinds = shuffled_kinds(streams.types, jobs, shares=list(scenario.types.values()))
    shares = [scenario.hacking.get(name, 0.0) for name in names]
    hacking = nested_labels(streams.labels, kinds, shares=shares)
    plan = scenario.mitigation
    held_back = streams.mitigation.random(jobs) < plan.share
    kl_factor = np.where(held_back, plan.kl_factor, 1.0)
    ways = draw_ways(streams.ways, scenario.curves, hacking, kl_factor=kl_factor)
    if scenario.curves.clock == "peak":
        ways, evals, stretch = _by_the_peak(scenario, ways, streams)
    else:
        low, high = scenario.evals.counts
        evals = streams.evals.integers(low, high, size=jobs, endpoint=True)
        stretch = np.ones(jobs)
    if arrived is not None and arrived.evals is not None:
        evals = arrived.evals
    return _Roles(
        kinds=kinds, names=names, hacking=hacking, ways=ways, evals=evals, stretch=stretch
    )


def _by_the_peak(
    scenario: Scenario, ways: Ways, streams: _Streams
) -> tuple[Ways, Integers, Floats]:
    """Return ways, evaluations and how much longer runs are, where the peak is the clock.

    The peak lies ``base`` evaluations from the start by the same law for every label, and each
    run ends at a whole number of evaluations, on its side of the peak.
    """
    low, high = scenario.evals.counts
    base = np.maximum(1.0, low + (high - low) * streams.evals.random(ways.peak.size))
    ends = np.rint(base / ways.peak)
    beyond = ways.peak < 1
    ends = np.where(beyond, np.maximum(ends, np.floor(base) + 1), np.minimum(ends, np.floor(base)))
    evals = np.maximum(1, ends).astype(np.int64)
    slots = evals if scenario.evals.at_end else evals + 1
    return Ways(peak=base / slots, power=ways.power), evals, slots / base


def _draw_arrivals(scenario: Scenario, roles: _Roles, streams: _Streams) -> Arrived:
    """Return sizes, durations and times of arrival."""
    jobs, law = scenario.jobs, scenario.durations
    gangs = draw_gangs(streams.gangs, jobs, weights=scenario.gangs)
    with np.errstate(over="ignore"):
        spans = law.median_s * np.exp(law.sigma * streams.durations.standard_normal(jobs))
        durations = spans * (np.maximum(roles.evals, 1) if law.per_eval else roles.stretch)
        whole = float((gangs * durations).sum())
    if not math.isfinite(whole):
        message = (
            f"durations of median {law.median_s:g} s and sigma {law.sigma:g} come to more seconds "
            "than a number can say: lower durations.median_s or durations.sigma"
        )
        raise InputError(message)
    if law.whole_seconds:
        durations = np.maximum(1.0, np.rint(durations))
    return Arrived(
        submit_s=_draw_times(scenario, gangs * durations, streams),
        duration_s=durations,
        gpus=gangs,
    )


def _draw_times(scenario: Scenario, work: Floats, streams: _Streams) -> Floats:
    """Return times of arrival for jobs of this work."""
    plan, jobs = scenario.arrivals, work.size
    if plan.process == "batch" or jobs == 0:
        return np.zeros(jobs)
    gap = mean_gap_s(work, load=plan.load, gpus=scenario.capacity)
    if plan.process == "bursty":
        times = bursty_arrivals(streams.arrivals, jobs, gap_s=gap, variation=plan.variation)
    else:
        times = poisson_arrivals(streams.arrivals, jobs, gap_s=gap)
    return np.rint(times) if scenario.durations.whole_seconds else times


def _with_curves(
    scenario: Scenario, arrived: Arrived, roles: _Roles, streams: _Streams
) -> Workload:
    """Return the arrived jobs with all that is missing of them."""
    tenant, tenants = _tenants(scenario, arrived, streams)
    lying = tenant >= len(tenants) - scenario.adversaries.tenants
    series = make_series(
        scenario,
        roles.hacking,
        roles.evals,
        ways=roles.ways,
        hiding=lying & scenario.adversaries.hide_declines,
        curves=streams.curves,
        noise=streams.noise,
        signals=streams.signals,
        replicates=streams.replicates,
    )
    bounds, delays = delivery_delays(streams.deliveries, series.evals, plan=scenario.deliveries)
    return Workload(
        submit_s=arrived.submit_s,
        duration_s=arrived.duration_s,
        gpus=arrived.gpus,
        hacking=series.hacking,
        peak_s=arrived.duration_s * series.peak,
        tenant=tenant,
        tenants=tenants,
        job_type=roles.kinds,
        job_types=roles.names,
        bounds=series.bounds,
        eval_offsets=_offsets(series, arrived.duration_s),
        eval_steps=series.steps,
        scores=series.scores,
        true_scores=series.true_scores,
        stderrs=series.stderrs,
        proxies=series.proxies,
        losses=series.losses,
        replicates=series.replicates,
        estimated_s=_estimates(scenario, arrived, lying, streams),
        fails_at_s=_failures(scenario, arrived.duration_s, streams),
        ids=arrived.ids,
        delivery_bounds=bounds,
        delivery_delays_s=delays,
    )


def _offsets(series: Series, duration_s: Floats) -> NDArray[np.floating[Any]]:
    """Turn progress into service, in place and in blocks: exactly the duration at the end."""
    counts = np.diff(series.bounds)
    for start in range(0, duration_s.size, _BLOCK):
        stop = min(start + _BLOCK, duration_s.size)
        part = slice(int(series.bounds[start]), int(series.bounds[stop]))
        series.progress[part] *= np.repeat(duration_s[start:stop], counts[start:stop])
    return series.progress


def _tenants(
    scenario: Scenario, arrived: Arrived, streams: _Streams
) -> tuple[Integers, tuple[str, ...]]:
    """Return each job's owner."""
    if arrived.tenant is not None:
        return arrived.tenant, arrived.tenants
    plan = scenario.tenants
    owners = zipf_tenants(
        streams.tenants, arrived.submit_s.size, tenants=plan.count, exponent=plan.exponent
    )
    return owners, tuple(f"tenant-{rank}" for rank in range(1, plan.count + 1))


def _estimates(
    scenario: Scenario, arrived: Arrived, lying: NDArray[np.bool_], streams: _Streams
) -> Floats | None:
    """Return what is said of each duration."""
    law = scenario.durations
    if arrived.estimated_s is not None:
        estimates = arrived.estimated_s
    elif law.estimated:
        estimates = estimate_durations(
            streams.estimates, arrived.duration_s, sigma=law.estimate_sigma, bias=law.estimate_bias
        )
    else:
        return None
    return np.where(lying, scenario.adversaries.estimate_factor, 1.0) * estimates


def _with_elasticity(scenario: Scenario, workload: Workload, streams: _Streams) -> Workload:
    """Return the workload with what elastic jobs can do with other numbers of GPUs."""
    plan, rng, gpus = scenario.elasticity, streams.elasticity, workload.gpus
    if not plan.share:
        return workload
    elastic = rng.random(gpus.size) < plan.share
    noise, sync = (draw(rng, law, gpus.size)[:, 0] for law in (plan.noise_scale, plan.sync_share))
    return replace(
        workload,
        min_gpus=np.where(elastic, np.maximum(1, gpus // plan.shrink), 0),
        max_gpus=np.where(elastic, np.minimum(scenario.gpus, gpus * plan.stretch), 0),
        noise_scale=np.where(elastic, noise, np.nan),
        sync_share=np.where(elastic, sync, np.nan),
    )


def _failures(scenario: Scenario, duration_s: Floats, streams: _Streams) -> Floats | None:
    """Return the service at which jobs crash, NaN for those that do not."""
    if not scenario.fails:
        return None
    crashing = streams.failures.random(duration_s.size) < scenario.fails
    instants = streams.failures.random(duration_s.size) * duration_s
    return np.where(crashing, instants, np.nan)
