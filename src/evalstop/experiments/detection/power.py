"""Can this eval see this drop? Simulated with the rule itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from msgspec import Struct

from evalstop.core.errors import InputError
from evalstop.detectors.fleet import judge
from evalstop.detectors.scan import Scan
from evalstop.metrics.stats import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Power", "Shape", "power"]

Shape = Literal["linear", "cliff", "gao"]

_WANTED = 0.9
_HALVINGS = 12
_FEWEST = 4


class Power(Struct, frozen=True, kw_only=True):
    """What to expect of an eval.

    Attributes:
        stderr: error of one evaluation, in the metric's units.
        items: evaluated items that give it, None if it was stated as an error.
        evals, drop, alpha, shape, peak: the question; ``peak`` counts evaluations.
        chance: that the decline is found by the last evaluation.
        interval: 95 % interval of ``chance``, from ``runs`` simulated runs.
        delay_evals_mean: evaluations from the peak to the alarm, over the runs found; NaN if none.
        stderr_for_90: the error at which 90 % are found; NaN if none is small enough.
        items_for_90: items that give it, by the law 1 / sqrt(items); None if items are unknown.
    """

    stderr: float
    items: int | None
    evals: int
    drop: float
    alpha: float
    shape: str
    peak: int
    chance: float
    interval: tuple[float, float]
    delay_evals_mean: float
    stderr_for_90: float
    items_for_90: int | None
    runs: int
    seed: int


def power(
    *,
    evals: int,
    drop: float,
    stderr: float | None = None,
    items: int | None = None,
    score: float = 0.5,
    alpha: float = 0.01,
    shape: Shape = "linear",
    peak: int | None = None,
    runs: int = 4000,
    seed: int = 0,
) -> Power:
    """Simulate runs that rise to a peak and then lose ``drop`` by their last evaluation.

    Args:
        evals: evaluations of the whole run, >= 4.
        drop: true loss from the peak to the end, in the metric's units, > 0.
        stderr: error of one evaluation; or else
        items: evaluated items, right or wrong each, at a ``score`` near 0.5 unless given.
        score: where the scores lie, for the binomial error.
        alpha: lifetime false-stop rate of the rule.
        shape: how the drop is lost: by a line, at once half-way, or as x (1 - ln x).
        peak: evaluation of the peak, counted from 1; the middle of the run by default.
        runs: simulated runs.
        seed: of the noise.

    Raises:
        InputError: on a question that has no answer.
    """
    error = _stderr(stderr, items, score)
    top = (evals + 1) // 2 if peak is None else peak
    if evals < _FEWEST or not 1 <= top < evals:
        msg = f"expected at least 4 evals and a peak before the last, got evals={evals}, peak={top}"
        raise InputError(msg)
    if not 0.0 < drop < math.inf or shape not in get_args(Shape):
        msg = f"expected drop > 0 and shape linear, cliff or gao, but got {drop} and {shape!r}"
        raise InputError(msg)
    if items is not None and drop > 1.0:
        msg = (
            "scores of items that are right or wrong lie between 0 and 1, so drop must be at most "
            f"1 with --items, but it is {drop:g}: write 2 points of 100 as 0.02"
        )
        raise InputError(msg)
    truth = _truth(evals, top, shape)
    noise = np.random.default_rng(seed).standard_normal((runs, evals))
    rule = Scan(alpha=alpha)

    def stops(size: float) -> NDArray[np.int64]:
        return judge(rule, size * truth + noise, np.ones(1)).stop

    found = stops(drop / error)
    hits = found >= 0
    after = hits & (found >= top - 1)
    needed = _size_for(lambda size: float((stops(size) >= 0).mean()))
    stderr_for_90 = drop / needed if math.isfinite(needed) else math.nan
    known = items is not None and math.isfinite(needed)
    return Power(
        stderr=error,
        items=items,
        evals=evals,
        drop=drop,
        alpha=alpha,
        shape=shape,
        peak=top,
        chance=float(hits.mean()),
        interval=wilson_interval(int(hits.sum()), runs),
        delay_evals_mean=float((found - (top - 1))[after].mean()) if after.any() else math.nan,
        stderr_for_90=stderr_for_90,
        items_for_90=math.ceil((error / stderr_for_90) ** 2 * (items or 0)) if known else None,
        runs=runs,
        seed=seed,
    )


def _stderr(stderr: float | None, items: int | None, score: float) -> float:
    if (stderr is None) == (items is None):
        msg = "give either the error of one evaluation (--stderr) or its items (--items)"
        raise InputError(msg)
    if stderr is not None:
        if not (math.isfinite(stderr) and stderr > 0.0):
            msg = f"stderr must be > 0, but got {stderr}"
            raise InputError(msg)
        return stderr
    if items is None or items < 1 or not 0.0 < score < 1.0:
        msg = f"items must be >= 1 and score between 0 and 1, but got {items} and {score}"
        raise InputError(msg)
    return math.sqrt(score * (1.0 - score) / items)


def _truth(evals: int, peak: int, shape: str) -> NDArray[np.float64]:
    """Return the curve in units of the drop: 0 at the peak, -1 at the end, from -1 at the start."""
    time = np.arange(1.0, evals + 1.0)
    rise = np.where(time < peak, -((1.0 - (time - 1.0) / max(peak - 1, 1)) ** 2), 0.0)
    past = np.maximum(time - peak, 0.0)
    match shape:
        case "cliff":
            fall = (past > (evals - peak) / 2).astype(np.float64)
        case "gao":
            root = np.maximum(time / peak, 1.0)
            lost = 1.0 - root * (1.0 - np.log(root))
            fall = lost / lost[-1]
        case _:
            fall = past / (evals - peak)
    curve: NDArray[np.float64] = rise - fall
    return curve


def _size_for(chance: Callable[[float], float]) -> float:
    """Return the drop in errors at which 90 % are found, by halving; infinity above 1000."""
    low, high = 0.0, 4.0
    while chance(high) < _WANTED:
        low, high = high, 2.0 * high
        if high > 1000.0:  # noqa: PLR2004 -- no eval is that exact
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if chance(middle) >= _WANTED else (middle, high)
    return high
