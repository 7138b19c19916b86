"""From true scores to reports that arrive: who lost one, who sent it twice, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from evalstop.workloads.scenario import Deliveries

__all__ = ["delivery_delays"]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


def delivery_delays(
    rng: np.random.Generator, evals: int, *, plan: Deliveries
) -> tuple[Integers | None, Floats | None]:
    """Return bounds and delays as `Workload` keeps them; (None, None) where all is plain.

    Lost and repeated reports are drawn independently; a repeat has a delay of its own.
    """
    if plan.plain:
        return None, None
    copies = np.where(rng.random(evals) < plan.repeated, 2, 1)
    copies[rng.random(evals) < plan.lost] = 0
    bounds = np.concatenate([[0], np.cumsum(copies)]).astype(np.int64)
    return bounds, plan.eval_s + plan.delay_s * rng.exponential(1.0, size=int(bounds[-1]))
