"""How far a rule may go: observe, advise or enforce, for all jobs and for some."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from evalstop.core.actions import Action, Advise, Stop
from evalstop.core.errors import InputError
from evalstop.core.events import Event, JobEnded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.core.job import JobView
    from evalstop.core.points import Kind
    from evalstop.core.policy import ClusterView
    from evalstop.policies.rules import Selector

__all__ = ["ByMode", "Mode"]


class Mode(StrEnum):
    """What an alarm leads to."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ENFORCE = "enforce"


_REACH = (Mode.OBSERVE, Mode.ADVISE, Mode.ENFORCE)
"""From what does least to what does most."""

_NOTES = {
    Mode.OBSERVE: "observe: would have been stopped",
    Mode.ADVISE: "advise: should be stopped; approve to stop it",
}


def _mode(word: object) -> Mode:
    """Return a mode, from its name too."""
    try:
        return Mode(word)  # type: ignore[arg-type]  # what is none raises
    except ValueError:
        msg = f"expected a mode, one of {', '.join(_REACH)}, but got {word!r}"
        raise InputError(msg) from None


class ByMode:
    """Guard that lets the stops of enforced jobs pass and turns the others into advice.

    A person's order passes in every mode: it is not the policy's.

    Args:
        mode: of every job that no choice fits.
        choices: selectors with their modes; the first that fits a job applies.
        kinds: how far stops of one kind of decline may go (R17), never further than the mode.

    Raises:
        InputError: there is no such mode.
    """

    def __init__(
        self,
        mode: Mode,
        choices: Sequence[tuple[Selector, Mode]] = (),
        kinds: Mapping[Kind, Mode] | None = None,
    ) -> None:
        self._mode = _mode(mode)
        self._choices = tuple((selector, _mode(one)) for selector, one in choices)
        self._kinds = {kind: _mode(one) for kind, one in (kinds or {}).items()}
        self._told: set[str] = set()

    def mode_of(self, job: JobView) -> Mode:
        """Return the mode that applies to a job."""
        fitting = (mode for selector, mode in self._choices if selector.fits(job))
        return next(fitting, self._mode)

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Pass the stop, or advise once an alarm."""
        mode = self.mode_of(view.jobs[stop.job])
        mode = min(mode, self._kinds.get(stop.verdict.kind, mode), key=_REACH.index)
        if mode is Mode.ENFORCE or stop.author != "policy":
            return (stop,)
        if stop.job in self._told:
            return ()
        self._told.add(stop.job)
        return (Advise(job=stop.job, action=stop, note=_NOTES[mode]),)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: ARG002 -- the port
        """Forget jobs that have ended."""
        if isinstance(event, JobEnded):
            self._told.discard(event.job)
        return ()

    def withdraw(self, job: str) -> None:
        """Tell again if the alarm returns."""
        self._told.discard(job)
