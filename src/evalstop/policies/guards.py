"""Guards by need: observe, warn, budget, protect, back, confirm, and the operator's desk (R25)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from evalstop.core.actions import Action, Advise, RequestEval, RequestSave, Stop, WakeAt
from evalstop.core.errors import InputError
from evalstop.core.events import CheckpointSaved, Event, JobEnded, OperatorCommanded, TimerFired
from evalstop.core.job import JobView, Outcome, Phase
from evalstop.core.settings import is_number, is_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from evalstop.core.policy import ClusterView

__all__ = ["Backed", "Budget", "Confirmed", "Observe", "OperatorDesk", "Protect", "Warn"]


class Observe:
    """Never stop: say once, for each alarm, what would have been stopped."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:  # noqa: ARG002 -- the port
        """Turn the stop into advice, once an alarm; a person's order is not the policy's."""
        if stop.author != "policy":
            return (stop,)
        if stop.job in self._told:
            return ()
        self._told.add(stop.job)
        return (Advise(job=stop.job, action=stop, note="observe: would have been stopped"),)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: ARG002 -- the port
        """Forget jobs that have ended."""
        if isinstance(event, JobEnded):
            self._told.discard(event.job)
        return ()

    def withdraw(self, job: str) -> None:
        """Tell again if the alarm returns."""
        self._told.discard(job)


class Held:
    """Stops that wait for a time, with the timers that end the wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stops: dict[str, tuple[float, Stop]] = {}

    def hold(self, stop: Stop, until: float) -> WakeAt:
        """Hold a stop; return the timer to set."""
        self.stops[stop.job] = (until, stop)
        return WakeAt(time=until, token=f"{self.name}:{stop.job}")

    def due(self, event: Event, view: ClusterView) -> Stop | None:
        """Return the stop whose time has come with this event."""
        if isinstance(event, JobEnded):
            self.stops.pop(event.job, None)
        if not isinstance(event, TimerFired):
            return None
        name, _, job = event.token.partition(":")
        if name != self.name or job not in self.stops or self.stops[job][0] > event.time:
            return None
        return self.take(job, view)

    def take(self, job: str, view: ClusterView) -> Stop | None:
        """Take a held stop out, if its job can still be stopped."""
        held = self.stops.pop(job, None)
        known = view.jobs.get(job)
        return None if held is None or known is None or not _stoppable(known) else held[1]


class Warn:
    """Give notice before a stop: a window in which people can snooze or approve it.

    Args:
        window_s: seconds from the notice to the stop, >= 0.

    A late report that ends the alarm withdraws the stop. An `OperatorDesk` before this guard
    handles snooze and approve: an approved stop reaches this guard with its author and passes.
    """

    def __init__(self, *, window_s: float) -> None:
        _require_not_negative("window_s", window_s)
        self._window_s = window_s
        self._held = Held("warn")

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Give notice at the first alarm; keep the newest verdict for the stop."""
        if stop.author != "policy":
            self._held.stops.pop(stop.job, None)
            return (stop,)
        if stop.job in self._held.stops:
            self._held.stops[stop.job] = (self._held.stops[stop.job][0], stop)
            return ()
        timer = self._held.hold(stop, view.now + self._window_s)
        note = f"will be stopped in {self._window_s:g} s unless snoozed"
        return (Advise(job=stop.job, action=stop, note=note), timer)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Let the stop go when the window closes."""
        stop = self._held.due(event, view)
        return () if stop is None else (stop,)

    def withdraw(self, job: str) -> None:
        """Drop the stop."""
        self._held.stops.pop(job, None)


class Budget:
    """At most ``stops`` stops a tenant in any ``per_s`` seconds; what is beyond is said, once.

    A stop is counted once a job, however often its alarm returns, and given back if the job ends
    in another way. So a log written in observe mode, replayed under a policy that would have
    stopped its jobs, leaves the budget as it was.

    Args:
        stops: stops a tenant, >= 0.
        per_s: length of the sliding window in seconds, > 0.
    """

    def __init__(self, *, stops: int, per_s: float = 3600.0) -> None:
        _require_not_negative("stops", stops)
        if not is_whole(stops):
            msg = f"stops must be a whole number of stops, but got {stops!r}"
            raise InputError(msg)
        if not is_number(per_s) or per_s <= 0:
            msg = f"per_s must be > 0 seconds, but got {per_s!r}"
            raise InputError(msg)
        self._stops = stops
        self._per_s = per_s
        self._spent: dict[str, dict[str, float]] = {}
        self._told: set[str] = set()

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Let the stop pass if the tenant's budget allows; people's orders are not counted."""
        if stop.author != "policy":
            return (stop,)
        tenant = view.jobs[stop.job].tenant
        spent = self._spent.setdefault(tenant, {})
        for job in [job for job, at in spent.items() if at <= view.now - self._per_s]:
            del spent[job]
        if stop.job in spent or len(spent) < self._stops:
            spent[stop.job] = view.now
            return (stop,)
        if stop.job in self._told:
            return ()
        self._told.add(stop.job)
        note = f"budget: {self._stops} stops a tenant in {self._per_s:g} s are used up; asks again"
        return (Advise(job=stop.job, action=stop, note=note),)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: ARG002 -- the port
        """Give back what was not used: the job ended in another way."""
        if isinstance(event, JobEnded):
            self._told.discard(event.job)
            if event.outcome is not Outcome.STOPPED_BY_POLICY:
                for spent in self._spent.values():
                    spent.pop(event.job, None)
        return ()

    def withdraw(self, job: str) -> None:
        """Tell again if the alarm returns."""
        self._told.discard(job)


