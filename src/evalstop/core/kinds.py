"""Which way a declining job went wrong (R17, R19), read off the curve once a rule suspects it.

* **collapsed**: the newest two scores lie far below the very first one, or the newest does and the
  one before it at least half as deep (`evalstop.core.collapse`): the model lost what it had before
  training. One evaluation is not enough, it may be a broken eval.
* **overoptimised**: the proxy (training reward) is flat or higher than it was at the best score.
* **degraded**: the proxy has fallen as well.
* **declining**: the proxy is not known.

"Fallen" compares the mean of the newest three proxies with that of the three up to the best score;
the fall must exceed two standard errors, read off second differences, to which trends are no noise.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from evalstop.core.collapse import Ground, confirms, is_far, is_out_of_range, trodden
from evalstop.core.points import Kind, State, stderr_of_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.points import EvalPoint, Verdict

__all__ = ["CurveSigns"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_SUSPECT = State.SUSPECT
_ALARM = State.ALARM
_COLLAPSED = Kind.COLLAPSED
_DECLINING = Kind.DECLINING
_DEGRADED = Kind.DEGRADED
_OVEROPTIMISED = Kind.OVEROPTIMISED

_PROXY = attrgetter("proxy")
_SCORE = attrgetter("score")

_SHORTEST = 3
"""Evaluations of which two can have collapsed below the first."""

_RANGES = 2.0
_FEWEST = 2
"""What makes a kind where no error is known: less than `scan` asks before it stops (3 of 4)."""

_MEAN_OF = 3
_SIGNIFICANT = 2.0
_SECOND_DIFFERENCE = math.sqrt(6.0 * 2.0 / math.pi)
"""Mean absolute second difference of independent noise, in its standard deviations."""


class CurveSigns:
    """What of a growing curve its kind is read off.

    It catches up with the curve when it is asked: a curve that nothing suspects costs nothing,
    and one that is suspected at every evaluation O(1) an evaluation.
    """

    __slots__ = (
        "after",
        "before",
        "bends",
        "bent",
        "best_score",
        "ground",
        "proxies",
        "seen",
        "trodden",
    )

    def __init__(self) -> None:
        self.seen = 0
        self.best_score = -math.inf
        self.proxies: tuple[float, ...] = ()  # the newest three
        self.before: tuple[float, ...] = ()  # the newest three up to the best score
        self.after: tuple[float, ...] = ()  # the newest three behind it
        self.bends = 0
        self.bent = 0.0  # sum of the second differences' sizes
        self.ground: Ground | None = None
        self.trodden = 0  # points that the ground knows of

    def with_kind(self, verdict: Verdict, series: Sequence[EvalPoint]) -> Verdict:
        """Return the verdict with its kind, if it suspects a decline; unchanged otherwise.

        Args:
            verdict: what a rule says of the curve.
            series: the curve it has seen: finite scores, in order; what it was at the last call,
                and then more.
        """
        state = verdict.state
        if (state is not _SUSPECT and state is not _ALARM) or verdict.kind or not series:
            return verdict
        self._catch_up(series)
        kind = _COLLAPSED if self._collapsed(series) else self._by_proxy()
        return msgspec.structs.replace(verdict, kind=kind)

    def _catch_up(self, series: Sequence[EvalPoint]) -> None:
        fresh = series[self.seen :]
        self.seen = len(series)
        if list(map(_PROXY, fresh)).count(None) == len(fresh):  # as most curves go, without a loop
            best_score = max(map(_SCORE, fresh), default=-math.inf)
            if best_score > self.best_score:
                self.best_score = best_score
                self.before, self.after = self.proxies, ()
            return
        for point in fresh:
            proxy = point.proxy
            if proxy is not None:
                self._hear_proxy(proxy)
            if point.score > self.best_score:
                self.best_score = point.score
                self.before, self.after = self.proxies, ()
            elif proxy is not None:
                self.after = (*self.after, proxy)[-_MEAN_OF:]

    def _hear_proxy(self, proxy: float) -> None:
        if len(self.proxies) > 1:
            first, middle = self.proxies[-2:]
            self.bends += 1
            self.bent += abs(first - 2.0 * middle + proxy)
        self.proxies = (*self.proxies, proxy)[-_MEAN_OF:]

    def _collapsed(self, series: Sequence[EvalPoint]) -> bool:
        if series[-1].score >= series[0].score:
            return False  # not far below it, whatever the ground: it is looked at when need be
        for index in range(self.trodden, len(series)):
            point = series[index]
            stderr = point.stderr or stderr_of_share(abs(point.score), point.n_items) or 0.0
            self.ground = _trodden(self.ground, point.score, stderr * stderr, seen=index)
        self.trodden = len(series)
        ground = self.ground
        if ground is None or not ground.far or len(series) < _SHORTEST:
            return False
        return ground.far > 1 or confirms(ground, series[-2].score, series[-1].score)

    def _by_proxy(self) -> Kind:
        before, after = self.before, self.after
        if not before or not after:
            return _DECLINING
        fall = sum(before) / len(before) - sum(after) / len(after)
        noise = self.bent / self.bends / _SECOND_DIFFERENCE if self.bends else 0.0
        error = noise * math.sqrt(1.0 / len(before) + 1.0 / len(after))
        return _DEGRADED if fall > _SIGNIFICANT * error else _OVEROPTIMISED


def _trodden(ground: Ground | None, score: float, variance: float, *, seen: int) -> Ground:
    if ground is None:
        return Ground(score, variance, score, score)
    if score >= ground.lowest:
        far = False
    elif ground.variance and variance:
        far = is_far(ground, score, ground.variance + variance)
    else:
        far = is_out_of_range(ground, score, seen=seen, ranges=_RANGES, fewest=_FEWEST)
    return trodden(ground, score, far=far)
