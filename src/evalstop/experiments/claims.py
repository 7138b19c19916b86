"""The paper's claims beside ours. Ids are those that users and checks rely on.

``holds`` means: our 95 % interval meets the paper's value or bound. Where the paper leaves a
definition open, each reading is computed, and the claim holds if one of them meets it; the note
says which. Nothing here chooses a setting: all claims are read off the same runs of `paper`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from evalstop.experiments.grid import EVALSTOP, percent
from evalstop.experiments.results import Estimate
from evalstop.experiments.suites import hacking_share, main_table, noise, threshold
from evalstop.metrics.stats import t_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.experiments.results import Results

__all__ = ["Claim", "Reading", "claims"]

Direction = Literal["same", "better", "worse"]
Bound: TypeAlias = tuple[float, float]
"""Lowest and highest value that agrees with the paper."""


_ROUNDING = 1e-9
"""Wilson's interval of 100 % ends at 1 but for rounding."""


class Reading(Struct, frozen=True, kw_only=True):
    """A claim under one definition of what the paper leaves open."""

    name: str
    ours: float | None
    interval: tuple[float, float] | None
    holds: bool


class Claim(Struct, frozen=True, kw_only=True):
    """One figure of the paper and ours.

    Attributes:
        id: stable name.
        paper: what the paper says, in words.
        ours: our figure under the first reading that meets the paper, else under the first.
        interval: its 95 % interval; None where it is not defined.
        seeds: runs it was computed from.
        holds: whether some reading meets the paper.
        direction: same if it holds; else whether ours speaks more (better) or less (worse) for
            EvalStop than the paper's figure does, a rival's good figures speaking against it.
        note: readings and assumptions.
        readings: every reading.
    """

    id: str
    paper: str
    ours: float | None
    interval: tuple[float, float] | None
    seeds: int
    holds: bool
    direction: Direction
    note: str
    readings: tuple[Reading, ...]


def claims(results: Results) -> list[Claim]:
    """Return every claim, in the order of the paper's table."""
    return [
        *_gains(results),
        *_detection(results),
        *_rivals(results),
        _range(results),
        *_noise(results),
        _base_rate(results),
        _best_k(results),
        _jain(results),
    ]


def _claim(
    name: str,
    paper: str,
    bound: Bound,
    readings: Sequence[tuple[str, Estimate]],
    seeds: int,
    *,
    more_is_better: bool = True,
    note: str = "",
) -> Claim:
    read = [
        Reading(name=what, ours=_known(one.value), interval=_ends(one), holds=_meets(one, bound))
        for what, one in readings
    ]
    # The first that meets the paper, else the first: readings come in order of plainness.
    best = next((i for i, one in enumerate(read) if one.holds), 0)
    ours, holds = readings[best][1], read[best].holds
    above = ours.value > bound[1]
    direction: Direction = "same" if holds else "better" if above == more_is_better else "worse"
    told = "; ".join(f"{what}: {percent(one)}" for what, one in readings) if len(read) > 1 else ""
    return Claim(
        id=name,
        paper=paper,
        ours=_known(ours.value),
        interval=_ends(ours),
        seeds=seeds,
        holds=holds,
        direction=direction,
        note=". ".join(part for part in (told, note) if part),
        readings=tuple(read),
    )


def _meets(found: Estimate, bound: Bound) -> bool:
    low, high = found.interval if math.isfinite(found.low) else (found.value, found.value)
    return low <= bound[1] + _ROUNDING and high >= bound[0] - _ROUNDING


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ends(found: Estimate) -> tuple[float, float] | None:
    return found.interval if math.isfinite(found.low) and math.isfinite(found.high) else None


def _reduction(change: Estimate) -> Estimate:
    return Estimate(-change.value, (-change.high, -change.low))


def _gains(results: Results) -> list[Claim]:
    suite, seeds = main_table.SUITE, results.seeds(main_table.SUITE)
    labels = {"scheduler": "srtf-est", "rule": EVALSTOP}

    def cut(figure: str) -> Estimate:
        return _reduction(results.change(suite, figure, **labels))

    return [
        _claim(
            "jct_reduction_srtf",
            "9.4 %",
            (0.094, 0.094),
            [("all jobs", cut("jct_mean_s")), ("completed jobs", cut("jct_completed_mean_s"))],
            seeds,
            note=(
                "Stopped jobs end early, so that the mean over all jobs falls by more than what "
                "the others gain; with 48 % of jobs hacking, a cut of 21.8 % in their GPU time "
                "alone lowers the mean by 10.5 %"
            ),
        ),
        _claim(
            "waste_reduction_srtf",
            "21.8 %",
            (0.218, 0.218),
            [
                ("all GPU time of hacking jobs", cut("gpu_hours_hacking")),
                ("GPU time past the true peak", cut("gpu_hours_wasted")),
            ],
            seeds,
            note="Recall 99 % needs a mean stop near 70 % of the run, which saves more",
        ),
    ]


