"""Goodput: useful training per second on a number of GPUs.

goodput(g) = throughput(g) x efficiency(g), relative to one GPU, batch size per GPU fixed:

    throughput(g) = g / (1 + sync (g - 1))        each further GPU costs ``sync`` of a step
    efficiency(g) = (noise + 1) / (noise + g)     examples of a batch g times as large are worth
                                                  less, the more so the smaller the noise scale

The second is Pollux's statistical efficiency (phi + M0) / (phi + M) with M = g M0, noise =
phi / M0 (McCandlish et al., An empirical model of large-batch training, 2018). The first keeps
of Pollux's throughput model the one effect that bounds it. An unknown noise scale is infinite:
efficiency 1.
"""

from __future__ import annotations

import math

__all__ = ["efficiency", "goodput", "noise_from_efficiency", "throughput"]


def throughput(gpus: int, sync: float) -> float:
    """Return examples per second relative to one GPU."""
    return gpus / (1.0 + sync * (gpus - 1))


def efficiency(gpus: int, noise: float) -> float:
    """Return the worth of an example relative to one on one GPU, in (0, 1]."""
    return 1.0 if math.isinf(noise) else (noise + 1.0) / (noise + gpus)


def goodput(gpus: int, *, sync: float, noise: float) -> float:
    """Return useful training per second relative to one GPU."""
    return throughput(gpus, sync) * efficiency(gpus, noise)


def noise_from_efficiency(gpus: int, reported: float) -> float:
    """Return the noise scale that explains a reported efficiency; infinite if none is needed.

    Inverts ``efficiency``: noise = (e g - 1) / (1 - e), at least 0.
    """
    if gpus < 2 or reported >= 1.0:  # noqa: PLR2004 -- one GPU tells nothing
        return math.inf
    return max(0.0, (reported * gpus - 1.0) / (1.0 - reported))
