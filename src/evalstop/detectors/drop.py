"""Far enough below the best, often enough in a row: the best of the simple rules."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import require_numbers
from evalstop.detectors.noise import WINDOW, sigma_of
from evalstop.detectors.peak import START, Peak, raised

__all__ = ["Drop", "DropState", "Unit"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM
_OK = State.OK
_SUSPECT = State.SUSPECT

Unit = Literal["se", "percent", "absolute"]

_NO_UNIT = {
    "se": "the standard error is not known yet: report stderr or n_items",
    "percent": "there is no percent of a best score of 0: take unit=se or unit=absolute",
}
"""Why a drop cannot be measured."""


class DropState(Struct, frozen=True, gc=False):
    """Best so far, evaluations in a row below the line, and what the noise is read from."""

    peak: Peak
    below: int
    previous: float | None
    differences: tuple[float, ...]


class Drop(Struct, frozen=True, kw_only=True):
    """Alarm after ``k`` evaluations in a row at least ``g`` units below the best.

    statistic = (best - score) / unit, where the unit is one standard error (max of reported and
    robust, `evalstop.detectors.noise`), one percent of |best|, or 1 in the metric's units.
    Scaling all scores changes nothing in the first two (R13).

    Args:
        g: depth of the drop, > 0, in units.
        k: evaluations in a row, >= 1.
        unit: "se", "percent" or "absolute".

    While the standard error is unknown, unit "se" raises nothing: the verdict says so.

    **False alarms.** The best of n noisy scores lies above the truth by about sqrt(2 ln n)
    errors, so a fixed g leaks slowly as evaluations go on: about 3 % at g = 5, k = 1 and 5 % at
    g = 4.5, k = 2 in 30 evals of a plateau. Use `scan` for a rate that is held.

    Example:
        >>> rule = Drop(g=5.0, k=1)
        >>> state = rule.start()
        >>> for step, score in enumerate([0.50, 0.60, 0.59, 0.40]):
        ...     point = EvalPoint(step=step, score=score, stderr=0.02)
        ...     state, verdict = rule.step(state, point)
        >>> verdict.alarm
        True

    Reference:
        Prechelt, "Early Stopping - But When?", in Neural Networks: Tricks of the Trade, 1998: its
        generalisation loss is unit "percent" with k = 1.
    """

    g: float = 5.0
    k: int = 2
    unit: Unit = "se"

    def __post_init__(self) -> None:
        require_numbers(self, "drop")
        if self.g <= 0 or self.k < 1 or self.unit not in ("se", "percent", "absolute"):
            msg = (
                "drop: expected g > 0, k >= 1 and unit se, percent or absolute, but got "
                f"g={self.g}, k={self.k}, unit={self.unit}"
            )
            raise SpecError(msg)

    def start(self) -> DropState:
        """Return the state before the first evaluation."""
        return DropState(START, 0, None, ())

    def step(self, state: DropState, point: EvalPoint) -> tuple[DropState, Verdict]:
        """Measure one evaluation against the best."""
        differences = state.differences
        if state.previous is not None and self.unit == "se":
            differences = (*differences[1 - WINDOW :], abs(point.score - state.previous))
        peak = raised(state.peak, point)
        unit = self._size_of_unit(peak, point, differences)
        statistic = (peak.best_score - point.score) / unit if unit else 0.0
        below = state.below + 1 if statistic >= self.g else 0
        alarm = below >= self.k
        return DropState(peak, below, point.score, differences), Verdict(
            state=_ALARM if alarm else _SUSPECT if below else _OK,
            # The verdict alarms at statistic >= threshold; a drop that is not confirmed is below.
            statistic=statistic if alarm or not below else min(statistic, self.g) * below / self.k,
            threshold=self.g,
            best_step=peak.best_step,
            best_score=peak.best_score,
            note="" if unit else _NO_UNIT[self.unit],
        )

    def _size_of_unit(
        self, peak: Peak, point: EvalPoint, differences: tuple[float, ...]
    ) -> float | None:
        if self.unit == "se":
            return sigma_of(point.stderr, differences) or None
        if self.unit == "percent":
            return abs(peak.best_score) / 100 or None
        return 1.0
