"""Make the tables and figures of docs/detectors.md.

    python benchmarks/detector_page.py --out docs/detectors

Writes tables.md, roc.svg and false-stops.svg. Seeds are fixed; about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from msgspec.structs import replace

from evalstop.config.rules import parse_rule
from evalstop.detectors.fleet import judge
from evalstop.experiments.detection.bench import Cell, Grid, run
from evalstop.experiments.detection.reference import posterior_odds
from evalstop.experiments.detection.worlds import draw
from evalstop.metrics.stats import wilson_interval
from evalstop.workloads.generate import generate
from evalstop.workloads.scenarios import PAPER

if TYPE_CHECKING:
    from evalstop.workloads.scenario import Scenario

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "evalstop"
SEED = 20260101

PAPER_PRIOR = (
    "horizon=10,shape=gao,base=0.15,base_sd=0.087,gain=1,gain_sd=0.115,power_low=2,power_high=2,"
    "peak_low=0.408,peak_high=0.535,healthy_low=1,healthy_high=2,declining=0.48,misfit=0"
)
"""What scenario `paper` says of its runs: start 0-0.3, gain 0.8-1.2, KL as t^2, ending at 0.25-1
(healthy) or 3.5-6 times the KL of the peak; 0.6 of 0.8 of the jobs decline."""

DECLINES = Grid(
    worlds=("gao", "linear", "cliff"),
    evals=(10, 20, 40),
    sigmas=(0.02, 0.05, 0.12),
    rules=(
        "default",
        "order-restricted",
        "e-detector",
        "bocpd",
        "local-trend",
        "consecutive:k=2",
        "consecutive:k=3",
        "patience:k=3",
        "patience:k=3,min_delta=0.01",
        "drop",
        "cusum",
        "ray-median",
    ),
    runs=200,
    reference=False,
)
UNKNOWN = Grid(
    worlds=("gao", "linear", "cliff"),
    evals=(10, 20, 40),
    sigmas=(0.02, 0.05, 0.12),
    reports=("unknown",),
    rules=("default",),
    runs=200,
    reference=False,
)


def percent(rate: float) -> str:
    """Return a rate in percent, a dash for none."""
    return "-" if math.isnan(rate) else f"{100 * rate:.1f}"


def with_interval(cell: Cell, name: str) -> str:
    """Return a rate of a cell with its interval."""
    low, high = cell.intervals[name]
    return f"{percent(getattr(cell, name))} ({percent(low)}-{percent(high)})"


def rules_table(cells: list[Cell]) -> list[str]:
    """Return one line a rule: pooled over the cells."""
    lines = [
        "| rule | found, % | healthy stopped, % | before the peak, % | delay | reclaimed, % |",
        "|---|---|---|---|---|---|",
    ]
    for rule in DECLINES.rules:
        own = [cell for cell in cells if cell.rule == rule]
        bad, good = (sum(round(part * c.n) for c in own) for part in (0.6, 0.4))
        found = sum(round(c.recall * round(0.6 * c.n)) for c in own)
        false = sum(round(c.fpr * round(0.4 * c.n)) for c in own)
        early = sum(round(c.early_rate * round(0.6 * c.n)) for c in own)
        rates = [
            f"{percent(hits / of)} ({'-'.join(percent(x) for x in wilson_interval(hits, of))})"
            for hits, of in ((found, bad), (false, good), (early, bad))
        ]
        delay = np.nanmean([cell.delay_evals_mean for cell in own])
        saved = np.mean([cell.reclaimed_fraction for cell in own])
        lines.append(f"| `{rule}` | {' | '.join(rates)} | {delay:.1f} | {percent(saved)} |")
    return lines


def default_table(known: list[Cell], unknown: list[Cell]) -> list[str]:
    """Return the default in every cell, with and without a reported error."""
    lines = [
        "| world | evals | sigma | found, % | healthy stopped, % | error unknown: found, % |",
        "|---|---|---|---|---|---|",
    ]
    blind = {(c.world, c.n_evals, c.sigma): c for c in unknown}
    for cell in (c for c in known if c.rule == "default"):
        without = blind[cell.world, cell.n_evals, cell.sigma]
        lines.append(
            f"| {cell.world} | {cell.n_evals} | {cell.sigma} | {with_interval(cell, 'recall')} "
            f"| {with_interval(cell, 'fpr')} | {with_interval(without, 'recall')} |"
        )
    return lines


def control_table() -> list[str]:
    """Return false stops on healthy curves."""
    lines = [
        "| world | evals | rho | `default`, % | error unknown, % | k = 2, % | k = 3, % |",
        "|---|---|---|---|---|---|---|",
    ]
    worlds = ("flat", "saturating", "slow-rise", "late-bloomer", "dip", "random-walk", "restart")
    for world in worlds:
        for evals in (5, 20, 200):
            for rho in (0.0, 0.3):
                grid = Grid(
                    worlds=(world,),
                    evals=(evals,),
                    sigmas=(0.02,),
                    rhos=(rho,),
                    reports=("true", "unknown"),
                    rules=("default",),
                    runs=2000,
                )
                one, two = run(grid)
                simple = Grid(
                    worlds=(world,),
                    evals=(evals,),
                    sigmas=(0.02,),
                    rhos=(rho,),
                    rules=("consecutive:k=2", "consecutive:k=3"),
                    runs=100,
                )
                three, four = run(simple)
                lines.append(
                    f"| {world} | {evals} | {rho} | {with_interval(one, 'fpr')} "
                    f"| {with_interval(two, 'fpr')} | {percent(three.fpr)} | {percent(four.fpr)} |"
                )
    return lines


def understated_line() -> str:
    """Return the false-stop rate with errors reported at two thirds."""
    grid = Grid(
        worlds=("flat",),
        evals=(10, 20, 40, 100),
        sigmas=(0.02,),
        reports=("understated",),
        rules=("default",),
        runs=2000,
    )
    rates = [f"{with_interval(cell, 'fpr')} % in {cell.n_evals} evals" for cell in run(grid)]
    return "Errors reported at 2/3 of the truth, flat curves: " + ", ".join(rates) + "."


def paper_table() -> list[str]:
    """Return rules in scenario `paper` at sigma 0.12, seeds 0-19, beside its own Bayes reference.

    Scores at a run's end stop nothing. The reference's particles are the true curves of seeds
    100-119: it knows how healthy runs differ from others while both still rise.
    """
    scenario = replace(PAPER, noise=replace(PAPER.noise, sigma=0.12))
    scores, _, hacking = paper_runs(scenario, range(20))
    lines = ["| rule | precision, % | recall, % | fpr, % |", "|---|---|---|---|"]
    rules = (
        "default",
        "scan:horizon=10",
        "scan:alpha=0.1",
        "scan:alpha=0.3",
        "order-restricted:threshold=8",
        f"bayes:{PAPER_PRIOR}",
        f"bayes:odds=19,{PAPER_PRIOR}",
    )
    for rule in (*rules, "consecutive:k=2", "consecutive:k=3"):
        stop = judge(parse_rule(rule).for_type("rlhf"), scores, 0.12).stop
        stopped = (stop >= 0) & (stop < scores.shape[1] - 1)
        name = rule.replace(PAPER_PRIOR, "PRIOR")
        lines.append(rates_line(name, stopped, hacking))
    _, curves, labels = paper_runs(scenario, range(100, 120))
    ages = np.arange(scores.shape[1])
    past = (ages[None, :] > curves.argmax(axis=1)[:, None]) & labels[:, None]
    logs = np.zeros((scores.shape[0], curves.shape[0]))
    chance = np.zeros(scores.shape[0])
    for age in ages[:-1]:
        logs -= 0.5 * ((scores[:, age : age + 1] - curves[None, :, age]) / 0.12) ** 2
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        chance = np.maximum(chance, weights @ past[:, age] / weights.sum(axis=1))
    order = np.argsort(-chance)
    precise = np.cumsum(hacking[order]) / np.arange(1, order.size + 1)
    stopped = np.zeros(order.size, dtype=bool)
    stopped[order[: int(np.flatnonzero(precise >= 0.95)[-1]) + 1]] = True
    return [*lines, rates_line("Bayes reference, precision 95 %", stopped, hacking)]


def paper_runs(scenario: Scenario, seeds: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores, true scores (runs, evals) and labels of a scenario whose runs are alike."""
    parts = [generate(scenario, seed) for seed in seeds]
    shape = (-1, scenario.evals.count)
    return (
        np.concatenate([part.scores.reshape(shape) for part in parts]).astype(np.float64),
        np.concatenate([part.true_scores.reshape(shape) for part in parts]).astype(np.float64),
        np.concatenate([part.hacking for part in parts]),
    )


