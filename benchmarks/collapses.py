"""What waiting for a second evaluation far below the start buys, and what it costs (R19).

    python benchmarks/collapses.py

Saturating curves (gain 0.3-0.5, sigma 0.02) in which one evaluation, anywhere but first, is lost to
a score near 0; the same where all from there on are; and flat curves. Seed 20261219.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.fleet import judge
from evalstop.detectors.scan import Scan
from evalstop.experiments.detection.worlds import draw
from evalstop.metrics.stats import wilson_interval
from evalstop.workloads.noise import ar1_noise

Array = NDArray[np.float64]
SEED = 20261219
SIGMA = 0.02
RUNS = 2000
EVALS = (6, 10, 20, 40)
FLAT_RUNS = 20_000
FLAT_EVALS = (8, 20, 60)
LEFT = 3
"""Evaluations that a collapse leaves at least."""


def main() -> None:
    """Print both tables."""
    generator = np.random.default_rng(SEED)
    print(
        "| evals | error | one broken evaluation: stopped, % | collapse: found, % | delay, evals |"
    )
    print("|---|---|---|---|---|")
    for evals in EVALS:
        broken = damaged(generator, evals, evals - 1, lasting=False)
        fallen = damaged(generator, evals, evals - LEFT, lasting=True)
        for error, name in ((SIGMA, "known"), (None, "unknown")):
            stops = judge(Scan(), fallen[0], error).stop
            found = stops >= 0
            false = judge(Scan(), broken[0], error).stop >= 0
            delay = float((stops - fallen[1])[found].mean())
            print(f"| {evals} | {name} | {share(false)} | {share(found)} | {delay:.1f} |")
    print("\n| flat, evals | rho | known: stopped, % | unknown: stopped, % |")
    print("|---|---|---|---|")
    for rho in (0.0, 0.3):
        for evals in FLAT_EVALS:
            scores = ar1_noise(generator, (FLAT_RUNS, evals), rho=rho)
            rates = [share(judge(Scan(), scores, error).stop >= 0) for error in (1.0, None)]
            print(f"| {evals} | {rho} | {' | '.join(rates)} |")


def damaged(
    generator: np.random.Generator, evals: int, last: int, *, lasting: bool
) -> tuple[Array, NDArray[np.int64]]:
    """Return scores, (runs, evals), and which evaluation of each run is the first one lost."""
    truth = draw("saturating", generator, RUNS, evals).healthy
    place = generator.integers(1, last + 1, RUNS)
    index = np.arange(evals)[None, :]
    lost = index >= place[:, None] if lasting else index == place[:, None]
    return np.where(lost, 0.0, truth) + SIGMA * generator.standard_normal(truth.shape), place


def share(hits: NDArray[np.bool_]) -> str:
    """Return a share in percent with its interval."""
    low, high = wilson_interval(int(hits.sum()), hits.size)
    return f"{100 * hits.mean():.1f} ({100 * low:.1f}-{100 * high:.1f})"


if __name__ == "__main__":
    main()
