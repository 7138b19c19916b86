"""Gao et al.'s law, fitted to our runs: R(d) = d (alpha - beta log d), d = sqrt(KL).

R is the gold reward above the start's (which is fitted along), KL the divergence from the start
in nats. The law was found on models of 3 million to 3 billion parameters; whether it holds at 50
thousand is a question, so each fit says how much of the variance it explains, and the intervals
are of the fit, not of the law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from scipy.optimize import curve_fit
from scipy.stats import t as student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evalstop.lab.series import LabRun

__all__ = ["LawFit", "fit_arms", "fit_law", "gold_of_distance", "has_proxy"]

_CONFIDENCE = 0.95


class LawFit(Struct, frozen=True, kw_only=True):
    """One fit.

    Attributes:
        arm: which arm's runs, all seeds together.
        runs, points: how much was fitted.
        alpha, beta, start: the law's coefficients, and the gold reward at d = 0.
        alpha_interval, beta_interval: 95 %, from the fit's covariance. Points of one run are
            correlated, so they are narrower than a repetition of the runs would show.
        r_squared: share of the variance about the mean that the law explains.
        peak_kl: KL in nats at which the fitted law peaks, exp(2 (alpha / beta - 1)); None where
            beta <= 0: the law then rises for ever.
        largest_kl: the largest KL in the data.
    """

    arm: str
    runs: int
    points: int
    alpha: float
    beta: float
    start: float
    alpha_interval: tuple[float, float]
    beta_interval: tuple[float, float]
    r_squared: float
    peak_kl: float | None
    largest_kl: float


def gold_of_distance(
    distance: NDArray[np.float64], alpha: float, beta: float
) -> NDArray[np.float64]:
    """Return R(d) = d (alpha - beta log d), 0 at d = 0."""
    safe = np.where(distance > 0.0, distance, 1.0)
    value: NDArray[np.float64] = np.where(
        distance > 0.0, distance * (alpha - beta * np.log(safe)), 0.0
    )
    return value


def fit_law(runs: Sequence[LabRun]) -> LawFit:
    """Fit the law to all evaluations of the runs of one arm, by least squares."""
    distance = np.concatenate([np.sqrt(np.maximum(run.kl, 0.0)) for run in runs])
    gold = np.concatenate([run.gold for run in runs])
    # The start's gold reward is known with error too, so it is fitted along.
    estimate, covariance = curve_fit(
        lambda d, a, b, start: start + gold_of_distance(d, a, b),
        distance,
        gold,
        p0=(0.1, 0.05, np.mean([run.gold[0] for run in runs])),
    )
    alpha, beta, start = (float(value) for value in estimate)
    quantile = float(student.ppf(0.5 + _CONFIDENCE / 2, len(gold) - 3))
    half = quantile * np.sqrt(np.diag(covariance))
    left = gold - start - gold_of_distance(distance, alpha, beta)
    return LawFit(
        arm=runs[0].arm,
        runs=len(runs),
        points=len(gold),
        alpha=alpha,
        beta=beta,
        start=start,
        alpha_interval=(float(alpha - half[0]), float(alpha + half[0])),
        beta_interval=(float(beta - half[1]), float(beta + half[1])),
        r_squared=float(1.0 - (left**2).sum() / ((gold - gold.mean()) ** 2).sum()),
        peak_kl=float(np.exp(2.0 * (alpha / beta - 1.0))) if beta > 0.0 else None,
        largest_kl=float(distance.max() ** 2),
    )


def has_proxy(run: LabRun) -> bool:
    """Say whether the run optimised a learned proxy reward by policy gradients."""
    return run.job_type in {"grpo", "rloo"} and bool(np.isfinite(run.proxy_agreement))


def fit_arms(runs: Sequence[LabRun]) -> list[LawFit]:
    """Fit the law to each arm that optimised a learned proxy, in order of their names."""
    names = sorted({run.arm for run in runs if has_proxy(run)})
    return [fit_law([run for run in runs if run.arm == name]) for name in names]