class Protect:
    """Never stop these jobs by policy: opt-outs, protected tenants, exemptions with an end.

    Args:
        labels: label and value that opt a job out, such as ``{"evalstop": "off"}``.
        tenants: tenants whose jobs are never stopped.
        until: job id or tenant, and the time (driver's clock, seconds) its exemption ends.
    """

    def __init__(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        tenants: Collection[str] = (),
        until: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(tenants, str):  # a collection too: of letters
            msg = f"tenants must be a list of names, such as [{tenants!r}], but got {tenants!r}"
            raise InputError(msg)
        _require_table("labels", labels)
        _require_table("until", until)
        for name, end in (until or {}).items():
            if end != math.inf and not is_number(end):
                msg = f"until[{name!r}] must be a time in seconds, but got {end!r}"
                raise InputError(msg)
        self._labels = dict(labels or {"evalstop": "off"})
        self._tenants = frozenset(tenants)
        self._until = dict(until or {})

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Drop the stop of a protected job, unless a person ordered it."""
        if stop.author != "policy":
            return (stop,)
        job = view.jobs[stop.job]
        if job.tenant in self._tenants or self._opted_out(job) or self._exempt(job, view.now):
            return ()
        return (stop,)

    def _opted_out(self, job: JobView) -> bool:
        return any(job.labels.get(name) == value for name, value in self._labels.items())

    def _exempt(self, job: JobView, now: float) -> bool:
        return any(now < self._until.get(name, now) for name in (job.id, job.tenant))

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:  # noqa: ARG002 -- the port
        """Nothing to hear."""
        return ()

    def withdraw(self, job: str) -> None:
        """Nothing is held."""


class Backed:
    """Stop only with a checkpoint to keep: ask for a save first, and wait for it (R04).

    Args:
        limit_s: seconds after which the job is stopped with the best that was saved.
    """

    def __init__(self, *, limit_s: float) -> None:
        _require_not_negative("limit_s", limit_s)
        self._limit_s = limit_s
        self._held = Held("backed")
        self._waited: set[str] = set()

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Let a backed stop pass; hold an unbacked one and ask for a save."""
        waited = stop.job in self._waited  # once an alarm: what comes after may hold it again
        if stop.best_checkpoint is not None or waited or stop.author != "policy":
            self._held.stops.pop(stop.job, None)
            return (stop,)
        if stop.job in self._held.stops:
            return ()
        timer = self._held.hold(stop, view.now + self._limit_s)
        return (RequestSave(job=stop.job), timer)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Let the stop go once a checkpoint it rests on is saved, or at the limit."""
        if isinstance(event, JobEnded):
            self._waited.discard(event.job)
        stop = self._held.due(event, view)
        if stop is None and isinstance(event, CheckpointSaved) and event.job in self._held.stops:
            held = self._held.stops[event.job][1]
            if event.step in (held.best_step, held.step):
                stop = self._held.take(event.job, view)
        if stop is None:
            return ()
        self._waited.add(stop.job)
        if isinstance(event, CheckpointSaved):
            stop = msgspec.structs.replace(
                stop, best_step=event.step, best_checkpoint=event.checkpoint
            )
        return (stop,)

    def withdraw(self, job: str) -> None:
        """Drop the stop."""
        self._held.stops.pop(job, None)
        self._waited.discard(job)


class Confirmed:
    """Ask for an extra evaluation of the best and the current checkpoint before a stop (R28).

    Args:
        limit_s: seconds to wait for it. After that the alarm as it stands counts.

    Each confirming evaluation is pooled with the first of its step, and the rule judges again: if
    the alarm is still on when as many reports have come as were asked for, the stop passes; if it
    is off after any of them, the stop is withdrawn. A new step counts as a report too. An alarm is
    confirmed once, however long a guard after this one holds its stop.
    """

    def __init__(self, *, limit_s: float) -> None:
        _require_not_negative("limit_s", limit_s)
        self._limit_s = limit_s
        self._held = Held("confirm")
        self._awaited: dict[str, int] = {}
        self._confirmed: set[str] = set()

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Ask at the first alarm; let the stop pass if the answers keep the alarm up."""
        if stop.author != "policy" or stop.job in self._confirmed:
            return (stop,)
        if stop.job not in self._held.stops:
            timer = self._held.hold(stop, view.now + self._limit_s)
            steps = tuple(sorted({step for step in (stop.best_step, stop.step) if step >= 0}))
            self._awaited[stop.job] = len(steps)
            return (RequestEval(job=stop.job, steps=steps), timer)
        self._awaited[stop.job] -= 1
        if self._awaited[stop.job] > 0:
            self._held.stops[stop.job] = (self._held.stops[stop.job][0], stop)
            return ()
        self.withdraw(stop.job)
        self._confirmed.add(stop.job)
        return (stop,)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Let the stop go at the limit."""
        if isinstance(event, JobEnded):
            self.withdraw(event.job)
        stop = self._held.due(event, view)
        if stop is None:
            return ()
        self._confirmed.add(stop.job)
        return (stop,)

    def withdraw(self, job: str) -> None:
        """Drop the stop."""
        self._held.stops.pop(job, None)
        self._awaited.pop(job, None)
        self._confirmed.discard(job)


class OperatorDesk:
    """People decide: freeze and unfreeze all stops, snooze, approve or stop one job.

    Put it first in a chain. While frozen nothing is stopped by policy, a person's stop is. A
    snooze holds a job's stops until its time; an approval lets the next one pass as that
    person's.
    """

    def __init__(self) -> None:
        self.frozen = False
        self._snoozed: dict[str, float] = {}
        self._wanted: dict[str, Stop] = {}

    def screen(self, stop: Stop, view: ClusterView) -> Sequence[Action]:
        """Hold the stop of a frozen cluster or a snoozed job."""
        self._wanted[stop.job] = stop
        return () if self.forbids(stop, view) else (stop,)

    def forbids(self, stop: Stop, view: ClusterView) -> bool:
        """Return whether all stops are frozen or this job's are snoozed; a person's never is."""
        if stop.author != "policy":
            return False
        return self.frozen or view.now < self._snoozed.get(stop.job, view.now)

    def hear(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Carry out a command."""
        if isinstance(event, JobEnded):
            self._snoozed.pop(event.job, None)
            self._wanted.pop(event.job, None)
        if not isinstance(event, OperatorCommanded):
            return ()
        if event.command in {"freeze", "unfreeze"}:
            self.frozen = event.command == "freeze"
        elif event.command == "snooze":
            self._snoozed[event.job] = float("inf") if event.until is None else event.until
        elif event.command in {"approve", "stop"}:
            return self._order(event, view)
        return ()

    def _order(self, event: OperatorCommanded, view: ClusterView) -> Sequence[Action]:
        job = view.jobs.get(event.job)
        wanted = self._wanted.get(event.job)
        if job is None or not _stoppable(job) or (event.command == "approve" and wanted is None):
            return ()
        stop = wanted or Stop(job=event.job, rule="operator")
        fields = {name: getattr(stop, name) for name in stop.__struct_fields__}
        return (Stop(**(fields | {"author": event.actor})),)

    def withdraw(self, job: str) -> None:
        """There is nothing left to approve."""
        self._wanted.pop(job, None)

    def disown(self, job: str) -> None:
        """What the rule wants can be approved, whatever was made of it."""


def _stoppable(job: JobView) -> bool:
    return job.phase in {Phase.WAITING, Phase.STARTING, Phase.RUNNING}


def _require_not_negative(name: str, value: object) -> None:
    if not is_number(value) or value < 0:
        msg = f"{name} must be >= 0, but got {value!r}"
        raise InputError(msg)


def _require_table(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        msg = f"{name} must be a table of names and what goes with them, but got {value!r}"
        raise InputError(msg)
