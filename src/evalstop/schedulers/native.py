"""The cluster schedules itself: place nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.actions import Action
    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["Native"]


class Native:
    """Base for clusters whose own scheduler (Slurm, Kubernetes, a person) places jobs.

    Starts arrive as facts; what is wrapped around this base may still stop jobs. In simulation
    nothing would ever start.
    """

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Leave it to the cluster."""
        del event, view
        return ()
