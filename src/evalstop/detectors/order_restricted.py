"""Is a curve that rises and then falls a better fit than one that never falls?"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised
from evalstop.detectors.scan import reported_variance
from evalstop.detectors.scatter import START as NO_SCATTER
from evalstop.detectors.scatter import Scatter, estimated, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Block", "OrderRestricted", "OrderRestrictedState", "pooled", "rising_loss"]

Block: TypeAlias = tuple[float, float, float]
"""Mean, weight and loss (weighted sum of squares about the mean) of pooled scores."""


class OrderRestrictedState(Struct, frozen=True, gc=False):
    """Best so far, scatter, the newest scores and their reported variances (0.0 if unknown)."""

    peak: Peak = NO_PEAK
    scatter: Scatter = NO_SCATTER
    scores: tuple[float, ...] = ()
    variances: tuple[float, ...] = ()


class OrderRestricted(Struct, frozen=True, kw_only=True):
    """Alarm when a rise-then-fall beats every non-decreasing curve by a margin.

    statistic = min over non-decreasing f of sum (y - f)^2 / se^2
              - min over unimodal f of the same,

    twice the log likelihood ratio of two order-restricted hypotheses; both fits by pooling
    adjacent violators. No window, slope or size is assumed, and the fit tells where the peak is.

    Args:
        threshold: alarm level, in squared standard errors, > 0. On flat independent noise 15
            stops 1 % of runs of 10 evaluations, 19 of runs of 20, and 23 of runs of 40.
        window: newest evaluations that are fitted, >= 4.

    Cost: one pass of pooling forwards and one backwards, O(window) an evaluation.

    While no error is reported it is estimated (`evalstop.detectors.scatter`), from 6 evaluations
    on; before that nothing is raised. **False alarms** grow with the number of evaluations: use
    `scan` for a rate that is held for life. It is a second opinion that needs no bank of shapes.

    Example:
        >>> rule = OrderRestricted()
        >>> state = rule.start()
        >>> for step, score in enumerate([0.5, 0.6, 0.61, 0.4, 0.41]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Robertson, Wright, Dykstra, "Order Restricted Statistical Inference", Wiley, 1988.
    """

    threshold: float = 23.0
    window: int = 60

    def __post_init__(self) -> None:
        require_numbers(self, "order-restricted")
        if self.threshold <= 0 or self.window < 4:  # noqa: PLR2004 -- a rise and a fall take four
            msg = (
                "order-restricted: expected threshold > 0 and window >= 4, but got "
                f"threshold={self.threshold}, window={self.window}"
            )
            raise SpecError(msg)

    def start(self) -> OrderRestrictedState:
        """Return the state before the first evaluation."""
        return OrderRestrictedState()

    def step(
        self, state: OrderRestrictedState, point: EvalPoint
    ) -> tuple[OrderRestrictedState, Verdict]:
        """Fit both curves to the newest evaluations."""
        peak = raised(state.peak, point)
        scores = (*state.scores[1 - self.window :], point.score)
        variances = (*state.variances[1 - self.window :], reported_variance(point))
        scatter = spread(state.scatter, point.score, 0.0)
        known = [variance for variance in variances if variance]
        fallback = sum(known) / len(known) if known else estimated(scatter)
        statistic = 0.0
        if fallback:
            weights = [1.0 / (variance or fallback) for variance in variances]
            statistic = _ratio(scores, weights)
        return OrderRestrictedState(peak, scatter, scores, variances), Verdict(
            state=State.ALARM if statistic >= self.threshold else State.OK,
            statistic=statistic,
            threshold=self.threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note="" if fallback else "the standard error is not known yet: report stderr",
        )


def _ratio(scores: Sequence[float], weights: Sequence[float]) -> float:
    up = rising_loss(scores, weights)
    down = rising_loss(scores[::-1], weights[::-1])[::-1]
    best = min([up[-1], down[0], *(a + b for a, b in zip(up, down[1:], strict=False))])
    return max(0.0, up[-1] - best)


def rising_loss(scores: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return, for each prefix, the least weighted sum of squares about a non-decreasing curve."""
    blocks: list[Block] = []
    total = 0.0
    losses: list[float] = []
    for score, weight in zip(scores, weights, strict=True):
        total = _pool(blocks, total, score, weight)
        losses.append(total)
    return losses


def pooled(
    blocks: tuple[Block, ...], total: float, score: float, weight: float
) -> tuple[tuple[Block, ...], float]:
    """Return blocks and loss of the non-decreasing fit after one more score."""
    grown = list(blocks)
    total = _pool(grown, total, score, weight)
    return tuple(grown), total


def _pool(blocks: list[Block], total: float, score: float, weight: float) -> float:
    """Add a score in place; return the loss.

    Pooling adjacent violators: a new score is a block of its own; while it lies below the block
    before it, the two are merged. Every score is merged at most once: O(n) in all.
    """
    mean, mass, loss = score, weight, 0.0
    while blocks and blocks[-1][0] >= mean:
        other, more, lost = blocks.pop()
        total -= lost
        gap = other - mean
        loss += lost + gap * gap * mass * more / (mass + more)
        mean = (mean * mass + other * more) / (mass + more)
        mass += more
    blocks.append((mean, mass, loss))
    return total + loss
