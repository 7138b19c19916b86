"""How big jobs are, how long they take, what is thought of it, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "apportion",
    "draw_gangs",
    "estimate_durations",
    "nested_labels",
    "shuffled_kinds",
    "zipf_tenants",
]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to ``total`` and follow the weights: largest remainders.

    Exact shares, where independent draws would add noise between seeds that no policy causes.
    """
    whole = sum(weights)
    quotas = [total * weight / whole for weight in weights]
    counts = [int(quota + 1e-9) for quota in quotas]
    by_remainder = sorted(range(len(weights)), key=lambda i: (counts[i] - quotas[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def shuffled_kinds(rng: np.random.Generator, count: int, *, shares: Sequence[float]) -> Integers:
    """Return an index into the shares for each of ``count`` jobs: exact counts, random order."""
    kinds = np.repeat(np.arange(len(shares)), apportion(count, shares))
    rng.shuffle(kinds)
    return kinds.astype(np.int64)


def nested_labels(
    rng: np.random.Generator, kinds: Integers, *, shares: Sequence[float]
) -> NDArray[np.bool_]:
    """Return which jobs carry the label: an exact share of each kind.

    Labels of a lower share are among those of a higher one (same generator state), so that a
    sweep over the share compares like with like.
    """
    rank = rng.random(kinds.size)
    labels = np.zeros(kinds.size, dtype=np.bool_)
    for kind, share in enumerate(shares):
        members = np.flatnonzero(kinds == kind)
        chosen = apportion(members.size, [share, 1 - share])[0]
        labels[members[np.argsort(rank[members])[:chosen]]] = True
    return labels


def draw_gangs(rng: np.random.Generator, count: int, *, weights: Mapping[int, float]) -> Integers:
    """Return GPUs of each job, drawn by weight."""
    sizes = np.array(sorted(weights), dtype=np.int64)
    chances = np.array([weights[int(size)] for size in sizes])
    return rng.choice(sizes, size=count, p=chances / chances.sum())


def estimate_durations(
    rng: np.random.Generator, durations_s: Floats, *, sigma: float, bias: float = 1.0
) -> Floats:
    """Return bias x duration x exp(sigma z): the median estimate is right where bias is 1."""
    return bias * durations_s * np.exp(sigma * rng.standard_normal(durations_s.size))


def zipf_tenants(
    rng: np.random.Generator, count: int, *, tenants: int, exponent: float
) -> Integers:
    """Return an owner for each job: the r-th tenant (from 1) with chance ~ r^-exponent."""
    chances = np.arange(1, tenants + 1, dtype=np.float64) ** -exponent
    return rng.choice(tenants, size=count, p=chances / chances.sum())
