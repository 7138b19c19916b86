"""Best past window against the recent window, in standard errors."""

from __future__ import annotations

import math
from statistics import NormalDist

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.detectors.noise import WINDOW, robust_sigma
from evalstop.detectors.peak import START, Peak, raised

__all__ = ["Scan", "ScanState"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM
_OK = State.OK

PAST = 3
"""Longest past window, in evaluations."""

RECENT = 5
"""Longest recent window, in evaluations."""

ROBUST_FACTOR = 1.6
"""How much further a robust error must be exceeded: it is itself an estimate from few points."""

_NORMAL = NormalDist()


class ScanState(Struct, frozen=True, gc=False):
    """Best so far, evaluations, newest scores, noise; best means by window as they were lately.

    ``pasts[-r]`` are the best means of windows that had ended r evaluations ago: a recent window
    of r is compared with those alone, since one that overlaps it would count a rise as a drop.
    """

    peak: Peak
    count: int
    recent: tuple[float, ...]
    pasts: tuple[tuple[float, ...], ...]
    differences: tuple[float, ...]


class Scan(Struct, frozen=True, kw_only=True):
    """Alarm when the recent mean lies significantly below the best past mean.

    statistic = max over p <= 3, r <= 5 of (best past mean of p - mean of last r)
    / (se sqrt(1/p + 1/r)). Under a curve that does not fall its expectation is at most 0 for
    each pair of windows, so a rise is harmless and a cliff counts as much as a slow decline.

    Args:
        alpha: chance that a job whose quality does not fall is ever stopped, in (0, 0.5).

    The threshold at evaluation n spends alpha / (n (n + 1)) over all window pairs.

    Example:
        >>> rule = Scan(alpha=0.01)
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.61, 0.4, 0.41]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:  # noqa: PLR2004 -- a rate above one half is no test
            msg = f"scan: alpha must lie between 0 and 0.5, but got alpha={self.alpha}"
            raise SpecError(msg)

    def start(self) -> ScanState:
        """Return the state before the first evaluation."""
        return ScanState(START, 0, (), ((-math.inf,) * PAST,), ())

    def step(self, state: ScanState, point: EvalPoint) -> tuple[ScanState, Verdict]:
        """Compare the windows that end here with the best ones before."""
        count = state.count + 1
        differences = state.differences
        if state.recent:
            differences = (*differences[1 - WINDOW :], abs(point.score - state.recent[-1]))
        recent = (*state.recent[-(PAST + RECENT) + 1 :], point.score)
        robust = robust_sigma(differences)
        sigma, factor = point.stderr, 1.0
        if robust is not None and (sigma is None or robust > sigma):
            sigma, factor = robust, ROBUST_FACTOR if sigma is None else 1.0
        statistic = self._statistic(state, recent, sigma) if sigma else 0.0
        peak = raised(state.peak, point)
        threshold = factor * -_NORMAL.inv_cdf(self.alpha / (count * (count + 1)) / (PAST * RECENT))
        past = tuple(
            max(best, sum(recent[-p:]) / p) if count >= p else best
            for p, best in enumerate(state.pasts[-1], start=1)
        )
        pasts = (*state.pasts[1 - RECENT :], past)
        return ScanState(peak, count, recent, pasts, differences), Verdict(
            state=_ALARM if statistic >= threshold else _OK,
            statistic=statistic,
            threshold=threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note="" if sigma else "the standard error is not known yet: report stderr or n_items",
        )

    def _statistic(self, state: ScanState, recent: tuple[float, ...], sigma: float) -> float:
        best = -math.inf
        total = 0.0
        for r in range(1, min(RECENT, len(recent), len(state.pasts)) + 1):
            total += recent[-r]
            for p, past in enumerate(state.pasts[-r], start=1):
                if past > -math.inf:
                    best = max(best, (past - total / r) / math.sqrt(1 / p + 1 / r))
        return max(0.0, best / sigma)
