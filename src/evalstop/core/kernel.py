"""One step of evalstop: a fact goes in, checked intents come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.actions import Action
    from evalstop.core.cluster import ClusterState
    from evalstop.core.events import Event
    from evalstop.core.policy import Policy

__all__ = ["Kernel"]


class Kernel:
    """Fold events into the picture of the cluster and check what the policy answers.

    The simulator, replay and the controller drive the same object. It is deterministic: the same
    events give the same actions, so a restart is a replay.
    """

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self.state = state
        self.policy = policy

    def handle(self, event: Event) -> Sequence[Action]:
        """Apply one event and return the policy's actions, each noted as promised.

        Raises:
            IllegalEventError: if the event cannot follow the ones before it.
            IllegalActionError: if the policy asks for something impossible.
        """
        state = self.state
        state.apply(event)
        actions = self.policy.decide(event, state.view)
        if actions:
            for action in actions:
                state.promise(action)
        return actions
