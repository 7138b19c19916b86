"""The bank of `scan`, cut into bands for many curves at once.

A filter of span p + r has zeros before its newest p + r weights, and half of the filters span 18
evaluations or fewer. So the bank is sorted by span and cut into bands, each of which is multiplied
with no more evaluations than it needs: half the work of one product.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.detectors.bank import bank_at

__all__ = ["Band", "Bands", "bands_at"]

_REACHES = (18, 42)
"""Spans at which the bank is cut: of those tried the fastest."""

Array = NDArray[np.float64]


class Band(Struct, frozen=True, kw_only=True, eq=False):
    """Filters that span at most ``reach`` evaluations.

    Attributes:
        rows: their place among the answers.
        reach: evaluations that enter, the newest last.
        filters: as the bank's, (rows, reach).
        squares: as the bank's, (rows, reach).
    """

    rows: slice
    reach: int
    filters: Array
    squares: Array


class Bands(Struct, frozen=True, kw_only=True, eq=False):
    """A `evalstop.detectors.bank.Bank`, its K filters in order of their spans.

    Attributes:
        bands: the filters.
        resonance: as the bank's, (K, 4), but (1, 0, 0, 0) of filters whose variance no
            autocorrelation from 0 to 1 enlarges.
        tamed: resonance times gain, (K, 4).
        mixed: filters whose variance some autocorrelations enlarge and others do not.
        gain: as the bank's, (K, 1).
        weights: as the bank's, (K,).
    """

    bands: tuple[Band, ...]
    resonance: Array
    tamed: Array
    mixed: tuple[int, ...]
    gain: Array
    weights: Array

    def answers(self, curves: Array, out: Array) -> None:
        """Fill ``out`` (K, runs) with the answers to the newest of ``curves``, (evals, runs)."""
        for band in self.bands:
            np.matmul(band.filters, curves[-band.reach :], out=out[band.rows])

    def variances(self, variances: Array, out: Array) -> None:
        """Fill ``out`` (K, runs) with the variances of the answers: of scores, (evals, runs)."""
        for band in self.bands:
            np.matmul(band.squares, variances[-band.reach :], out=out[band.rows])

    def swell(self, powers: Array, out: Array, *, tamed: bool) -> None:
        """Fill ``out`` (K, runs) with the variances of the answers under autocorrelation.

        Args:
            powers: v, v rho, v rho^2 and v rho^3, v the variance without it, (4, runs).
            out: at least v, as `evalstop.detectors.bank.Bank.swell_one` is at least 1.
            tamed: times the gain, as `evalstop.detectors.bank.Bank.tamed` needs it.
        """
        resonance = self.tamed if tamed else self.resonance
        np.matmul(resonance, powers, out=out)
        for row in self.mixed:
            np.maximum(out[row], resonance[row, 0] * powers[0], out=out[row])


@cache
def bands_at(span: int) -> Bands:
    """Return the bands of the filters that fit into ``span`` evaluations."""
    bank = bank_at(span)
    reaches = (bank.filters != 0.0).argmax(axis=1)
    order = np.argsort(-reaches, kind="stable")
    spans = bank.span - reaches[order]
    bands, start = [], 0
    for reach in (*(reach for reach in _REACHES if reach < bank.span), bank.span):
        stop = int(np.searchsorted(spans, reach, side="right"))
        if stop > start:
            bands.append(
                Band(
                    rows=slice(start, stop),
                    reach=reach,
                    filters=np.ascontiguousarray(bank.filters[order[start:stop], -reach:]),
                    squares=np.ascontiguousarray(bank.squares[order[start:stop], -reach:]),
                )
            )
        start = stop
    resonance = bank.resonance[order]
    signs = [_sign(echoes) for echoes in resonance[:, 1:]]
    resonance[[sign < 0 for sign in signs], 1:] = 0.0
    return Bands(
        bands=tuple(bands),
        resonance=resonance,
        tamed=bank.gain[order, None] * resonance,
        mixed=tuple(row for row, sign in enumerate(signs) if sign == 0),
        gain=bank.gain[order, None],
        weights=bank.weights[order],
    )


def _sign(echoes: Array) -> int:
    """Return the sign that the echoes, weighed by powers of rho, have at each rho in (0, 1].

    0 if it is not always the same.
    """
    roots = np.roots(echoes[::-1])
    crossings = roots[np.isreal(roots)].real
    if ((crossings > 0.0) & (crossings <= 1.0)).any():
        return 0
    return 1 if echoes.sum() >= 0.0 else -1
