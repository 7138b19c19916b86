"""How many items was a score counted over? A share of n items is a multiple of 1/n.

Where neither an error nor a number of items is reported, scores between 0 and 1 may still tell:
0.588, 0.602 and 0.574 are all multiples of 1/500, 0.38062871707731520 is 1344/3531 and hardly
anything else. The least common denominator divides the number of items, so the binomial error
that follows from it is, if anything, too large: it can cost declines, not healthy runs.

Printed decimals prove nothing by themselves: 39/128 printed as 0.305 is a multiple of 1/1000. So a
denominator counts only if as many different scores, printed as finely, would all be its
multiples by chance in one case of a hundred at most.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray


__all__ = ["START", "Lattice", "items_of", "may_be_share", "refined"]

_MOST_ITEMS = 20_000
_PRINTED = 9
"""Digits up to which a score is taken as printed; with more it is taken as computed."""
_EXACT = 1e-12
_DIGITS = 12
_CHANCE = 0.01
_FEWEST = 2


class Lattice(Struct, frozen=True, gc=False):
    """Least common denominator of the scores so far, 0 if they have none.

    ``finest``: the finest grid that any of them was printed on.
    """

    denominator: int = 1
    finest: int = 1


START = Lattice()
_NONE = Lattice(0, 1)


def refined(lattice: Lattice, score: float) -> Lattice:
    """Return the lattice after one more score; its sign, which tells the direction, is ignored."""
    if not lattice.denominator:
        return lattice
    share = round(abs(score), _DIGITS)
    if share > 1.0:
        return _NONE
    digits = f"{share:.{_DIGITS}f}".partition(".")[2].rstrip("0") or "0"
    if len(digits) <= _PRINTED:
        grid = 10 ** len(digits)
        own = grid // math.gcd(round(share * grid), grid)
    else:
        grid = 10**_DIGITS
        nearest = Fraction(share).limit_denominator(_MOST_ITEMS)
        if abs(float(nearest) - share) > _EXACT:
            return _NONE
        own = nearest.denominator
    common = math.lcm(lattice.denominator, own)
    return Lattice(common, max(lattice.finest, grid)) if common <= _MOST_ITEMS else _NONE


def items_of(lattice: Lattice, scores: Collection[float]) -> int:
    """Return the number of items that the scores betray, 0 if none.

    Args:
        lattice: of all scores so far.
        scores: some of them.
    """
    items = lattice.denominator
    if items < _FEWEST or items >= lattice.finest:
        return 0
    chance = (items / lattice.finest) ** len(set(scores))
    return items if chance <= _CHANCE else 0


def may_be_share(scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which scores could keep a `Lattice` alive: a quick look at many, never too strict."""
    share = np.abs(scores)
    rest = np.where(share <= 1.0, share, np.inf)
    below, above = np.zeros_like(share), np.ones_like(share)  # numerators before and now
    under, over = np.ones_like(share), np.zeros_like(share)  # denominators before and now
    found = np.zeros(share.shape, dtype=bool)
    with np.errstate(all="ignore"):  # what is left of a fraction that ends is 0: 1/0 is no news
        for _ in range(_DIGITS * 2):
            whole = np.floor(rest)
            below, above = above, whole * above + below
            under, over = over, whole * over + under
            found |= (np.abs(above / over - share) <= 2.0 * _EXACT) & (over <= _MOST_ITEMS)
            rest = 1.0 / (rest - whole)
    return found