def _detection(results: Results) -> list[Claim]:
    suite, seeds = main_table.SUITE, results.seeds(main_table.SUITE)
    labels = {"scheduler": "srtf-est", "rule": EVALSTOP}

    def rate(name: str) -> Estimate:
        return results.rate(suite, name, **labels)

    return [
        _claim("precision", "98.3 %", (0.983, 0.983), [("", rate("precision"))], seeds),
        _claim("recall", "99 %", (0.99, 0.99), [("", rate("recall"))], seeds),
        _claim(
            "fpr",
            "1.5 %",
            (0.015, 0.015),
            [("all non-hacking jobs", rate("fpr")), ("healthy RLHF jobs", rate("fpr_rlhf"))],
            seeds,
            more_is_better=False,
        ),
    ]


def _rivals(results: Results) -> list[Claim]:
    suite, seeds = main_table.SUITE, results.seeds(main_table.SUITE)

    def rate(name: str, rule: str) -> Estimate:
        return results.rate(suite, name, scheduler="srtf-est", rule=rule)

    return [
        _claim(
            "stopat_fpr",
            "64.5 %",
            (0.645, 0.645),
            [
                ("all non-hacking jobs", rate("fpr", "StopAt-0.65")),
                ("healthy RLHF jobs", rate("fpr_rlhf", "StopAt-0.65")),
            ],
            seeds,
            note="64 of 104 non-hacking jobs are RLHF: a rule that stops each has 61.5 %",
        ),
        _claim(
            "lossplateau_recall",
            "38.3 %",
            (0.383, 0.383),
            [("", rate("recall", "LossPlateau"))],
            seeds,
            more_is_better=False,
            note=(
                "The paper states no patience and no loss curves. Ours: patience 2, as k = 2; the "
                "one free number of the loss curves was fitted to this recall"
            ),
        ),
        _claim(
            "lossplateau_fpr",
            "about 24 %",
            (0.235, 0.245),
            [
                ("all non-hacking jobs", rate("fpr", "LossPlateau")),
                ("healthy RLHF jobs", rate("fpr_rlhf", "LossPlateau")),
            ],
            seeds,
            note="Not fitted: it follows from the recall, 0.38 x 64 / 104",
        ),
    ]


_RANGE_BASES = ("fifo", "sjf-est", "srtf-est", "loss-aware")


_RANGE = (0.089, 0.252)
_RANGE_BASES = ("fifo", "sjf-est", "srtf-est", "loss-aware")


def _range(results: Results) -> Claim:
    """Return the claim on four bases: each has to meet the range, under one reading for all."""
    suite = main_table.SUITE
    readings: list[Reading] = []
    told: list[str] = []
    for name, figure in (("all jobs", "jct_mean_s"), ("completed jobs", "jct_completed_mean_s")):
        found = [
            _reduction(results.change(suite, figure, scheduler=base, rule=EVALSTOP))
            for base in _RANGE_BASES
        ]
        values = [one.value for one in found]
        readings.append(
            Reading(
                name=name,
                ours=(min(values) + max(values)) / 2,
                interval=(min(values), max(values)),
                holds=all(_meets(one, _RANGE) for one in found),
            )
        )
        each = zip(_RANGE_BASES, found, strict=True)
        told.append(f"{name}: " + ", ".join(f"{base} {percent(one)}" for base, one in each))
    chosen = next((one for one in readings if one.holds), readings[0])
    assert chosen.interval is not None
    return Claim(
        id="jct_reduction_range",
        paper="8.9 to 25.2 % over FIFO, SJF-Est, SRTF-Est, LossAware",
        ours=chosen.ours,
        interval=chosen.interval,
        seeds=results.seeds(suite),
        holds=chosen.holds,
        direction="same"
        if chosen.holds
        else "better"
        if chosen.interval[1] > _RANGE[1]
        else "worse",
        note="Interval: least and largest mean of the four. " + "; ".join(told),
        readings=tuple(readings),
    )


