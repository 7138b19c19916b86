"""A rule on one curve, at a prompt or in a training loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evalstop.core.errors import InputError
from evalstop.core.history import History
from evalstop.core.points import NOT_FINITE, EvalPoint, Verdict, stderr_of_share
from evalstop.core.signals import remarks, signals_of
from evalstop.detectors.fleet import Fleet, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from evalstop.core.detector import Detector

__all__ = ["Direction", "Monitor", "sign_of"]

Direction = Literal["max", "min"]


def sign_of(direction: str) -> float:
    """Return +1 where higher scores are better and -1 where lower ones are.

    Raises:
        InputError: if ``direction`` is neither "max" nor "min". There is no default (R07):
            guessing from a metric's name has kept the worst model before.
    """
    if direction == "max":
        return 1.0
    if direction == "min":
        return -1.0
    msg = f"direction must be 'max' or 'min', but got {direction!r}: say which scores are better"
    raise InputError(msg)


class Monitor:
    """Watch one job's evaluation scores with one detector.

    Args:
        rule: a detector, or a rule map with a ``for_type`` method (`evalstop.parse_rule`).
        direction: "max" if higher scores are better, "min" if lower ones are. Required.
        job_type: which entry of a rule map applies.

    Example:
        >>> from evalstop.detectors.consecutive import ConsecutiveDecline
        >>> monitor = Monitor(ConsecutiveDecline(k=2), direction="max")
        >>> for step, score in enumerate([0.50, 0.61, 0.58, 0.55]):
        ...     verdict = monitor.update(score=score, step=step)
        >>> verdict.alarm, verdict.best_step
        (True, 1)
    """

    def __init__(self, rule: Any, *, direction: Direction, job_type: str = "rlhf") -> None:  # noqa: ANN401 -- a detector of any state, or a map of them
        self._sign = sign_of(direction)
        detector: Detector[Any] = rule.for_type(job_type) if hasattr(rule, "for_type") else rule
        if not (hasattr(detector, "start") and hasattr(detector, "step")):
            msg = (
                f"a Monitor watches a curve of scores, but {type(detector).__name__} for job type "
                f"{job_type!r} needs more than scores; use evalstop.replay or evalstop.simulate"
            )
            raise InputError(msg)
        self._history: History[Any] = History(detector)

    @property
    def history(self) -> History[Any]:
        """The curve as the detector sees it: scores times -1 where lower is better."""
        return self._history

    @property
    def verdict(self) -> Verdict:
        """The newest verdict; ``best_score`` in the metric's own sign."""
        return self._own_sign(self._history.verdict)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the training reward and other side signals did since the best score, in words."""
        return remarks(self._history.series)

    def update(
        self,
        *,
        score: float | None,
        step: int,
        stderr: float | None = None,
        n_items: int | None = None,
        proxy: float | None = None,
        attempt: int = 0,
        epoch_key: str | None = None,
        eval_id: str | None = None,
        checkpoint: str | None = None,
        items: tuple[float, ...] | None = None,
        signals: Mapping[str, float] | None = None,
    ) -> Verdict:
        """Report one evaluation; return the verdict on the curve so far.

        See `evalstop.core.points.EvalPoint` for the arguments. ``score`` may be None, NaN or
        infinite: such an evaluation is counted, never compared. ``n_items`` without ``stderr``
        means the binomial error of a share, for scores in 0-1. ``signals`` (KL, entropy, response
        length ...) are for `remarks`; they change no verdict.

        Raises:
            InputError: if ``step`` is negative, or ``stderr`` negative or not finite.
        """
        if step < 0:
            msg = f"step must be >= 0, but got {step}"
            raise InputError(msg)
        if stderr is not None and not (math.isfinite(stderr) and stderr >= 0):
            msg = f"stderr must be a finite number >= 0, but got {stderr}: leave it out if unknown"
            raise InputError(msg)
        finite = score is not None and math.isfinite(score)
        if stderr is None and score is not None:
            stderr = stderr_of_share(score, n_items)
        point = EvalPoint(
            step=step,
            score=self._sign * score if finite and score is not None else NOT_FINITE,
            stderr=stderr,
            n_items=n_items,
            attempt=attempt,
            epoch_key=epoch_key,
            eval_id=eval_id,
            checkpoint=checkpoint,
            proxy=proxy,
            items=None if items is None else tuple(self._sign * item for item in items),
            signals=signals_of(signals),
        )
        return self._own_sign(self._history.add(point))

    def update_many(self, scores: ArrayLike, *, stderr: ArrayLike | None = None) -> Fleet:
        """Judge many curves at once with this monitor's rule and direction.

        Each row is a curve from its start; the monitor's own curve is neither used nor changed.
        The verdicts are those that one monitor a curve would have given.

        Args:
            scores: (runs, evals) in the metric's own direction; NaN where there is none.
            stderr: standard errors, in any shape that broadcasts to that of ``scores``.

        Raises:
            InputError: if the shapes do not fit.
        """
        return judge(self._history.detector, self._sign * np.asarray(scores, np.float64), stderr)

    def _own_sign(self, verdict: Verdict) -> Verdict:
        if self._sign > 0:
            return verdict
        fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        return Verdict(**(fields | {"best_score": -verdict.best_score}))
