"""Speed of replay: 10,000 series of 100 evaluations under 10 s, file included.

    python benchmarks/bench_replay.py

The bound is the project's own ("replay of 10,000 series of 100 evals in under 10 s", one core).
CPU seconds are bounded rather than wall time, so that a busy machine does not decide. Seed 0.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from evalstop import parse_rule, replay

SERIES, EVALS = 10_000, 100
BOUND_S = 10.0
RULES = ("none", "consecutive:k=2", "default")


def main() -> int:
    """Print the figures; return 1 if a bound is not held."""
    held = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        write(path)
        for spec in RULES:
            started, cpu = time.perf_counter(), time.process_time()
            report = replay(path, parse_rule(spec), direction="max")
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
            held = held and cpu < BOUND_S
            print(
                f"replay {SERIES} x {EVALS}, {spec}: {cpu:.2f} CPU s (bound {BOUND_S:.0f}), "
                f"{wall:.2f} s wall, {report.summary[spec].fired} stopped"
            )
    return 0 if held else 1


def write(path: Path) -> None:
    """Write saturating curves, every other one declining from its 60th evaluation on."""
    rng = np.random.default_rng(0)
    steps = np.arange(EVALS)
    curves = 0.3 + 0.4 * (1 - np.exp(-steps / 20)) + rng.normal(0, 0.02, (SERIES, EVALS))
    curves[::2] -= np.maximum(0, steps - 60) * 0.005
    table = pa.table(
        {
            "trace_id": np.repeat([f"run-{i}" for i in range(SERIES)], EVALS),
            "step": np.tile(10 * steps, SERIES),
            "score": curves.ravel(),
            "stderr": np.full(SERIES * EVALS, 0.02),
        }
    )
    pa.csv.write_csv(table, path)


if __name__ == "__main__":
    sys.exit(main())
