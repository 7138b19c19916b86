"""One change of level, of any size, at any time: the exact likelihood ratio in small memory."""

from __future__ import annotations

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.scan import reported_variance
from evalstop.detectors.scatter import START as NO_SCATTER
from evalstop.detectors.scatter import Scatter, estimated, spread

__all__ = ["GlrCusum", "GlrState"]


class GlrState(Struct, frozen=True, gc=False):
    """Best so far, noise, and the corners (evaluations, sum of scores) where a fall may start."""

    peak: Peak = NO_PEAK
    scatter: Scatter = NO_SCATTER
    reported: int = 0
    reported_sum: float = 0.0
    origin: float = 0.0
    corners: tuple[tuple[int, float], ...] = ((0, 0.0),)


class GlrCusum(Struct, frozen=True, kw_only=True):
    """Alarm when one fall of level, at the likeliest time and of the likeliest size, explains it.

    statistic = max over tau of (mean of 1..tau - mean of tau+1..n) sqrt(tau (n - tau) / n) / se,

    the root of twice the log likelihood ratio, both levels unknown, falls only. The maximum is
    reached at a corner of the least concave curve above the cumulative sums S_tau, so only the
    corners are kept: about log n of them, instead of all n sums (functional pruning).

    Args:
        threshold: alarm level, in standard errors, > 0. On flat noise 4 stops about 0.3 % of
            runs of 20 evaluations and 0.7 % of 100.

    The level before the fall is the mean of *all* evaluations before it, the rise included. After
    a rise the rule is therefore safe and slow: it sees a fall only once scores lie below that
    mean. Use it on curves that start on their plateau, and `scan` on others.

    Example:
        >>> rule = GlrCusum()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.6, 0.61, 0.6, 0.4, 0.41]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Romano, Eckley, Fearnhead, Rigaill, "Fast online changepoint detection via functional
        pruning CUSUM statistics", Journal of Machine Learning Research 24, 2023.
    """

    threshold: float = 4.0

    def __post_init__(self) -> None:
        require_numbers(self, "glr-cusum")
        if not self.threshold > 0:
            msg = f"glr-cusum: threshold must be > 0, but got threshold={self.threshold}"
            raise SpecError(msg)

    def start(self) -> GlrState:
        """Return the state before the first evaluation."""
        return GlrState()

    def step(self, state: GlrState, point: EvalPoint) -> tuple[GlrState, Verdict]:
        """Add one score to the sums; drop the corners it hides."""
        variance = reported_variance(point)
        scatter = spread(state.scatter, point.score, 0.0)
        reported = state.reported + 1 if variance else state.reported
        reported_sum = state.reported_sum + variance
        origin = state.origin if state.scatter.count else point.score
        count = scatter.count
        # Sums of scores less the first one: large numbers of one sign would lose digits.
        total = state.corners[-1][1] + point.score - origin
        sigma2 = reported_sum / reported if reported else estimated(scatter)
        square = max((_square(corner, count, total) for corner in state.corners[1:-1]), default=0.0)
        if len(state.corners) > 1:
            square = max(square, _square(state.corners[-1], count, total))
        statistic = (square / sigma2) ** 0.5 if sigma2 else 0.0
        peak = raised(state.peak, point)
        corners = _bent(state.corners, (count, total))
        return GlrState(peak, scatter, reported, reported_sum, origin, corners), Verdict(
            state=State.ALARM if statistic >= self.threshold else State.OK,
            statistic=statistic,
            threshold=self.threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note="" if sigma2 else "the standard error is not known yet: report stderr or n_items",
        )


def _square(corner: tuple[int, float], count: int, total: float) -> float:
    """Return the squared fall after ``corner``, times tau (n - tau) / n; 0 for a rise."""
    before, partial = corner
    after = count - before
    if not before or not after:
        return 0.0
    fall = partial / before - (total - partial) / after
    return fall * fall * before * after / count if fall > 0 else 0.0


def _bent(
    corners: tuple[tuple[int, float], ...], newest: tuple[int, float]
) -> tuple[tuple[int, float], ...]:
    """Append a point to a chain of falling slopes; leave out corners that no longer stick out."""
    chain = list(corners)
    while len(chain) > 1:
        (a, low), (b, high) = chain[-2], chain[-1]
        if (high - low) * (newest[0] - b) > (newest[1] - high) * (b - a):
            break
        chain.pop()
    chain.append(newest)
    return tuple(chain)
