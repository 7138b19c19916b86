"""The figures of docs/peers.md: rules as curves, libraries as points, one a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from evalstop.config.rules import parse_rule
from evalstop.detectors.fleet import judge
from evalstop.experiments.detection.worlds import draw
from evalstop.experiments.peers.field import Field
from evalstop.experiments.peers.registry import parse_peer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "evalstop"

CADENCES = (5, 10, 20, 40, 100)
SIGMA = 0.05
SETTINGS = {
    "lightning:patience": [f"lightning:patience:k={k}" for k in (1, 2, 3, 5, 8, 12)],
    "lightning, min_delta": [f"lightning:patience:k={k},min_delta=0.05" for k in (1, 2, 3, 5, 8)],
    "optuna:patient, min_delta": [
        f"optuna:patient:k=1,min_delta={delta}" for delta in (0.0, 0.05, 0.1, 0.15, 0.2)
    ],
    "optuna:wilcoxon": [f"optuna:wilcoxon:p={p}" for p in (0.1, 0.001)],
    "optuna:median": ["optuna:median"],
    "ray:median": ["ray:median"],
}
MARKS = "os^Dv*"


def draw_roc(path: Path, seed: int, runs: int = 400, peer_runs: int = 40) -> None:
    """Draw found against stopped, linear declines, sigma 0.05, at each cadence."""
    figure, axes = plt.subplots(1, len(CADENCES), figsize=(15, 3.6), sharey=True)
    for axis, evals in zip(axes, CADENCES, strict=True):
        generator = np.random.default_rng([seed, evals])
        drawn = draw("linear", generator, runs, evals)
        assert drawn.declining is not None
        healthy, declining = (
            truth + SIGMA * generator.standard_normal(truth.shape)
            for truth in (drawn.healthy, drawn.declining)
        )
        for rule in ("default", "order-restricted", "cusum"):
            tops = [
                (fleet.statistic - fleet.threshold).max(axis=1)
                for fleet in (
                    judge(parse_rule(rule).for_type("rlhf"), scores, SIGMA)
                    for scores in (healthy, declining)
                )
            ]
            levels = np.unique(np.concatenate(tops))[1:]  # the lowest is "no fall at all"
            axis.step(*([(top >= level).mean() for level in levels] for top in tops), label=rule)
        rates = [
            [
                (judge(parse_rule(f"consecutive:k={k}").for_type("rlhf"), scores).stop >= 0).mean()
                for k in (1, 2, 3, 4, 5)
            ]
            for scores in (healthy, declining)
        ]
        axis.plot(*rates, "x-", ms=5, lw=0.7, color="black", label="consecutive, k = 1-5")
        field = Field(
            scores=np.concatenate([declining[:peer_runs], healthy[:peer_runs]]),
            declines=np.arange(2 * peer_runs) < peer_runs,
            sigma=SIGMA,
            seed=seed,
        )
        for (name, specs), mark in zip(SETTINGS.items(), MARKS, strict=True):
            points = [rates_of(spec, field) for spec in specs]
            axis.plot(*zip(*points, strict=True), mark, ls=":", lw=0.7, ms=4, label=name)
        axis.set(ylim=(0, 1.02), xlim=(-0.02, 1.02), title=f"{evals} evaluations")
        axis.set_xlabel("healthy twins stopped")
    axes[0].set_ylabel("declines found")
    axes[-1].legend(fontsize=6, loc="lower right")
    finish(figure, path)


def rates_of(spec: str, field: Field) -> tuple[float, float]:
    """Return the shares of healthy and of declining runs that are stopped."""
    stopped = parse_peer(spec).peer.stops(field) >= 0
    return float(stopped[~field.declines].mean()), float(stopped[field.declines].mean())


def draw_false_stops(path: Path, seed: int, runs: int = 1000, peer_runs: int = 100) -> None:
    """Draw the share of flat runs stopped by each evaluation, sigma 0.05."""
    figure, axis = plt.subplots(figsize=(7, 4))
    scores = 0.5 + SIGMA * np.random.default_rng(seed).standard_normal((runs, 100))
    for rule in ("default", "drop", "consecutive:k=2", "consecutive:k=3"):
        stop = judge(parse_rule(rule).for_type("rlhf"), scores, SIGMA).stop
        axis.plot(np.arange(1, 101), by_then(stop), label=rule)
    field = Field(
        scores=scores[:peer_runs],
        declines=np.zeros(peer_runs, dtype=np.bool_),
        sigma=SIGMA,
        seed=seed,
    )
    peers = (
        "transformers:patience",
        "lightning:patience:k=10",
        "optuna:patient:k=1,min_delta=0.1",
        "optuna:median",
        "optuna:wilcoxon",
        "optuna:wilcoxon:p=0.0001",
        "ray:median",
    )
    for spec in peers:
        named = parse_peer(spec)
        axis.plot(np.arange(1, 101), by_then(named.peer.stops(field)), "--", lw=1, label=spec)
    axis.axhline(0.01, color="grey", linewidth=0.8, linestyle=":")
    axis.set(yscale="log", ylim=(5e-4, 1.1), xlabel="evaluations", ylabel="flat runs stopped")
    axis.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    finish(figure, path)


def by_then(stop: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of runs stopped by each of 100 evaluations."""
    return np.array([((stop >= 0) & (stop <= index)).mean() for index in range(100)])


def finish(figure: plt.Figure, path: Path) -> None:
    """Write a figure without a date."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
