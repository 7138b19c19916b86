"""What stands between an alarm and a stop.

A guard screens each stop that EvalStop is about to order: it lets it pass, turns it into advice,
holds it for a while, or drops it. Guards sit inside EvalStop and not around it: EvalStop drops
what its base wants to do with a job it stops, and that must not happen when the stop is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from evalstop.core.actions import Action, Stop
from evalstop.core.errors import InputError
from evalstop.core.settings import has_methods

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.events import Event
    from evalstop.core.policy import ClusterView

__all__ = ["Chain", "Forbids", "Guard", "is_guard"]


class Guard(Protocol):
    """Screen of stops. Its state is a fold of what it was told, as a policy's is."""

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Answer an alarm, at every evaluation while it lasts.

        Return the stop to let it pass, other actions in its place, or nothing to hold it.
        """
        ...

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Fold an event that is no evaluation: timers, commands of operators, ends of jobs.

        May return stops that were held: they are carried out at once.
        """
        ...

    def withdraw(self, job: str) -> None:
        """The job's alarm is over: forget the stop that was held (R11)."""
        ...


def is_guard(thing: object) -> bool:
    """Return whether a thing, not the class of one, can stand between an alarm and a stop."""
    return has_methods(thing, "screen", "hear", "withdraw")


@runtime_checkable
class Forbids(Protocol):
    """What a guard has too whose word counts again when a later guard lets a held stop go (R25).

    People freeze or snooze while a stop is announced; it must not come when its time is up.
    """

    def forbids(self, stop: Stop, view: ClusterView) -> bool:
        """Return whether the stop may not be carried out now; changes nothing."""
        ...


class Chain:
    """Guards one after another; what one lets pass, the next one screens.

    A stop that was held and is let go asks those before it that forbid (`Forbids`) once more. If
    one does, it is dropped: an alarm that lasts is screened from the start at its next evaluation.

    Args:
        guards: in order; put those that drop (protection) before those that hold (budgets), and
            those that change what a stop means (observe) last.
    """

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        for guard in self.guards:
            if not is_guard(guard):
                msg = f"expected a list of guards, such as [Observe()], but it holds {guard!r}"
                raise InputError(msg)

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Pass the stop along the chain."""
        return self._from(0, [stop], view)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Tell all guards; a stop that one of them lets go is screened by those after it."""
        actions: list[Action] = []
        for index, guard in enumerate(self.guards):
            heard = guard.hear(event, view)
            if heard:
                heard = [action for action in heard if not self._forbidden(action, index, view)]
                actions.extend(self._from(index + 1, heard, view))
        return actions

    def withdraw(self, job: str) -> None:
        """Tell all guards."""
        for guard in self.guards:
            guard.withdraw(job)

    def disown(self, job: str) -> None:
        """Tell all guards that what they answered on a job, in a replay, was not done.

        The alarm may be on all the same: the next evaluation is screened as the first one.
        """
        for guard in self.guards:
            getattr(guard, "disown", guard.withdraw)(job)

    def _forbidden(self, action: Action, before: int, view: ClusterView) -> bool:
        return isinstance(action, Stop) and any(
            isinstance(guard, Forbids) and guard.forbids(action, view)
            for guard in self.guards[:before]
        )

    def _from(self, start: int, actions: Sequence[Action], view: ClusterView) -> Sequence[Action]:
        for guard in self.guards[start:]:
            screened: list[Action] = []
            for action in actions:
                screened.extend(
                    guard.screen(action, view) if isinstance(action, Stop) else [action]
                )
            actions = screened
        return actions
