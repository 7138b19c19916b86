"""What a simulation must be given to be possible at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evalstop.core.errors import InputError
from evalstop.core.settings import has_methods, is_number, is_whole

if TYPE_CHECKING:
    from evalstop.workloads.job import Workload

__all__ = ["require_possible"]


def require_possible(
    workload: Workload, *, gpus: object, speeds: Mapping[str, float] | None, policy: object
) -> None:
    """Refuse a cluster that cannot be or cannot hold the workload, and what is no policy.

    Raises:
        InputError: saying what was expected and what came.
    """
    pools = {"": gpus} if is_whole(gpus) else gpus
    if not isinstance(pools, Mapping) or not all(is_whole(n) and n >= 0 for n in pools.values()):
        msg = f"gpus must be a whole number >= 0, or one for each node type, but got {gpus!r}"
        raise InputError(msg)
    for name, speed in (speeds or {}).items():
        if name not in pools or not is_number(speed) or speed <= 0:
            types = ", ".join(map(repr, pools))
            msg = (
                f"speeds must be numbers > 0 of the node types {types}, but got {name!r}: {speed!r}"
            )
            raise InputError(msg)
    if not has_methods(policy, "decide"):
        msg = f"policy must be one that decides, such as Fifo(), but got {policy!r}"
        raise InputError(msg)
    most = max(pools.values(), default=0)
    wanted = int(workload.gpus.max()) if len(workload) else 0
    if wanted > most:
        msg = (
            f"a job asks for {wanted} GPUs, but the cluster has {most}: "
            "it could never start; give the cluster more GPUs or leave the job out"
        )
        raise InputError(msg)
