"""The default, a stated prior and the limits, cell by cell, at truly equal false-stop rates.

    python benchmarks/detection_limits.py --out docs/detectors/limits.md --cache .limits

For each cell 2,000 healthy twins and 2,000 declining runs; thresholds are set on the first half of
them and measured on the second. What does not depend on a rule of ours (the reference's odds, the
restricted limit) is kept in the cache; an hour on one core, minutes once that is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalstop.detectors.thresholds import share_spent
from evalstop.experiments.detection.equal import (
    Curves,
    EqualRates,
    curves,
    margins,
    odds,
    set_equal,
)
from evalstop.experiments.detection.restricted import restricted_limit

SEED = 20261129
"""Of the first table: curves on which nothing of the rules was chosen."""
BOUND_SEED = 555
ODDS_SEED = 7
RUNS = 2000
ALPHA = 0.01
RATES = (0.01, 0.005)
CELLS = tuple(
    (world, evals, sigma)
    for world in ("gao", "linear", "cliff")
    for evals in (10, 20, 40)
    for sigma in (0.02, 0.05, 0.12)
)
BOUNDED = tuple((evals, sigma) for evals in (10, 20) for sigma in (0.05, 0.12))
WORLD_PRIOR = "base=0.3,base_sd=0.0577,gain=0.4,gain_sd=0.0577,declining=0.6,misfit=0"
"""The benchmark's prior as SPEC settings: uniform ranges by mean and standard deviation."""

EQUAL = (
    "world",
    "evals",
    "sigma",
    "reference, %",
    "`default`, %",
    "share at 1 %",
    "share at 0.5 %",
    "`bayes` at 1 %",
    "deployed, %",
    "stopped, %",
    "thresholds",
    "statistic",
)
BOUND = (
    "world",
    "evals",
    "sigma",
    "deployed, %",
    "limit, %",
    "share",
    "horizon known, %",
    "its limit, %",
    "share",
)

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def odds_of(cell: Curves, folder: Path) -> Pair:
    """Return the reference's highest log odds in each healthy and declining run, cached."""
    path = folder / f"odds-{cell.world}-{cell.healthy.shape[1]}-{cell.sigma}.npz"
    if not path.exists():
        healthy, declining = odds(cell, seed=ODDS_SEED, particles=600)
        np.savez(path, healthy=healthy, declining=declining)
    found = np.load(path)
    return found["healthy"], found["declining"]


def bounds_of(world: str, evals: int, sigma: float, folder: Path) -> list[float]:
    """Return the restricted limit at alpha s(n) and at alpha, cached."""
    path = folder / f"bound-{world}-{evals}-{sigma}.npy"
    if not path.exists():
        levels = (ALPHA * share_spent(evals), ALPHA)
        np.save(path, restricted_limit(world, evals, sigma, levels, runs=RUNS, seed=BOUND_SEED))
    bounds: list[float] = np.load(path).tolist()
    return bounds


def equal_line(world: str, evals: int, sigma: float, folder: Path) -> str:
    """Return one cell's line of the first table."""
    cell = curves(world, evals, sigma, runs=RUNS, seed=SEED)
    reference = odds_of(cell, folder)
    own = margins("default", cell)
    at = [set_equal(own, reference, rate, seed=SEED) for rate in RATES]
    prior = margins(f"bayes:{WORLD_PRIOR},shape={world}", cell)
    believed = set_equal(prior, reference, RATES[0], seed=SEED)
    deployed = float((own[1] >= 0)[RUNS // 2 :].mean())
    figures = (
        percent(at[0].reference),
        percent(at[0].found),
        share(at[0]),
        share(at[1]),
        share(believed),
        percent(deployed),
        percent(float((own[0] >= 0).mean())),
        percent(at[0].found - deployed),
        percent(at[0].reference - at[0].found),
    )
    return f"| {world} | {evals} | {sigma} | {' | '.join(figures)} |"


def bound_line(world: str, evals: int, sigma: float, folder: Path) -> str:
    """Return one cell's line of the second table."""
    cell = curves(world, evals, sigma, runs=RUNS, seed=BOUND_SEED)
    bounds = bounds_of(world, evals, sigma, folder)
    figures = []
    for rule, bound in zip(("default", f"scan:horizon={evals}"), bounds, strict=True):
        found = float((margins(rule, cell)[1] >= 0).mean())
        figures += [percent(found), percent(bound), f"{found / bound:.2f}"]
    return f"| {world} | {evals} | {sigma} | {' | '.join(figures)} |"


def table(head: tuple[str, ...], lines: list[str]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def percent(rate: float) -> str:
    """Return a rate in percent."""
    return f"{100 * rate:.1f}"


def share(rates: EqualRates) -> str:
    """Return a share of the reference with its interval."""
    low, high = rates.interval
    return f"{rates.share:.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Fill the cache, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    equal = [equal_line(*cell, options.cache) for cell in CELLS]
    bound = [bound_line(*cell, options.cache) for cell in CELLS if cell[1:] in BOUNDED]
    text = ["### Equal rates", "", *table(EQUAL, equal)]
    text += ["", "### No rule can find more", "", *table(BOUND, bound), ""]
    options.out.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
