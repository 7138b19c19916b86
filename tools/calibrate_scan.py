"""Make the threshold table of `scan` by simulation: flat curves, the worst healthy case.

For each rate alpha and each evaluation n of the table, from left to right, the threshold is the
lowest one that keeps the share of curves stopped by n at alpha * s(n) with independent noise and
at 4.2 alpha * s(n) with noise of autocorrelation 0.3. Between the points of the table the
thresholds are those that `evalstop.detectors.thresholds` interpolates.

    python tools/calibrate_scan.py --out src/evalstop/detectors/threshold_table.py
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.scan_batch import statistics
from evalstop.detectors.thresholds import share_spent

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]

COUNTS = (3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50, 65, 80, 100, 140, 200)
ALPHAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
RHO = 0.3
RHO_FACTOR = 4.2
"""Alpha may be exceeded by this factor at autocorrelation `RHO` (R01: 1 % and 5 %; a margin)."""
LOOSEST_RHO = 0.5
"""But not by so much that more than this share is stopped."""

HEADER = '''"""Thresholds of `scan`, made by tools/calibrate_scan.py: do not edit.

{command}
"""

from __future__ import annotations

__all__ = ["ALPHAS", "COUNTS", "ESTIMATED", "KNOWN"]

'''


def noise(generator: np.random.Generator, runs: int, evals: int, rho: float) -> Array:
    """Return flat curves: unit noise with autocorrelation ``rho``, (runs, evals)."""
    draws = generator.standard_normal((runs, evals))
    for index in range(1, evals):
        draws[:, index] = rho * draws[:, index - 1] + math.sqrt(1 - rho * rho) * draws[:, index]
    return draws


class Front:
    """Curves not stopped so far, while thresholds are set from left to right.

    Args:
        statistic: (runs, evals).
        allowed: share of the runs that may be stopped by evaluation n.
    """

    def __init__(self, statistic: Array, allowed: Callable[[int], float]) -> None:
        self._statistic = statistic
        self._allowed = allowed
        self._alive = np.arange(statistic.shape[0])

    def needed(self, last: int, previous: float | None, count: int) -> Array:
        """Return for each curve the threshold at ``count`` below which it is stopped by then.

        Between ``last`` and ``count`` thresholds are interpolated in log n, h(n) = previous +
        share (h - previous), so T(n) >= h(n) iff (T - (1 - share) previous) / share >= h.
        """
        block = self._statistic[self._alive, last:count].astype(np.float64)
        if previous is None:
            return block[:, -1]
        counts = np.arange(last + 1, count + 1)
        share = (np.log(counts) - math.log(last)) / (math.log(count) - math.log(last))
        peak: Array = ((block - (1.0 - share) * previous) / share).max(axis=1)
        return peak

    def level(self, needed: Array, count: int) -> float:
        """Return the lowest threshold that keeps to the allowance."""
        runs = self._statistic.shape[0]
        budget = int(self._allowed(count) * runs) - (runs - self._alive.size)
        if budget < 1:
            return float(needed.max()) + 1e-6
        return float(np.partition(needed, needed.size - budget)[needed.size - budget])

    def stop(self, needed: Array, level: float) -> None:
        """Drop the curves that ``level`` stops."""
        self._alive = self._alive[needed < level]


def boundary(fronts: list[Front], first: int) -> list[float]:
    """Return thresholds at COUNTS from ``first`` on that keep every front's allowance."""
    rows: list[float] = []
    last, previous = first - 1, None
    for count in (c for c in COUNTS if c >= first):
        needed = [front.needed(last, previous, count) for front in fronts]
        level = max(f.level(n, count) for f, n in zip(fronts, needed, strict=True))
        for front, values in zip(fronts, needed, strict=True):
            front.stop(values, level)
        rows.append(level)
        last, previous = count, level
    return rows


def paths(runs: int, evals: int, seed: int, rho: float, *, known: bool) -> Array:
    """Return the statistic of ``runs`` flat curves, float32 to save memory."""
    generator = np.random.default_rng([seed, int(rho * 100), int(known)])
    chunks = []
    for start in range(0, runs, 20_000):
        scores = noise(generator, min(20_000, runs - start), evals, rho)
        variances = np.ones_like(scores) if known else None
        chunks.append(statistics(scores, variances).astype(np.float32))
    return np.concatenate(chunks)


def table(runs: int, seed: int, *, known: bool) -> list[list[float]]:
    """Return the thresholds, one row a rate, one column a count."""
    first = 3 if known else 6
    independent = paths(runs, COUNTS[-1], seed, 0.0, known=known)
    correlated = paths(runs // 2, COUNTS[-1], seed, RHO, known=known)
    rows = []
    for alpha in ALPHAS:
        loose = max(alpha, min(RHO_FACTOR * alpha, LOOSEST_RHO))
        fronts = [
            Front(independent, lambda n, a=alpha: a * share_spent(n)),
            Front(correlated, lambda n, a=loose: a * share_spent(n)),
        ]
        row = boundary(fronts, first)
        rows.append([row[0]] * (len(COUNTS) - len(row)) + row)
    return rows


def written(name: str, rows: list[list[float]]) -> str:
    """Return one table as Python source."""
    lines = [f"{name}: tuple[tuple[float, ...], ...] = ("]
    for row in rows:
        lines.append("    (")
        lines += [f"        {value:.4f}," for value in row]
        lines.append("    ),")
    return "\n".join([*lines, ")"])


def main() -> None:
    """Simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=20260101)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    command = f"runs={options.runs}, seed={options.seed}"
    known = table(options.runs, options.seed, known=True)
    estimated = table(options.runs, options.seed, known=False)
    text = HEADER.format(command=command) + "\n".join(
        [
            f"COUNTS = {COUNTS}",
            '"""Evaluations so far."""',
            "",
            f"ALPHAS = {ALPHAS}",
            '"""Chance that a job whose quality does not fall is ever stopped."""',
            "",
            written("KNOWN", known),
            '"""With a reported error, (alpha, count)."""',
            "",
            written("ESTIMATED", estimated),
            '"""With an error estimated from the curve, (alpha, count)."""',
            "",
        ]
    )
    options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
