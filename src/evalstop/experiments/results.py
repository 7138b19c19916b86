"""Rows of a finished run, asked for by their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evalstop.experiments.spec import spec_hash
from evalstop.metrics.detection import Confusion
from evalstop.metrics.stats import (
    Interval,
    PairedTest,
    paired_difference,
    relative_change_interval,
    t_interval,
    wilson_interval,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.experiments.cell_run import Row
    from evalstop.experiments.spec import Plan

__all__ = ["CONTROL", "Estimate", "Label", "Results"]

Floats: TypeAlias = NDArray[np.float64]
Label: TypeAlias = str | float

CONTROL = "none"
"""The rule label of the runs that others are compared with."""


class Estimate(Struct, frozen=True):
    """A figure and its 95 % interval; NaN where undefined."""

    value: float
    interval: Interval

    @property
    def low(self) -> float:
        """Return the lower end."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Return the upper end."""
        return self.interval[1]


class Results:
    """All rows of some plans.

    A setting is named by the labels of its cell; within one suite they tell cells apart.
    """

    def __init__(self, plans: Sequence[Plan], rows: Sequence[Row]) -> None:
        self.plans = {plan.suite: plan for plan in plans}
        by_cell: dict[str, list[Row]] = {}
        for row in rows:
            by_cell.setdefault(row["cell"], []).append(row)
        self._rows = {
            (cell.suite, frozenset(cell.labels.items())): by_cell[spec_hash(cell)]
            for plan in plans
            for cell in plan.cells
        }

    def __contains__(self, suite: str) -> bool:
        """Return whether a suite was run."""
        return suite in self.plans

    def rows(self, suite: str, **labels: Label) -> list[Row]:
        """Return the rows of one setting, in order of the seeds.

        Raises:
            KeyError: if no cell has exactly these labels.
        """
        return self._rows[suite, frozenset(labels.items())]

    def values(self, suite: str, figure: str, **labels: Label) -> Floats:
        """Return one figure of every seed."""
        return np.array([row[figure] for row in self.rows(suite, **labels)], dtype=np.float64)

    def mean(self, suite: str, figure: str, **labels: Label) -> Estimate:
        """Return the mean over seeds."""
        some = self.values(suite, figure, **labels)
        some = some[np.isfinite(some)]
        return Estimate(float(some.mean()) if some.size else float("nan"), t_interval(some))

    def change(self, suite: str, figure: str, **labels: Label) -> Estimate:
        """Return the mean relative change against the same setting without a rule, by seed."""
        return Estimate(
            *relative_change_interval(
                self.values(suite, figure, **labels),
                self.values(suite, figure, **{**labels, "rule": CONTROL}),
            )
        )

    def paired(self, suite: str, figure: str, **labels: Label) -> PairedTest:
        """Return the paired test against the same setting without a rule."""
        return paired_difference(
            self.values(suite, figure, **labels),
            self.values(suite, figure, **{**labels, "rule": CONTROL}),
        )

    def counts(self, suite: str, **labels: Label) -> Confusion:
        """Return the pooled counts."""
        rows = self.rows(suite, **labels)
        return Confusion(**{key: sum(row[key] for row in rows) for key in ("tp", "fp", "fn", "tn")})

    def rate(self, suite: str, name: str, **labels: Label) -> Estimate:
        """Return precision, recall, fpr, fpr_rlhf or f1, pooled, with Wilson's interval."""
        counts = self.counts(suite, **labels)
        if name == "f1":
            low, high = wilson_interval(counts.tp, counts.tp + counts.fp + counts.fn)
            return Estimate(counts.f1, (2 * low / (1 + low), 2 * high / (1 + high)))
        if name == "fpr_rlhf":
            rows = self.rows(suite, **labels)
            wrong = sum(row["rlhf_fp"] for row in rows)
            right = sum(row["rlhf_tn"] for row in rows)
            return _share(wrong, wrong + right)
        part, whole = {
            "precision": (counts.tp, counts.tp + counts.fp),
            "recall": (counts.tp, counts.tp + counts.fn),
            "fpr": (counts.fp, counts.fp + counts.tn),
            "base_rate": (
                counts.tp + counts.fn,
                counts.tp + counts.fp + counts.fn + counts.tn,
            ),
        }[name]
        return _share(part, whole)

    def seeds(self, suite: str) -> int:
        """Return over how many seeds a suite ran."""
        return len(self.plans[suite].seeds)


def _share(part: int, whole: int) -> Estimate:
    return Estimate(part / whole if whole else float("nan"), wilson_interval(part, whole))
