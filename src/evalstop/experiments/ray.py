"""Spread tasks over a Ray cluster (extra ``ray``), for sweeps that outgrow one machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import MissingExtraError
from evalstop.experiments.cell_run import Row, Task, run_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.experiments.runner import Spread

__all__ = ["over_ray"]

_IN_FLIGHT_PER_CPU = 4


def over_ray(address: str) -> Spread:
    """Return a spread over the cluster at this address, one CPU a task.

    Every node needs evalstop of this version. Rows come back as tasks finish; tasks are handed
    out a few for each CPU, so that a cluster that grows meanwhile is used.

    Args:
        address: ``auto`` for the cluster this machine belongs to, ``local`` for a new one on
            this machine, or host:port.

    Raises:
        MissingExtraError: if Ray is not installed.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        package = "ray"
        raise MissingExtraError(package, package) from error

    def spread(tasks: Sequence[Task]) -> Iterable[list[Row]]:
        ours = not ray.is_initialized()
        if ours:
            ray.init(address=address, log_to_driver=False)
        try:
            yield from _drain(ray, tasks)
        finally:
            if ours:
                ray.shutdown()

    return spread


def _drain(ray: Any, tasks: Sequence[Task]) -> Iterable[list[Row]]:  # noqa: ANN401 -- a module
    remote = ray.remote(num_cpus=1, max_retries=3)(run_task)
    left = iter(tasks)
    pending: list[Any] = []
    while True:
        most = _IN_FLIGHT_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
        while len(pending) < most and (task := next(left, None)) is not None:
            pending.append(remote.remote(task))
        if not pending:
            return
        done, pending = ray.wait(pending, num_returns=1)
        yield from ray.get(done)