def _noise(results: Results) -> list[Claim]:
    told = (
        (0.01, "100 %", (1.0, 1.0)),
        (0.05, "at least 91 %", (0.91, 1.0)),
        (0.12, "81 %", (0.81, 0.81)),
    )
    return [
        _claim(
            f"noise_precision_{sigma}",
            paper,
            bound,
            [
                (
                    "",
                    results.rate(
                        noise.SUITE, "precision", scheduler="srtf-est", rule=EVALSTOP, sigma=sigma
                    ),
                )
            ],
            results.seeds(noise.SUITE),
        )
        for sigma, paper, bound in told
    ]


def _base_rate(results: Results) -> Claim:
    found = {
        share: results.rate(
            hacking_share.SUITE, "precision", scheduler="srtf-est", rule=EVALSTOP, share=share
        )
        for share in hacking_share.SHARES
    }
    lowest = min(found.values(), key=lambda one: one.value)
    told = "; ".join(f"{share:.0%} hacking: {percent(one)}" for share, one in found.items())
    return _claim(
        "base_rate_precision_min",
        "at least 89 %",
        (0.89, 1.0),
        [("", lowest)],
        results.seeds(hacking_share.SUITE),
        note=told,
    )


def _best_k(results: Results) -> Claim:
    suite = threshold.SUITE
    scores: dict[float, np.ndarray] = {}
    for k in threshold.KS:
        rows = results.rows(suite, scheduler="srtf-est", rule="rlhf", **{"k of rlhf": k})
        scores[k] = np.array([[row["tp"], row["fp"], row["fn"]] for row in rows], dtype=float)
    best = _argmax({k: counts.sum(axis=0) for k, counts in scores.items()})
    rng = np.random.default_rng(0)
    count = results.seeds(suite)
    draws = []
    for _ in range(500):
        chosen = rng.integers(count, size=count)
        draws.append(_argmax({k: counts[chosen].sum(axis=0) for k, counts in scores.items()}))
    low, high = np.quantile(draws, [0.025, 0.975], method="nearest")
    estimate = Estimate(best, (float(low), float(high)))
    told = "; ".join(
        f"k = {k:.0f}: F1 {2 * c[0] / (2 * c[0] + c[1] + c[2]):.3f}"
        for k, c in ((k, counts.sum(axis=0)) for k, counts in scores.items())
    )
    return Claim(
        id="threshold_best_k",
        paper="2",
        ours=best,
        interval=estimate.interval,
        seeds=count,
        holds=best == 2.0,  # noqa: PLR2004 -- the paper's k
        direction="same" if best == 2.0 else "worse",  # noqa: PLR2004 -- the paper's k
        note=f"Argmax of F1 over k = 1 to 5 for RLHF; interval: bootstrap over seeds. {told}",
        readings=(
            Reading(name="argmax of F1", ours=best, interval=estimate.interval, holds=best == 2.0),  # noqa: PLR2004 -- the paper's k
        ),
    )


def _argmax(counts: dict[float, np.ndarray]) -> float:
    return max(counts, key=lambda k: 2 * counts[k][0] / (2 * counts[k][0] + counts[k][1:].sum()))


def _jain(results: Results) -> Claim:
    suite = main_table.SUITE
    labels = {"scheduler": "srtf-est", "rule": EVALSTOP}
    after = results.values(suite, "jain_tenants", **labels)
    before = results.values(suite, "jain_tenants", **{**labels, "rule": "none"})
    difference = after - before
    found = Estimate(float(difference.mean()), t_interval(difference))
    holds = bool(found.low > -0.01)  # noqa: PLR2004 -- the bound users rely on
    return Claim(
        id="jain_unharmed",
        paper="not hurt",
        ours=_known(found.value),
        interval=_ends(found),
        seeds=results.seeds(suite),
        holds=holds,
        direction="same" if holds else "worse",
        note=(
            "Change of the Jain index over tenants' mean slowdowns, paired by seed; "
            f"unharmed: above -0.01. Without the rule it is {before.mean():.3f}"
        ),
        readings=(
            Reading(
                name="mean slowdown", ours=_known(found.value), interval=_ends(found), holds=holds
            ),
        ),
    )
