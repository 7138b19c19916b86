"""What is watched in a source, and how a number found there becomes a reading.

The direction of a metric is settled here, once: behind this line higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from msgspec import Struct

from evalstop.core.points import LARGEST, NOT_FINITE, EvalPoint, stderr_of_share
from evalstop.core.signals import Signals, signals_of
from evalstop.ports import Reading
from evalstop.traces.names import find

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Watch", "is_number", "names_of_object", "readings_of_object"]

_SCORE_KEYS = ("score", "value")
_LARGEST = 2**53


class Watch(Struct, frozen=True, kw_only=True):
    """What of a job's numbers counts.

    Attributes:
        job: whose numbers they are.
        metric: the primary metric; any of its spellings (`evalstop.traces.names`) finds it.
        direction: max where a higher value is better.
        guards: further metrics by name, with their directions.
        attempt: restart counter of the run that writes them.
    """

    job: str
    metric: str
    direction: Literal["max", "min"]
    guards: Mapping[str, Literal["max", "min"]] = {}
    attempt: int = 0

    def reading(self, name: str, point: EvalPoint, reported_at: float | None = None) -> Reading:
        """Return a raw point of the watched metric ``name`` (empty: the primary) as a reading."""
        direction = self.guards[name] if name else self.direction
        score = point.score if math.isfinite(point.score) else NOT_FINITE
        turned = _turned(point, score if direction == "max" else 0.0 - score, self.attempt)
        return Reading(job=self.job, point=turned, metric=name, reported_at=reported_at)

    def wanted(self, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (watched name, spelling in ``known``); the primary metric's name is empty."""
        for name, watched in (("", self.metric), *((guard, guard) for guard in self.guards)):
            spelling = watched if watched in known else find(watched, known)
            if spelling is not None:
                yield name, spelling


def readings_of_object(row: Mapping[str, Any], watch: Watch) -> list[Reading]:
    """Return the readings in one logged object.

    Three forms are known: ``{"step": 5, "score": 0.6, "stderr": 0.01}`` (with ``metric`` where
    one file holds several), verl's ``{"step": 5, "data": {"val-core/...": 0.6}}``, and the flat
    ``{"step": 5, "eval/acc": 0.6, "eval/acc_stderr": 0.01}`` of most loggers.

    Raises:
        ValueError: it has no whole step >= 0, or a number in it is none.
    """
    step = row.get("step", row.get("global_step"))
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if not _is_count(step):
        message = f"expected a whole step from 0 to {_LARGEST}, got {_short(step)}"
        raise ValueError(message)
    numbers, single = _numbers(row, watch)
    at = row.get("time", row.get("timestamp"))
    reported_at = float(at) if is_number(at) else None
    return [
        watch.reading(name, _point(row, numbers, spelling, step, single=single), reported_at)
        for name, spelling in watch.wanted(numbers)
    ]


def names_of_object(row: Mapping[str, Any], watch: Watch) -> set[str]:
    """Return the metrics that one logged object is about, watched or not."""
    data = row.get("data")
    if isinstance(data, Mapping):
        return set(data)
    if any(key in row for key in _SCORE_KEYS):
        return {str(row.get("metric") or watch.metric)}
    return set(row) - {"step", "global_step", "time", "timestamp", "data"}


def _numbers(row: Mapping[str, Any], watch: Watch) -> tuple[Mapping[str, Any], bool]:
    """Return the numbers by metric, and whether the row is about one metric alone."""
    data = row.get("data")
    if isinstance(data, Mapping):
        return data, False
    for key in _SCORE_KEYS:
        if key in row:
            return {str(row.get("metric") or watch.metric): row[key]}, True
    # NaN among them: a run that diverges must be seen to (R12).
    return {key: value for key, value in row.items() if _is_numeric(value)}, False


def _point(
    row: Mapping[str, Any], numbers: Mapping[str, Any], spelling: str, step: int, *, single: bool
) -> EvalPoint:
    source: Mapping[str, Any] = row if single else {"stderr": numbers.get(f"{spelling}_stderr")}
    stderr, items, proxy = source.get("stderr"), source.get("n_items"), source.get("proxy")
    attempt = row.get("attempt")
    score = _finite(numbers[spelling])
    counted = items if _is_count(items) and items > 0 else None
    stated = float(stderr) if is_number(stderr) and stderr > 0 else None
    return EvalPoint(
        step=step,
        score=score,
        stderr=stderr_of_share(score, counted) if stated is None else stated,
        n_items=counted,
        attempt=attempt if _is_count(attempt) else 0,
        epoch_key=_word(source.get("epoch_key")),
        eval_id=_word(source.get("eval_id")),
        checkpoint=_word(source.get("checkpoint")),
        proxy=float(proxy) if is_number(proxy) else None,
        signals=_signals(source.get("signals")),
    )


def _finite(value: object) -> float:
    """Return a score; null and the words that loggers write for NaN are "not finite"."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            message = f"expected a number as score, got {value!r}"
            raise ValueError(message) from None
    if value is None:
        return NOT_FINITE
    if not isinstance(value, int | float) or isinstance(value, bool):
        message = f"expected a number as score, got {_short(value)}"
        raise ValueError(message)  # noqa: TRY004 -- one kind for all that a line can be
    return float(value) if is_number(value) else NOT_FINITE


def _turned(point: EvalPoint, score: float, attempt: int) -> EvalPoint:
    return EvalPoint(
        step=point.step,
        score=score,
        stderr=point.stderr,
        n_items=point.n_items,
        attempt=point.attempt or attempt,
        epoch_key=point.epoch_key,
        eval_id=point.eval_id,
        checkpoint=point.checkpoint,
        proxy=point.proxy,
        items=point.items,
        signals=point.signals,
    )


def _is_numeric(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number whose square is one too; as for reports over HTTP."""
    # NaN is not; and a whole number of any length can be compared.
    return _is_numeric(value) and abs(value) <= LARGEST


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _short(value: object) -> str:
    """Return a value for a message. Whole numbers may be too long even to be written."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a whole number beyond all bounds"
    return repr(value)[:60]


def _signals(given: object) -> Signals:
    """Return the side signals of a report; whatever is no number is left out."""
    if not isinstance(given, Mapping):
        return ()
    return signals_of({str(name): value for name, value in given.items() if is_number(value)})


def _word(value: object) -> str | None:
    """Return a name.

    Raises:
        ValueError: it is no Unicode (JSON can hold half a surrogate): no log could hold it.
    """
    if not isinstance(value, str | int) or value == "":
        return None
    word = str(value)
    word.encode()
    return word
