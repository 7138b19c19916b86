"""Speed of `Monitor.update_many`: two million evaluations a second on one core.

    OPENBLAS_NUM_THREADS=1 taskset -c 0 python benchmarks/bench_fleet.py

The bound is the project's own, for the first two fleets, at every length, whether or not the error
is known. CPU seconds are bounded rather than wall time; of three tries the best counts. Seed 0.

* **declining**: saturating curves, every other one of which declines in its last two fifths;
* **flat**: noise alone;
* **broken**: as declining, but every fourth run collapses to far below its start, every tenth has
  one broken evaluation, and every seventh ends early.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

from evalstop import Monitor, parse_rule

RUNS, TRIES = 5_000, 3
BOUND = 2e6
SIGMA = 0.02

Array = NDArray[np.float64]


def main() -> int:
    """Print the figures; return 1 if the bound is not held."""
    held = True
    monitor = Monitor(parse_rule("default"), direction="max")
    print(
        f"million evaluations/s, {RUNS} runs: error known / of every evaluation its own / unknown"
    )
    for name in ("declining", "flat", "broken"):
        for evals in (20, 40, 100, 200):
            scores, own = fleet(name, evals)
            speeds = [speed(monitor, scores, stderr) for stderr in (SIGMA, own, None)]
            held = held and (name == "broken" or min(speeds[0], speeds[2]) >= BOUND)
            print(
                f"{name}, {evals} evals:", " / ".join(f"{s / 1e6:.2f}" for s in speeds), flush=True
            )
    return 0 if held else 1


def speed(monitor: Monitor, scores: Array, stderr: Array | float | None) -> float:
    """Return evaluations a CPU second, the best of some tries."""
    taken = []
    for _ in range(TRIES):
        started = time.process_time()
        monitor.update_many(scores, stderr=stderr)
        taken.append(time.process_time() - started)
    return float(np.isfinite(scores).sum()) / min(taken)


def fleet(name: str, evals: int) -> tuple[Array, Array]:
    """Return scores and errors of their own."""
    rng = np.random.default_rng(0)
    steps = np.arange(evals)
    own = SIGMA * rng.uniform(0.9, 1.1, (RUNS, evals))
    scores = 0.5 + rng.normal(0.0, SIGMA, (RUNS, evals))
    if name != "flat":
        scores += 0.4 * (1.0 - np.exp(-5.0 * steps / evals)) - 0.2
        scores[::2] -= 0.2 * np.maximum(0.0, steps / evals - 0.6) / 0.4
    if name == "broken":
        scores[::4, evals * 4 // 5 :] -= 0.5
        scores[::10, evals // 2] -= 0.5
        scores[::7, evals * 9 // 10 :] = np.nan
    return scores, own


if __name__ == "__main__":
    sys.exit(main())
