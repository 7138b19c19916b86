"""Which way a declining job went wrong (R17, R19), read off the curve once a rule suspects it.

* **collapsed**: the newest two scores lie far below the very first one, five standard errors of
  their difference (or, where no error is known, twice as far as the best one lies above it): the
  model lost what it had before training. One evaluation is not enough, it may be a broken eval.
* **overoptimised**: the proxy (training reward) is flat or higher than it was at the best score.
* **degraded**: the proxy has fallen as well.
* **declining**: the proxy is not known.

"Fallen" compares the mean of the newest three proxies with that of the three up to the best score;
the fall must exceed two standard errors, read off second differences, to which trends are no noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from evalstop.core.points import Kind, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.points import EvalPoint, Verdict

__all__ = ["with_kind"]

_SHORTEST = 3
"""Evaluations of which two can have collapsed below the first."""

_FAR = 5.0
_FAR_IN_GAINS = 2.0
_MEAN_OF = 3
_SIGNIFICANT = 2.0
_SECOND_DIFFERENCE = math.sqrt(6.0 * 2.0 / math.pi)
"""Mean absolute second difference of independent noise, in its standard deviations."""


def with_kind(verdict: Verdict, series: Sequence[EvalPoint]) -> Verdict:
    """Return the verdict with its kind, if it suspects a decline; unchanged otherwise.

    Args:
        verdict: what a rule says of the curve.
        series: the curve it has seen: finite scores, in order.
    """
    if verdict.state not in {State.SUSPECT, State.ALARM} or verdict.kind or not series:
        return verdict
    kind = Kind.COLLAPSED if _collapsed(series) else _by_proxy(series)
    return msgspec.structs.replace(verdict, kind=kind)


def _collapsed(series: Sequence[EvalPoint]) -> bool:
    if len(series) < _SHORTEST:
        return False
    first, newest = series[0], series[-2:]
    if first.stderr and all(point.stderr for point in newest):
        return all(
            first.score - point.score >= _FAR * math.hypot(first.stderr, point.stderr or 0.0)
            for point in newest
        )
    gain = max(point.score for point in series) - first.score
    return all(0.0 < _FAR_IN_GAINS * gain < first.score - point.score for point in newest)


def _by_proxy(series: Sequence[EvalPoint]) -> Kind:
    best = max(range(len(series)), key=lambda index: series[index].score)
    before = [p.proxy for p in series[: best + 1] if p.proxy is not None][-_MEAN_OF:]
    after = [p.proxy for p in series[best + 1 :] if p.proxy is not None][-_MEAN_OF:]
    if not before or not after:
        return Kind.DECLINING
    fall = sum(before) / len(before) - sum(after) / len(after)
    error = _noise(series) * math.sqrt(1.0 / len(before) + 1.0 / len(after))
    return Kind.DEGRADED if fall > _SIGNIFICANT * error else Kind.OVEROPTIMISED


def _noise(series: Sequence[EvalPoint]) -> float:
    proxies = [point.proxy for point in series if point.proxy is not None]
    bends = [
        abs(a - 2.0 * b + c) for a, b, c in zip(proxies, proxies[1:], proxies[2:], strict=False)
    ]
    return sum(bends) / len(bends) / _SECOND_DIFFERENCE if bends else 0.0
