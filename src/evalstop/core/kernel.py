"""One step of evalstop: a fact goes in, checked intents come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.actions import Action
    from evalstop.core.ahead import Ahead
    from evalstop.core.cluster import ClusterState
    from evalstop.core.events import Event
    from evalstop.core.policy import Policy

from evalstop.core.cluster import FOLDS
from evalstop.core.policy import foresight_of

__all__ = ["Kernel"]


class Kernel:
    """Fold events into the picture of the cluster and check what the policy answers.

    The simulator, replay and the controller drive the same object. It is deterministic: the same
    events give the same actions, so a restart is a replay.
    """

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self.state = state
        self.policy = policy
        self._foresee = foresight_of(policy)
        self._take_in = getattr(policy, "take_in", None)

    def handle(self, event: Event) -> Sequence[Action]:
        """Apply one event and return the policy's actions, each noted as promised.

        Raises:
            IllegalEventError: if the event cannot follow the ones before it.
            IllegalActionError: if the policy asks for something impossible.
        """
        state = self.state
        view = state.view
        if event.time != view.now:  # from here on what `ClusterState.apply` does, in place
            state.move_on(event)
        FOLDS[type(event)](state, event)
        actions = self.policy.decide(event, view)
        if actions:
            for action in actions:
                state.promise(action)
        return actions

    def foresee(self, job: str, ahead: Ahead, start: int) -> int:
        """Return up to where evaluations of a job, from ``start`` on, will be answered nothing.

        Args:
            job: one that has not ended.
            ahead: its evaluations to come.
            start: the first of them that was not told.
        """
        return self._foresee(job, ahead, start, self.state.view)

    def hear_quiet(self, job: str, ahead: Ahead, start: int, stop: int, *, last_at: float) -> None:
        """Apply evaluations of a job that were foreseen to be answered with nothing.

        As `handle` does with each, but without an order among those of different jobs.

        Args:
            job: one that has not ended.
            ahead: as given to `foresee`.
            start: index of the first that was not told yet.
            stop: index of the first that has not happened yet, at most what `foresee` returned.
            last_at: time of the newest of them.

        Raises:
            IllegalEventError: if time goes back for the job, it is unknown, or the policy did
                not foresee them.
        """
        self.state.count_evals(job, stop - start, last_at)
        if self._take_in is not None:
            self._take_in(job, ahead, start, stop)
