"""Who gets GPUs next: base schedulers.

Belongs here: policies that place, preempt and resize. Never here: scores of evaluations
(LossAware reads losses), stopping, clocks, drivers.
"""

from evalstop.schedulers.backfill import FifoBackfill
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.loss_aware import LossAware
from evalstop.schedulers.native import Native
from evalstop.schedulers.partitioned import Partitioned
from evalstop.schedulers.pollux import Pollux
from evalstop.schedulers.shortest import SjfEst, SrsfEst, SrtfEst
from evalstop.schedulers.tiresias import Tiresias

__all__ = [
    "Fifo",
    "FifoBackfill",
    "LossAware",
    "Native",
    "Partitioned",
    "Pollux",
    "SjfEst",
    "SrsfEst",
    "SrtfEst",
    "Tiresias",
]
