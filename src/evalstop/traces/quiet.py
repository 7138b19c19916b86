"""Which evaluations of many runs are known in advance to raise no alarm.

`scan` judges whole fleets on arrays far faster than one evaluation at a time, to the same figures
up to rounding. Replay asks the fleet where a run's first alarm may be, takes in everything before
without asking for verdicts, and lets the rule itself judge from there on. So the array code
decides only what need not be looked at, with a margin wider than rounding; every verdict that is
shown is the rule's own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from evalstop.detectors import fleet
from evalstop.detectors.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.policies.rules import Rule
    from evalstop.traces.series import Series

__all__ = ["quiet_evaluations"]

_MARGIN = 1e-6
_WORTHWHILE = 10_000
_FEWEST_RUNS = 4
"""Evaluations, and runs side by side, from which the detour pays."""


def quiet_evaluations(series: Sequence[Series], rules: Sequence[Rule]) -> list[int]:
    """Return for each run how many of its evaluations, from the first on, raise no alarm.

    Args:
        series: the runs.
        rules: each run's rule; 0 is the answer for any but `scan`, and for runs with gaps,
            replicates, restarts or epochs.
    """
    quiet = [0] * len(series)
    groups: dict[tuple[Scan, int, bool], list[int]] = {}
    for index, (one, rule) in enumerate(zip(series, rules, strict=True)):
        if isinstance(rule, Scan) and _is_plain(one):
            known = one.points[0].stderr is not None
            groups.setdefault((rule, len(one.points), known), []).append(index)
    for (rule, evals, known), members in groups.items():
        if len(members) < _FEWEST_RUNS or evals * len(members) < _WORTHWHILE:
            continue
        scores = np.array([[point.score for point in series[i].points] for i in members])
        errors = (
            np.array([[point.stderr for point in series[i].points] for i in members], dtype=float)
            if known
            else None
        )
        found = fleet.judge(rule, scores, errors)
        near = found.statistic >= found.threshold - _MARGIN * (1.0 + np.abs(found.threshold))
        # The last evaluation is judged in any case: its verdict is the run's.
        first = np.where(near.any(axis=1), near.argmax(axis=1), evals - 1)
        for index, count in zip(members, first.tolist(), strict=True):
            quiet[index] = count
    return quiet


def _is_plain(series: Series) -> bool:
    """Return whether a run is one finite score a step, with an error always or never."""
    points = series.points
    if not points or series.partial:
        return False
    known = points[0].stderr is not None
    before = -1
    for point in points:
        if (
            point.step <= before
            or not math.isfinite(point.score)
            or point.attempt
            or point.epoch_key is not None
            or (point.stderr is not None) is not known
            or (point.n_items is not None and not known)
        ):
            return False
        before = point.step
    return True
