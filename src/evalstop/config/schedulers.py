"""Base schedulers by name: the table behind ``--scheduler`` and `parse_scheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.config.spelling import Entry, Parameter, build
from evalstop.core.errors import SpecError
from evalstop.schedulers.backfill import FifoBackfill
from evalstop.schedulers.fifo import Fifo
from evalstop.schedulers.loss_aware import LossAware
from evalstop.schedulers.native import Native
from evalstop.schedulers.partitioned import Partitioned
from evalstop.schedulers.pollux import Pollux
from evalstop.schedulers.shortest import SjfEst, SrsfEst, SrtfEst
from evalstop.schedulers.tiresias import TIRESIAS_LIMITS, Tiresias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.core.policy import Policy

__all__ = ["SCHEDULERS", "parse_scheduler"]


def _number(name: str, default: float, unit: str) -> Parameter:
    return Parameter(name=name, type="float", default=default, unit=unit)


def _tiresias(*, limits: str = "", promote: float = 0.0) -> Tiresias:
    try:
        numbers = [float(part) for part in limits.split("/")] if limits else TIRESIAS_LIMITS
    except ValueError:
        msg = f"tiresias: limits must be numbers parted by /, such as 3250/7200, got {limits!r}"
        raise SpecError(msg) from None
    return Tiresias(limits=numbers, promote=promote)


_ENTRIES = (
    Entry(name="fifo", make=Fifo, summary="first in, first out; the head blocks"),
    Entry(
        name="fifo-backfill",
        make=FifoBackfill,
        summary="first in, first out; gaps go to those who delay the head by no estimate (EASY)",
    ),
    Entry(name="sjf-est", make=SjfEst, summary="shortest estimated job first"),
    Entry(
        name="srtf-est", make=SrtfEst, summary="shortest estimated remaining time first, preemptive"
    ),
    Entry(
        name="srsf-est",
        make=SrsfEst,
        summary="smallest estimated remaining time x GPUs first, preemptive",
    ),
    Entry(
        name="loss-aware",
        make=LossAware,
        summary="GPUs where the loss is predicted to fall most (SLAQ), preemptive at epochs",
        parameters=(
            _number("epoch_s", 600.0, "seconds between two looks at running jobs"),
            _number("decay", 0.9, "weight of a loss relative to the next, in the fit"),
        ),
    ),
    Entry(
        name="tiresias",
        make=_tiresias,
        summary="least attained GPU-seconds first, in queues (2D-LAS), preemptive",
        parameters=(
            Parameter(
                name="limits",
                type="str",
                default="/".join(f"{limit:g}" for limit in TIRESIAS_LIMITS),
                unit="GPU-seconds at which a job leaves its queue, parted by /",
            ),
            _number("promote", 0.0, "waiting over executed time that promotes; 0: never"),
        ),
    ),
    Entry(
        name="pollux",
        make=Pollux,
        summary="elastic GPU counts that maximise the cluster's goodput",
        parameters=(
            _number("interval_s", 60.0, "seconds between two reallocations"),
            _number("sync", 0.02, "share of a step lost to each further GPU"),
            _number("gain", 0.05, "relative rise of the fitness that is worth resizing for"),
        ),
    ),
    Entry(
        name="native", make=Native, summary="the cluster places jobs itself; only stops are ours"
    ),
)

SCHEDULERS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Every base scheduler by name."""


def parse_scheduler(spec: str, *, speeds: Mapping[str, float] | None = None) -> Policy:
    """Make a fresh scheduler from ``NAME[:key=value[,key=value...]]``.

    Args:
        spec: the spelling.
        speeds: speed by node type, where there are several: each type then has one of its own.

    Raises:
        SpecError: on an unknown name or setting (the known ones are listed), or a bad value.
    """

    def made() -> Policy:
        scheduler: Policy = build(spec, SCHEDULERS, "scheduler")
        return scheduler

    return Partitioned(base=made, speeds=speeds) if speeds else made()
