"""Poll a run's history through Weights & Biases' public API (package ``wandb``).

``wandb:ENTITY/PROJECT/RUN``. The history is scanned for the watched keys from the last step read
on. The API says how far the run has come (``lastHistoryStep``): a scan that ends before it is
partial, and held back (R27). W&B's own step only grows; the trainer's goes back when a run is
resumed, and then opens an attempt. Nothing here was tried against the service itself.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.core.points import EvalPoint
from evalstop.traces.rewinds import attempts_of
from evalstop.traces.siblings import SUFFIX, usable
from evalstop.traces.wandb_offline import own_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.feedback.scores import Watch
    from evalstop.ports import Reading

__all__ = ["PREFIX", "WandbPoll"]

PREFIX = "wandb:"
_STEP = "_step"
_TIME = "_timestamp"
_NEVER = -1


class WandbPoll:
    """Readings of one run.

    Args:
        address: ``wandb:ENTITY/PROJECT/RUN``.
        watch: what of its history counts.
        api: the public API; made by the package unless a test says otherwise.

    Raises:
        MissingExtraError: the package is not installed.

    Attributes:
        names: keys seen so far, watched or not.
        problems: why a history is held back.
    """

    def __init__(self, address: str, watch: Watch, api: Any = None) -> None:  # noqa: ANN401 -- the package's own object
        self._path = address.removeprefix(PREFIX)
        self._watch = watch
        self._api = api or _public_api()
        self._next_step = 0
        self._points: dict[str, list[tuple[EvalPoint, float | None]]] = {}
        self.names: set[str] = set()
        self.problems: list[str] = []

    def readings(self) -> list[Reading]:
        """Return what the history holds beyond what was returned.

        Raises:
            ReadError: the service does not answer as it should.
        """
        try:
            run = self._api.run(self._path)
            self.names |= {key for key in run.summary.keys() if not key.startswith("_")}  # noqa: SIM118 -- its summary is no mapping
            wanted = list(self._watch.wanted(dict.fromkeys(self.names)))
            last = run.lastHistoryStep
            # Without keys the scan holds every row: only so its last step can be compared.
            rows = list(run.scan_history(min_step=self._next_step)) if wanted else []
        except Exception as error:  # the package raises its own and its transport's errors
            message = f"Weights & Biases does not answer as it should: {error}"
            msg = f"{PREFIX}{self._path}"
            raise ReadError(msg, message) from error
        return self._news(rows, wanted, last)

    def _news(
        self, rows: list[dict[str, Any]], wanted: list[tuple[str, str]], last: int
    ) -> list[Reading]:
        self.problems = []
        ordered = sorted(rows, key=lambda row: int(row.get(_STEP, _NEVER)))
        reached = int(ordered[-1].get(_STEP, _NEVER)) if ordered else self._next_step - 1
        if wanted and reached < last:
            self.problems = [f"held back, the history is partial: read to step {reached} of {last}"]
            return []
        self._next_step = max(self._next_step, reached + 1)
        return [reading for name, key in wanted for reading in self._told(name, key, ordered)]

    def _told(self, name: str, key: str, rows: list[dict[str, Any]]) -> Iterator[Reading]:
        """Yield the new points of one metric, and those now known to have begun an attempt."""
        points = self._points.setdefault(key, [])
        known = len(points)
        points += [(_point(row, key), row.get(_TIME)) for row in rows if row.get(key) is not None]
        attempts = attempts_of([point.step for point, _ in points])
        for place, (point, at) in enumerate(points):
            attempt = self._watch.attempt + attempts[place]
            if place < known and point.attempt == attempt:
                continue
            moved = replace(point, attempt=attempt)
            points[place] = (moved, at)
            yield self._watch.reading(name, moved, at)


def _point(row: dict[str, Any], key: str) -> EvalPoint:
    """Return a row's value at the trainer's own step, where it logs one, else at W&B's."""
    stderr = usable(_number(row.get(f"{key}{SUFFIX}")))
    return EvalPoint(step=own_step(row), score=_number(row[key]), stderr=stderr)


def _number(value: object) -> float:
    """Return a value as a number; "NaN" and "Infinity" arrive as text."""
    try:
        return float(value)  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError):
        return math.nan


def _public_api() -> Any:  # noqa: ANN401 -- the package's own object
    try:
        return import_module("wandb").Api()
    except ImportError as error:
        package = "wandb"
        raise MissingExtraError(package, package) from error
