"""How noisy a curve is, read off the curve itself in constant memory.

Running sums, none of which a rise, a cliff or one sharp peak can drive up for long:

* **levels**: mean of |d_t| |d_(t-1)|, d the first differences (bipower variation: a cliff is one
  large factor beside an ordinary one);
* **slopes**: mean of |e_t| |e_(t-2)|, e the second differences, blind to a steady rise or fall;
* **turns**: mean of min(d_t, d_(t-1))^2 where the two differ in sign, the sharpest turn left out.
  A curve that rises and then falls turns once, whatever its size; noise turns all the time;
* **near** and **far**: sums of d_t^2 and (x_t - x_(t-2))^2, each square cut at 18 variances (three
  deviations of a difference). Their ratio is 1 + rho for noise of autocorrelation rho.
* **steps**: sum of all d_t^2, cut likewise: 2 (1 - rho) variances each.

``estimated`` is the smaller of the first two where no error is reported: signal only enlarges
either, a slope the first and a bend the second. ``excess`` answers how much larger than reported
the error must be, where both the turns, which signal cannot enlarge, and the estimate, which
tells errors apart better, exceed what chance does: an honest error is doubted in one curve of five.
``correlation`` reads rho off the fourth pair, once there are 12 scores; a rise or a fall reads as a
positive one, on the safe side. Where the error is known the steps tell it too, and trends the other
way round: the mean of the two counts, and half of what a decline adds to the first is gone. If
steps are larger than the error allows it is the error that is doubtful, and the first counts alone.

Reference:
    Barndorff-Nielsen, Shephard, "Power and bipower variation with stochastic volatility and
    jumps", Journal of Financial Econometrics 2, 2004. Andersen, Dobrev, Schaumburg, "Jump-robust
    volatility estimation using nearest neighbor truncation", Journal of Econometrics 169, 2012.
"""

from __future__ import annotations

import math

from msgspec import Struct

__all__ = [
    "CUT",
    "FIRST_CORRELATED",
    "FIRST_CORRELATION",
    "FIRST_ESTIMATE",
    "FIRST_EXCESS",
    "LARGER",
    "LARGEST_CORRELATION",
    "LEVELS",
    "SLACK",
    "SLOPES",
    "START",
    "Scatter",
    "chance_of_estimate",
    "chance_of_turns",
    "correlation",
    "estimated",
    "excess",
    "spread",
]


FIRST_ESTIMATE = 6
"""Scores needed before `estimated` says anything."""

FIRST_EXCESS = 7
"""Scores needed before `excess` says anything."""

LEVELS = 1.4360
"""E|d_t d_(t-1)| / sigma^2 of independent noise: 4/pi (sqrt(3)/2 + asin(1/2)/2)."""

SLOPES = 3.8729
"""E|e_t e_(t-2)| / sigma^2 of independent noise: 12/pi (sqrt(35)/6 + asin(1/6)/6)."""

_TURNS = (0.7808, 5.978, 0.941, 6.674)
"""(a, b, c, d): the 40 % quantile of trimmed turns / sigma^2 of independent noise after n scores is
a - b / (n + d) - c / sqrt(n + d): simulated, 200,000 flat curves, n = 7..200, within 0.002."""

_ESTIMATE = (1.0, 4.814, 1.038, 29.75)
"""(a, b, c, d): the 80 % quantile of `estimated` / sigma^2 is a + b / (n + d) + c / sqrt(n + d):
likewise, within 0.006. Both levels are exceeded by one honest curve in five."""

FIRST_CORRELATED = 8
"""Scores before the first that enters ``near`` and ``far``, plus one: a cut needs a variance."""

FIRST_CORRELATION = 12
"""Scores needed before `correlation` says anything."""

CUT = 18.0
"""Largest squared difference that counts, in variances of one evaluation."""

SLACK = 0.4
"""Subtracted from rho, over sqrt(n): a quarter of its standard deviation (1.45 / sqrt(n))."""

LARGER = 1.0
"""Over sqrt(n): how far mean steps may exceed 2 variances, in shares of them, by chance: 0.6 of
their standard deviation (1.7 / sqrt(n))."""

LARGEST_CORRELATION = 0.5


