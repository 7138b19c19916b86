"""Early-stop rules that need more than the curve: the paper's two rivals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.errors import SpecError
from evalstop.core.events import EvalReported, LossReported
from evalstop.core.points import State, Verdict
from evalstop.core.settings import require_numbers

if TYPE_CHECKING:
    from evalstop.core.job import JobView

__all__ = ["LossPlateau", "PlateauState", "StopAt"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM
_OK = State.OK


class StopAt(Struct, frozen=True, kw_only=True):
    """Stop every job at a fixed share of its estimated service, whatever its scores.

    statistic = attained / estimated service; alarm at the first evaluation where it reaches
    ``fraction``. A constant classifier: its precision is the base rate.

    Args:
        fraction: share of the estimated service, in (0, 1).

    A job without an estimate is never stopped.

    **False alarms**: every healthy job that has an estimate.

    Example:
        >>> StopAt(fraction=0.65)
        StopAt(fraction=0.65)

    Reference:
        The paper's StopAt-0.65.
    """

    fraction: float = 0.65

    def __post_init__(self) -> None:
        require_numbers(self, "stop-at")
        if not 0 < self.fraction < 1:
            msg = f"stop-at: fraction must lie between 0 and 1, but got fraction={self.fraction}"
            raise SpecError(msg)

    def begin(self) -> None:
        """Return the (empty) state."""

    def judge(
        self, state: None, event: EvalReported | LossReported, job: JobView, now: float
    ) -> tuple[None, Verdict]:
        """Compare the progress with the fraction."""
        if job.estimated_s is None or type(event) is LossReported:
            return state, Verdict(threshold=self.fraction)
        progress = job.attained_s(now) / job.estimated_s if job.estimated_s > 0 else 1.0
        reached = progress >= self.fraction
        return state, Verdict(
            state=_ALARM if reached else _OK, statistic=progress, threshold=self.fraction
        )


class PlateauState(Struct, frozen=True, gc=False):
    """Lowest loss so far and for how many reports it has not fallen enough."""

    lowest: float
    stale: int


class LossPlateau(Struct, frozen=True, kw_only=True):
    """Stop when the training loss has not fallen by ``min_delta`` for ``patience`` reports.

    Recursion: if loss < lowest * (1 - min_delta) then lowest = loss, stale = 0, else
    stale += 1; alarm when stale >= patience. ``min_delta`` is relative to the lowest loss.

    Args:
        patience: reports of the loss without enough progress, >= 1.
        min_delta: relative fall that counts as progress, >= 0.

    It is blind to over-optimisation by construction: the loss keeps falling while quality does.
    Non-finite losses are passed over.

    **False alarms**: every healthy job whose loss flattens before its end.

    Example:
        >>> LossPlateau(patience=5).begin().stale
        0

    Reference:
        The paper's LossPlateau baseline.
    """

    patience: int = 3
    min_delta: float = 0.01

    def __post_init__(self) -> None:
        require_numbers(self, "loss-plateau")
        if self.patience < 1 or self.min_delta < 0:
            msg = (
                "loss-plateau: expected patience >= 1 and min_delta >= 0, but got "
                f"patience={self.patience}, min_delta={self.min_delta}"
            )
            raise SpecError(msg)

    def begin(self) -> PlateauState:
        """Return the state before the first loss."""
        return PlateauState(math.inf, 0)

    def judge(
        self, state: PlateauState, event: EvalReported | LossReported, job: JobView, now: float
    ) -> tuple[PlateauState, Verdict]:
        """Count reports without progress. The job's view and the time are not needed."""
        del job, now
        if type(event) is LossReported and math.isfinite(event.loss):
            margin = abs(state.lowest) * self.min_delta if math.isfinite(state.lowest) else 0.0
            fell = event.loss < state.lowest - margin
            state = (
                PlateauState(event.loss, 0) if fell else PlateauState(state.lowest, state.stale + 1)
            )
        return state, Verdict(
            state=_ALARM if state.stale >= self.patience else _OK,
            statistic=state.stale,
            threshold=self.patience,
        )
