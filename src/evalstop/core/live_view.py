"""What policies are shown of the cluster, moved along by `evalstop.core.cluster.ClusterState`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from evalstop.core.job import JobView
from evalstop.core.policy import PoolView

__all__ = ["LiveView", "Pool", "WholeCluster"]


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
    pools: Mapping[str, PoolView]


class WholeCluster(Struct, frozen=True, weakref=False):
    """The one pool of a cluster whose GPUs are interchangeable: it is what its view says."""

    view: LiveView
    name: str = ""

    @property
    def total(self) -> int:
        """GPUs there are."""
        return self.view.total_gpus

    @property
    def free(self) -> int:
        """GPUs in no allocation, promised starts counted as allocated."""
        return self.view.free_gpus