def rates_line(rule: str, stopped: np.ndarray, hacking: np.ndarray) -> str:
    """Return a line of precision, recall and false-stop rate with intervals."""
    true, false = int((stopped & hacking).sum()), int((stopped & ~hacking).sum())
    cells = []
    for hits, of in (
        (true, true + false),
        (true, int(hacking.sum())),
        (false, int((~hacking).sum())),
    ):
        low, high = wilson_interval(hits, of)
        cells.append(f"{percent(hits / of)} ({percent(low)}-{percent(high)})")
    return f"| {rule} | {' | '.join(cells)} |"


def roc_figure(path: Path) -> None:
    """Draw found against stopped as the threshold moves, linear declines, sigma 0.05."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True)
    for axis, evals in zip(axes, (10, 20, 40), strict=True):
        generator = np.random.default_rng([SEED, evals])
        drawn = draw("linear", generator, 1000, evals)
        assert drawn.declining is not None
        healthy, declining = (
            truth + 0.05 * generator.standard_normal(truth.shape)
            for truth in (drawn.healthy, drawn.declining)
        )
        for rule in ("default", "order-restricted", "local-trend", "cusum", "consecutive:k=2"):
            detector = parse_rule(rule).for_type("rlhf")
            tops = []
            for scores in (healthy, declining):
                fleet = judge(detector, scores, 0.05)
                tops.append((fleet.statistic - fleet.threshold).max(axis=1))
            draw_roc(axis, *tops, label=rule)
        odds = [
            posterior_odds("linear", scores, 0.05, np.random.default_rng(SEED)).max(axis=1)
            for scores in (healthy, declining)
        ]
        draw_roc(axis, *odds, label="Bayes reference", color="black", linestyle="--")
        axis.set(xscale="log", xlim=(1e-3, 1), ylim=(0, 1), title=f"{evals} evaluations")
        axis.set_xlabel("healthy runs stopped")
    axes[0].set_ylabel("declines found")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_roc(axis: plt.Axes, healthy: np.ndarray, declining: np.ndarray, **style: str) -> None:
    """Draw one curve."""
    levels = np.sort(np.concatenate([healthy, declining]))
    rates = [(healthy >= level).mean() for level in levels]
    axis.step(rates, [(declining >= level).mean() for level in levels], **style)


def false_stop_figure(path: Path) -> None:
    """Draw the share of flat runs stopped by each evaluation."""
    figure, axis = plt.subplots(figsize=(5.5, 3.4))
    scores = np.random.default_rng(SEED).standard_normal((1000, 100))
    for rule in ("default", "drop", "consecutive:k=2", "consecutive:k=3", "patience:k=3"):
        fleet = judge(parse_rule(rule).for_type("rlhf"), scores, 1.0)
        stopped = np.maximum.accumulate(fleet.alarm, axis=1).mean(axis=0)
        axis.plot(np.arange(1, 101), stopped, label=rule)
    axis.axhline(0.01, color="grey", linewidth=0.8, linestyle=":")
    axis.set(yscale="log", ylim=(5e-4, 1.1), xlabel="evaluations", ylabel="flat runs stopped")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables-only", action="store_true", help="leave the figures as they are")
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if not options.tables_only:
        false_stop_figure(out / "false-stops.svg")
        roc_figure(out / "roc.svg")
    known, unknown = run(DECLINES), run(UNKNOWN)
    text = ["### Rules", "", *rules_table(known), "", "### The default", ""]
    text += [*default_table(known, unknown), "", "### Healthy", ""]
    text += [*control_table(), "", understated_line(), ""]
    text += ["### Paper", "", *paper_table(), ""]
    (out / "tables.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
