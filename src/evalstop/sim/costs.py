"""What carrying out an action costs in simulated time."""

from __future__ import annotations

from msgspec import Struct

from evalstop.core.errors import InputError
from evalstop.core.settings import is_number

__all__ = ["ExecutionCosts"]


class ExecutionCosts(Struct, frozen=True, kw_only=True):
    """Delays in seconds, GPUs held and no progress made in each but the last.

    Attributes:
        start_s: from the order to start until the job trains.
        preempt_s: to save and leave, before a preempted job's GPUs are free. Nothing is lost.
        restart_s: as ``start_s``, for a job that has run before.
        stop_s: from the order to stop until the job's processes have left.
        release_s: from the end of the processes until the GPUs are proven free.
        extra_eval_s: from asking for an evaluation of a checkpoint until its report; on other
            GPUs than the job's, which trains on.
    """

    start_s: float = 0.0
    restart_s: float = 0.0
    preempt_s: float = 0.0
    stop_s: float = 0.0
    release_s: float = 0.0
    extra_eval_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                msg = f"{name} must be a finite number of seconds >= 0, but got {value!r}"
                raise InputError(msg)
