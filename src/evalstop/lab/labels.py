"""What a run did, by measurement: from held-out prompts that no stop rule has seen.

The rule, on the true series (seven of the eight panels):

- smooth it by a centred mean of three evaluations; the peak is the highest smoothed value;
- the end is the mean of the last three evaluations;
- the drop is peak minus end, in standard errors of *one evaluation as a stop rule sees it* (one
  panel): the unit in which the drop must be noticed.

``declined``: a drop of at least 5. ``mild``: a drop of 1 to 5, where neither a stop nor letting it
run is a mistake. ``healthy``: a drop under 1, whether the run rose to its end or sits on a plateau.
``dipped``: like healthy at the end, but on the way the smoothed true series fell by at least 2 and
came back: a real decline that would have recovered, counted by itself (R28).
No stop rule and no knowledge of the arm has a part in this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CLEAR_DROP", "DIP", "NO_DROP", "Measured", "measure", "smoothed"]

Label = Literal["declined", "dipped", "mild", "healthy"]

CLEAR_DROP = 5.0
"""Standard errors from which a decline is clear."""

NO_DROP = 1.0
"""Standard errors under which there is none: the highest of smoothed noise stays below it."""

DIP = 2.0
"""Standard errors from which a fall that came back was real: smoothed noise stays below half."""

_SMOOTHING = 3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run did.

    Attributes:
        label: declined, dipped, mild or healthy.
        drop: peak to end, in standard errors of one evaluation.
        dip: largest fall of the smoothed series from any earlier high, in the same unit.
        gain: start to peak, in the same unit.
        peak_index: evaluation at which the smoothed true series is highest.
    """

    label: Label
    drop: float
    dip: float
    gain: float
    peak_index: int


def smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centred mean of three, of two at the ends."""
    width = np.convolve(np.ones_like(values), np.ones(_SMOOTHING), mode="same")
    means: NDArray[np.float64] = np.convolve(values, np.ones(_SMOOTHING), mode="same") / width
    return means


def measure(true_scores: NDArray[np.float64], *, stderr: float) -> Measured:
    """Label one run.

    Args:
        true_scores: one an evaluation, higher is better, at least three.
        stderr: standard error of one evaluation as a stop rule sees it.
    """
    curve = smoothed(true_scores)
    peak = int(np.argmax(curve))
    drop = float(curve[peak] - true_scores[-_SMOOTHING:].mean()) / stderr
    dip = float((np.maximum.accumulate(curve) - curve).max()) / stderr
    label: Label = "mild"
    if drop >= CLEAR_DROP:
        label = "declined"
    elif drop < NO_DROP:
        label = "healthy" if dip < DIP else "dipped"
    gain = float(curve[peak] - true_scores[0]) / stderr
    return Measured(label=label, drop=drop, dip=dip, gain=gain, peak_index=peak)
