"""A rule on one curve, at a prompt or in a training loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evalstop.core.errors import InputError
from evalstop.core.history import History
from evalstop.core.points import (
    LARGEST,
    NOT_FINITE,
    EvalPoint,
    Verdict,
    score_of,
    stderr_of_share,
)
from evalstop.core.settings import has_methods
from evalstop.core.signals import remarks, signals_of
from evalstop.detectors.fleet import Fleet, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
        self._history: History[Any] = History(_detector(rule, job_type))

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
        infinite (or beyond 1e100): such an evaluation is counted, never compared. ``n_items``
        without ``stderr`` means the binomial error of a share, for scores in 0-1. ``signals`` (KL,
        entropy, response length ...) are for `remarks`; they change no verdict. Numbers may be of
        any library that they convert from (numpy, torch, decimal).

        Raises:
            InputError: if ``step`` is negative or not whole, ``stderr`` negative or not finite,
                ``n_items`` below 1, or something no number or name.
        """
        value = NOT_FINITE if score is None else score_of(_number("score", score))
        error = None if stderr is None else _number("stderr", stderr)
        if error is not None:
            if not (math.isfinite(error) and error >= 0):
                msg = f"stderr must be a finite number >= 0, but got {stderr}: omit it if unknown"
                raise InputError(msg)
            error = min(error, LARGEST)
        count = None if n_items is None else _whole("n_items", n_items, least=1)
        reward = NOT_FINITE if proxy is None else _number("proxy", proxy)
        point = EvalPoint(
            step=_whole("step", step),
            score=self._sign * value,
            stderr=stderr_of_share(value, count) if error is None else error,
            n_items=count,
            attempt=_whole("attempt", attempt),
            epoch_key=None if epoch_key is None else _name("epoch_key", epoch_key),
            eval_id=None if eval_id is None else _name("eval_id", eval_id),
            checkpoint=None if checkpoint is None else _name("checkpoint", checkpoint),
            proxy=reward if math.isfinite(reward) else None,
            items=None if items is None else _items(items, self._sign),
            signals=() if signals is None else signals_of(_numbers(signals)),
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
            InputError: if the shapes do not fit, or something is no number.
        """
        try:
            table = self._sign * np.asarray(scores, np.float64)
            errors = None if stderr is None else np.asarray(stderr, np.float64)
        except (TypeError, ValueError) as error:
            msg = f"expected a table of numbers, runs by evaluations of one length each: {error}"
            raise InputError(msg) from error
        return judge(self._history.detector, table, errors)

    def _own_sign(self, verdict: Verdict) -> Verdict:
        if self._sign > 0:
            return verdict
        fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        return Verdict(**(fields | {"best_score": -verdict.best_score}))


def _detector(rule: Any, job_type: object) -> Detector[Any]:  # noqa: ANN401 -- as in Monitor
    """Return what judges the curve.

    Raises:
        InputError: it is no rule, or one that needs more than a curve.
    """
    if rule is None or isinstance(rule, str | type):
        msg = f"expected a rule, such as parse_rule('default') gives, but got {rule!r}"
        raise InputError(msg)
    if not isinstance(job_type, str):
        msg = f"job_type must be a name such as 'rlhf' or 'dpo', but got {job_type!r}"
        raise InputError(msg)
    detector: Detector[Any] = rule.for_type(job_type) if hasattr(rule, "for_type") else rule
    if not has_methods(detector, "start", "step"):
        msg = (
            f"a Monitor watches a curve of scores, but {type(detector).__name__} for job type "
            f"{job_type!r} needs more than scores; use evalstop.replay or evalstop.simulate"
        )
        raise InputError(msg)
    return detector


def _number(name: str, value: object) -> float:
    """Return a float of anything that is a number.

    Raises:
        InputError: it is none. Text is none either: a column that was not parsed would pass.
    """
    if type(value) is float:
        return value
    try:
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]  # what does not convert raises
    except (TypeError, ValueError, OverflowError):
        pass
    msg = f"{name} must be a number, but got {value!r}"
    raise InputError(msg)


def _numbers(signals: Mapping[str, float | None]) -> dict[str, float]:
    """Return named numbers without those that are not known.

    Raises:
        InputError: it is no table of named numbers.
    """
    if not hasattr(signals, "items"):
        msg = f"signals must be named numbers, such as {{'kl': 0.1}}, but got {signals!r}"
        raise InputError(msg)
    return {
        str(name): _number(f"signals[{name!r}]", value)
        for name, value in signals.items()
        if value is not None
    }


def _items(items: Iterable[float], sign: float) -> tuple[float, ...]:
    """Return scores of items with higher as better.

    Raises:
        InputError: one is no finite number, so that none can be compared item by item.
    """
    if isinstance(items, str | bytes) or not hasattr(items, "__iter__"):
        msg = f"items must be scores, one an item, but got {items!r}"
        raise InputError(msg)
    scores = tuple(sign * _number("items", item) for item in items)
    if not all(-LARGEST <= score <= LARGEST for score in scores):
        msg = "items must be finite numbers: give an item that failed its lowest score"
        raise InputError(msg)
    return scores


def _name(what: str, value: object) -> str:
    """Return a name; a number is taken for its digits.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    msg = f"{what} must be a name, such as 'suite-2', but got {value!r}"
    raise InputError(msg)


def _whole(name: str, value: object, *, least: int = 0) -> int:
    """Return an int of anything that is a whole number, 500.0 too.

    Raises:
        InputError: it is none, or too small.
    """
    if type(value) is int:
        number = value
    else:
        real = _number(name, value)
        if not real.is_integer():
            msg = f"{name} must be a whole number, but got {value!r}"
            raise InputError(msg)
        number = int(real)
    if number < least:
        msg = f"{name} must be >= {least}, but got {value!r}"
        raise InputError(msg)
    return number
