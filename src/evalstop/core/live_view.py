"""What policies are shown of the cluster, moved along by `evalstop.core.cluster.ClusterState`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from evalstop.core.job import JobView

__all__ = ["LiveView", "Pool"]


class Pool(Struct, frozen=True, weakref=False):
    """GPUs of one node type; frozen for all but the `ClusterState` that owns it."""

    name: str
    total: int
    free: int


class LiveView(Struct, frozen=True, weakref=False):
    """The `evalstop.core.policy.ClusterView` of a `ClusterState`."""

    now: float
    total_gpus: int
    free_gpus: int
    jobs: Mapping[str, JobView]
    pools: Mapping[str, Pool]