class Scatter(Struct, frozen=True, gc=False):
    """Running sums over ``count`` scores, in squares of the metric's units.

    ``fall``: newest first difference; ``bend``, ``bend_before``: the newest two absolute second
    differences; ``sharpest``: largest term of ``turns``.
    """

    count: int = 0
    score: float = 0.0
    fall: float = 0.0
    bend: float = 0.0
    bend_before: float = 0.0
    levels: float = 0.0
    slopes: float = 0.0
    turns: float = 0.0
    sharpest: float = 0.0
    near: float = 0.0
    far: float = 0.0
    steps: float = 0.0


START = Scatter()


def spread(scatter: Scatter, score: float, variance: float) -> Scatter:
    """Return the sums after one more score.

    Args:
        scatter: the sums so far.
        score: the next score.
        variance: of one evaluation as known so far, 0.0 if it is not: only cuts ``near``, ``far``
            and ``steps``.
    """
    count = scatter.count + 1
    if count == 1:
        return Scatter(1, score)
    before = scatter.fall
    fall = score - scatter.score
    cut = CUT * variance
    step = min(fall * fall, cut)
    if count == 2:  # noqa: PLR2004 -- two scores make the first difference
        return Scatter(2, score, fall, steps=step)
    size, size_before = abs(fall), abs(before)
    bend = abs(fall - before)
    turns, sharpest = scatter.turns, scatter.sharpest
    if fall * before < 0.0:
        turn = min(size, size_before)
        turn *= turn
        turns += turn
        sharpest = max(sharpest, turn)
    near, far = scatter.near, scatter.far
    if count >= FIRST_CORRELATED:
        hop = fall + before
        near += step
        far += min(hop * hop, cut)
    return Scatter(
        count,
        score,
        fall,
        bend,
        scatter.bend,
        scatter.levels + size * size_before,
        scatter.slopes + bend * scatter.bend_before,
        turns,
        sharpest,
        near,
        far,
        scatter.steps + step,
    )


def estimated(scatter: Scatter) -> float | None:
    """Return the variance of one evaluation, in squares of the metric's units.

    None while there are fewer than `FIRST_ESTIMATE` scores or they do not scatter at all.
    """
    count = scatter.count
    if count < FIRST_ESTIMATE:
        return None
    levels = scatter.levels / ((count - 2) * LEVELS)
    slopes = scatter.slopes / ((count - 4) * SLOPES)
    return min(levels, slopes) or None


def chance_of_turns(count: float) -> float:
    """Return the mean of trimmed turns, in variances of a score, that is taken for chance."""
    limit, by_count, by_root, lag = _TURNS
    return limit - by_count / (count + lag) - by_root / math.sqrt(count + lag)


def chance_of_estimate(count: float) -> float:
    """Return the estimate, in variances of a score, that is taken for chance."""
    limit, by_count, by_root, lag = _ESTIMATE
    return limit + by_count / (count + lag) + by_root / math.sqrt(count + lag)


def excess(scatter: Scatter, variance: float) -> float:
    """Return by which factor (>= 1) the reported ``variance`` is too small for the curve seen.

    Args:
        scatter: the sums.
        variance: mean of the reported squared errors, > 0.
    """
    count = scatter.count
    if count < FIRST_EXCESS:
        return 1.0
    turns = (scatter.turns - scatter.sharpest) / ((count - 2) * variance)
    factor = turns / chance_of_turns(count)
    if factor <= 1.0:
        return 1.0
    factor = min(factor, (estimated(scatter) or 0.0) / (variance * chance_of_estimate(count)))
    return max(1.0, factor)


def correlation(scatter: Scatter, variance: float = 0.0) -> float:
    """Return the autocorrelation of the noise to reckon with, 0.0 to 0.5.

    Args:
        scatter: the sums.
        variance: mean of the reported squared errors, 0.0 if none was.
    """
    count = scatter.count
    if count < FIRST_CORRELATION or scatter.near == 0.0:
        return 0.0
    root = math.sqrt(count)
    found = scatter.far / scatter.near - 1.0
    if variance:
        by_steps = 1.0 - scatter.steps / (2.0 * variance * (count - 1))
        if by_steps >= -LARGER / root:
            found = (found + by_steps) / 2.0
    return min(max(found - SLACK / root, 0.0), LARGEST_CORRELATION)
