"""A rule beside the Bayes reference at truly equal false-stop rates.

Both get one dial: an offset added to the rule's own thresholds, and a level of the reference's
posterior odds. Either dial is set on a training half, so that a wanted share of *that cell's*
healthy runs is stopped, and both are measured on the other half. What is left between the two is
what the rule's statistic does not see; what lies between the rule so set and the rule as it is
deployed is what its thresholds pay for promises that the cell does not ask for: flat curves, and
a horizon that nobody knows.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.config.rules import parse_rule
from evalstop.core.detector import Detector
from evalstop.core.errors import InputError
from evalstop.detectors.fleet import judge
from evalstop.experiments.detection.reference import posterior_odds
from evalstop.experiments.detection.worlds import draw
from evalstop.metrics.stats import Interval, wilson_interval

__all__ = ["Curves", "EqualRates", "curves", "margins", "odds", "set_equal"]

Array = NDArray[np.float64]

_SILENT = 2
_RESAMPLES = 1000
_QUANTILES = (0.025, 0.975)


class Curves(Struct, frozen=True, kw_only=True, eq=False):
    """Scores of one cell, (runs, evals) each: healthy twins and declining runs."""

    world: str
    sigma: float
    healthy: Array
    declining: Array


class EqualRates(Struct, frozen=True, kw_only=True):
    """A rule and the reference, both set to stop ``rate`` of the healthy runs of one cell.

    Attributes:
        rate: share of healthy runs that either may stop, on the training half.
        found, reference: shares of the declining runs found, on the held-out half.
        stopped, reference_stopped: what became of ``rate`` on the held-out half.
        share: found / reference.
        interval: of the share, 95 %, by resampling runs of all four halves.
        intervals: Wilson's, of the four rates.
    """

    rate: float
    found: float
    reference: float
    stopped: float
    reference_stopped: float
    share: float
    interval: Interval
    intervals: dict[str, Interval]


def curves(world: str, evals: int, sigma: float, *, runs: int, seed: int) -> Curves:
    """Draw ``runs`` healthy twins and as many declining runs of a declining world.

    Raises:
        InputError: if the world has no declining runs.
    """
    generator = np.random.default_rng([seed, evals, round(sigma * 1000), *world.encode()])
    drawn = draw(world, generator, runs, evals)
    if drawn.declining is None:
        msg = f"world {world!r} has no declining runs to find"
        raise InputError(msg)
    shape = drawn.healthy.shape
    return Curves(
        world=world,
        sigma=sigma,
        healthy=drawn.healthy + sigma * generator.standard_normal(shape),
        declining=drawn.declining + sigma * generator.standard_normal(shape),
    )


def margins(rule: str, cell: Curves) -> tuple[Array, Array]:
    """Return how far each healthy and each declining run came above the rule's thresholds.

    The rule stops a run as it is deployed where the margin is >= 0.

    Raises:
        InputError: on a rule that needs more than scores.
    """
    detector = parse_rule(rule).for_type("rlhf")
    if not isinstance(detector, Detector):
        msg = f"rule {rule!r} needs more than scores: it has no margin on a curve"
        raise InputError(msg)
    fleets = [judge(detector, scores, cell.sigma) for scores in (cell.healthy, cell.declining)]
    # Before the third evaluation no rule says anything, and nothing said is no small evidence.
    healthy, declining = (
        (fleet.statistic - fleet.threshold)[:, _SILENT:].max(axis=1) for fleet in fleets
    )
    return healthy, declining


def odds(cell: Curves, *, seed: int, particles: int = 800) -> tuple[Array, Array]:
    """Return the highest log odds of the Bayes reference in each healthy and declining run."""
    healthy, declining = (
        posterior_odds(
            cell.world, scores, cell.sigma, np.random.default_rng(seed), particles=particles
        ).max(axis=1)
        for scores in (cell.healthy, cell.declining)
    )
    return healthy, declining


def set_equal(
    rule: tuple[Array, Array], reference: tuple[Array, Array], rate: float, *, seed: int
) -> EqualRates:
    """Set both on the first half of the runs and measure them on the second.

    Args:
        rule: `margins`, healthy and declining, in the order of the runs.
        reference: `odds` of the same runs.
        rate: share of healthy runs to stop.
        seed: of the resampling.
    """
    half = rule[0].size // 2
    levels = [_level(pair[0][:half], rate) for pair in (rule, reference)]
    own, other = (
        pair[1][half:] >= level for pair, level in zip((rule, reference), levels, strict=True)
    )
    false, theirs = (
        pair[0][half:] >= level for pair, level in zip((rule, reference), levels, strict=True)
    )
    return EqualRates(
        rate=rate,
        found=float(own.mean()),
        reference=float(other.mean()),
        stopped=float(false.mean()),
        reference_stopped=float(theirs.mean()),
        share=float(own.mean() / other.mean()),
        interval=_share_interval(rule, reference, rate, np.random.default_rng(seed)),
        intervals={
            name: wilson_interval(int(hits.sum()), hits.size)
            for name, hits in (
                ("found", own),
                ("reference", other),
                ("stopped", false),
                ("reference_stopped", theirs),
            )
        },
    )


def _level(healthy: Array, rate: float) -> float:
    """Return the level that ``rate`` of these runs reach, at least one of them."""
    allowed = max(round(rate * healthy.size), 1)
    return float(np.partition(healthy, healthy.size - allowed)[healthy.size - allowed])


def _share_interval(
    rule: tuple[Array, Array],
    reference: tuple[Array, Array],
    rate: float,
    generator: np.random.Generator,
) -> Interval:
    half = rule[0].size // 2
    shares = []
    for _ in range(_RESAMPLES):
        train = generator.integers(0, half, half)
        test = generator.integers(half, rule[1].size, rule[1].size - half)
        found = [
            (pair[1][test] >= _level(pair[0][train], rate)).mean() for pair in (rule, reference)
        ]
        shares.append(found[0] / max(found[1], 1.0 / half))
    low, high = np.quantile(shares, _QUANTILES)
    return (float(low), float(high))
