"""What a policy may read, and what it must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.core.actions import Action
    from evalstop.core.events import Event
    from evalstop.core.job import JobView

__all__ = ["ClusterView", "Policy", "PoolView", "hears_evals"]


class PoolView(Protocol):
    """GPUs of one node type."""

    @property
    def name(self) -> str:
        """Name of the node type; empty in a homogeneous cluster."""
        ...

    @property
    def total(self) -> int:
        """GPUs there are."""
        ...

    @property
    def free(self) -> int:
        """GPUs in no allocation, promised starts counted as allocated."""
        ...


class ClusterView(Protocol):
    """What policies may read: a live, read-only picture."""

    @property
    def now(self) -> float:
        """Time of the event being decided on, in seconds."""
        ...

    @property
    def total_gpus(self) -> int:
        """GPUs there are, over all pools."""
        ...

    @property
    def free_gpus(self) -> int:
        """GPUs in no allocation, promised starts counted as allocated."""
        ...

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """Every job that has not ended, by id, in order of submission."""
        ...

    @property
    def pools(self) -> Mapping[str, PoolView]:
        """GPUs by node type; one entry, named "", in a homogeneous cluster."""
        ...


class Policy(Protocol):
    """Decider. Base schedulers and EvalStop are both policies, so they nest.

    A policy's own state is a fold of the events it was given, so that replaying a log rebuilds
    it; it reads no clock and draws no random number.

    A scheduler that neither answers nor remembers an evaluation may say so by a class attribute
    ``hears_evals = False`` (see `hears_evals`): most events are evaluations, and a wrapper then
    need not ask it.
    """

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Return what should happen now that ``event`` has."""
        ...


def hears_evals(policy: Policy) -> bool:
    """Return whether a policy wants to be told of evaluations; True unless it says otherwise."""
    return bool(getattr(policy, "hears_evals", True))
