"""The same questions, asked of two checkpoints: differences are far less noisy than scores."""

from __future__ import annotations

import math
from statistics import NormalDist

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.peak import START as NO_PEAK
from evalstop.detectors.peak import Peak, raised

__all__ = ["Paired", "PairedState"]

_FEWEST_ITEMS = 10
_NORMAL = NormalDist()


class PairedState(Struct, frozen=True, gc=False):
    """Best so far, evaluations with items, and the items of the best of them."""

    peak: Peak = NO_PEAK
    count: int = 0
    best: float = -math.inf
    items: tuple[float, ...] = ()


class Paired(Struct, frozen=True, kw_only=True):
    """Alarm when the checkpoint answers items worse than the best one did, item by item.

    d_i = item i at the best checkpoint - item i now; statistic = mean d / (sd d / sqrt m), m
    items. Two checkpoints of one run agree on most items, so with correlation c the variance of
    the difference is 1 - c times that of two independent scores.

    Args:
        alpha: chance that a job whose quality does not fall is ever stopped, in (0, 0.5).

    The threshold at evaluation n is the normal quantile of 2 alpha / ((n - 1) n (n + 1)): over
    all pairs of a past and a present evaluation that adds up to alpha at most, so that it does
    not matter that the best one was picked because it was the best. (Holds for mean differences
    that are near normal: 30 items or more.)

    Items must come in a fixed order, the same in each evaluation (`EvalPoint.items`). Evaluations
    without items, with fewer than 10 or with another number of them are passed over, and the
    verdict says so. Combine it with `scan` by `AnyOf` where only some evaluations carry items.

    Example:
        >>> rule = Paired()
        >>> state = rule.start()
        >>> good, bad = (1.0,) * 90 + (0.0,) * 10, (1.0,) * 60 + (0.0,) * 40
        >>> for step, items in enumerate([good, good, bad]):
        ...     point = EvalPoint(step=step, score=sum(items) / 100, items=items)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Miller, "Adding error bars to evals", arXiv 2411.00640, 2024.
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        require_numbers(self, "paired")
        if not 0 < self.alpha < 0.5:  # noqa: PLR2004 -- a rate above one half is no test
            msg = f"paired: alpha must lie between 0 and 0.5, but got alpha={self.alpha}"
            raise SpecError(msg)

    def start(self) -> PairedState:
        """Return the state before the first evaluation."""
        return PairedState()

    def step(self, state: PairedState, point: EvalPoint) -> tuple[PairedState, Verdict]:
        """Compare the items with those of the best checkpoint."""
        peak = raised(state.peak, point)
        items = point.items or ()
        count = state.count
        statistic, note = 0.0, ""
        if len(items) < _FEWEST_ITEMS:
            note = f"no comparison: {len(items)} items, {_FEWEST_ITEMS} are needed"
        elif state.items and len(items) != len(state.items):
            note = f"no comparison: {len(items)} items, but the best checkpoint has "
            note += f"{len(state.items)}: open a new epoch (epoch_key) for a changed suite"
        else:
            count += 1
            statistic = _paired(state.items, items) if state.items else 0.0
        better = not note and point.score > state.best
        state = PairedState(
            peak,
            count,
            point.score if better else state.best,
            items if better else state.items,
        )
        threshold = self._threshold(max(count, 2))
        return state, Verdict(
            state=State.ALARM if not note and statistic >= threshold else State.OK,
            statistic=statistic,
            threshold=threshold,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note=note,
        )

    def _threshold(self, count: int) -> float:
        return -_NORMAL.inv_cdf(2.0 * self.alpha / ((count - 1) * count * (count + 1)))


def _paired(best: tuple[float, ...], now: tuple[float, ...]) -> float:
    """Return the mean difference in its own standard errors, with one pseudo-difference.

    A difference of one item each way is added, so that two checkpoints which agree on every item
    but one do not look infinitely certain.
    """
    differences = [a - b for a, b in zip(best, now, strict=True)]
    size = len(differences)
    mean = sum(differences) / size
    largest = max(map(abs, differences))
    if largest == 0.0:
        return 0.0
    squares = sum((d - mean) ** 2 for d in differences) + 2.0 * largest * largest
    return mean / math.sqrt(squares / (size - 1) / size)
