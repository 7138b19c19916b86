"""From actions to orders: what each promise means to the backend, and when it is kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from evalstop.core.actions import Action, Preempt, RequestSave, Start, Stop
from evalstop.core.errors import BackendError
from evalstop.core.events import JobEnded, JobStarted
from evalstop.ports import CanPreempt, CanRequestSave, Launch, Order
from evalstop.service.dispatch import Dispatcher, Errand
from evalstop.service.explain import own_words, sign_of_job
from evalstop.service.reconcile import Difference, Glance, Look, Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from evalstop.core.events import Event
    from evalstop.ports import Backend, Entry, Listing, SnapshotStore
    from evalstop.service.controller import Controller, Situation

__all__ = ["LAUNCH", "BackendCarryOut", "CarryOut", "launch_of"]

_log = logging.getLogger(__name__)

LAUNCH = "launch"
"""Kind of the documents that say how a job is run."""


class CarryOut(Protocol):
    """What the controller tells of its decisions, once they are written."""

    def resume(self, controller: Controller) -> None:
        """Take up what no event has acknowledged; called once, after recovery."""
        ...

    def do(self, key: str, action: Action) -> None:
        """Carry out one action; must return at once."""
        ...

    def heard(self, event: Event) -> None:
        """Hear that a fact is in the log; must return at once."""
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


def launch_of(documents: SnapshotStore, job: str) -> Launch | None:
    """Return how a job is run, None where evalstop does not run it."""
    data = documents.get(LAUNCH, job)
    return None if data is None else msgspec.json.decode(data, type=Launch)


class BackendCarryOut:
    """Carries out actions on one backend and brings back what came of them.

    Args:
        backend: who runs the jobs.
        documents: where launch records lie.
        environment: variables for a job's run, such as its address and token for reports.
        before_stop: called on the errand's thread before a stop is ordered: the place for a last
            save; bounded by whoever gives it.
        inline: carry out in the caller's thread, for tests of order.
    """

    def __init__(
        self,
        backend: Backend,
        documents: SnapshotStore,
        *,
        environment: Callable[[str], Mapping[str, str]] = lambda _: {},
        before_stop: Callable[[Stop, Order], None] = lambda _stop, _order: None,
        inline: bool = False,
    ) -> None:
        self._backend = backend
        self._documents = documents
        self._environment = environment
        self._before_stop = before_stop
        self._reconciler = Reconciler()
        self.dispatcher = Dispatcher(self._wanted, inline=inline)
        self._controller: Controller | None = None
        self._found = Difference()
        self.quarantined: tuple[str, ...] = ()
        self.backend_problem = ""
        self.alerts: tuple[str, ...] = ()

    # -- carrying out

    def resume(self, controller: Controller) -> None:
        """Send again what no event has acknowledged."""
        self._controller = controller
        for record in controller.ledger.live():
            for key, action in record.pending.items():
                self.do(key, action)

    def do(self, key: str, action: Action) -> None:
        """Queue the errand that an action means; advice, timers and evals mean none here."""
        match action:
            case Start():
                self._send(key, action, lambda: self._start(key, action))
            case Stop():
                self._send(key, action, lambda: self._stop(key, action))
            case Preempt():
                self._send(key, action, lambda: self._preempt(key, action))
            case RequestSave() if isinstance(self._backend, CanRequestSave):
                backend = self._backend
                order = Order(key=key, job=action.job)
                self._send(key, action, lambda: backend.request_save(order))
            case _:
                pass

    def _send(
        self, key: str, action: Start | Stop | Preempt | RequestSave, act: Callable[[], None]
    ) -> None:
        self.dispatcher.send(Errand(key=key, job=action.job, action=action, act=act))

    def _wanted(self, errand: Errand) -> bool:
        if self._controller is None:
            return False
        record = self._controller.ledger.jobs[errand.job]
        if isinstance(errand.action, RequestSave):
            return record.outcome is None
        return errand.key in record.pending

    def _attempt(self, job: str) -> int:
        assert self._controller is not None
        return self._controller.ledger.jobs[job].launched

    def _start(self, key: str, action: Start) -> None:
        launch = launch_of(self._documents, action.job)
        if launch is not None:
            environment = launch.environment | dict(self._environment(action.job))
            launch = msgspec.structs.replace(launch, environment=environment)
        self._backend.start(
            Order(
                key=key,
                job=action.job,
                attempt=self._attempt(action.job),
                gpus=action.gpus,
                launch=launch,
            )
        )

    def _stop(self, key: str, action: Stop) -> None:
        assert self._controller is not None
        sign = sign_of_job(self._controller.ledger.jobs[action.job].spec)
        order = self._ending(key, action.job, own_words(action.verdict, sign))
        self._before_stop(action, order)
        self._backend.stop(order)

    def _preempt(self, key: str, action: Preempt) -> None:
        if not isinstance(self._backend, CanPreempt):
            message = f"{type(self._backend).__name__} cannot preempt {action.job}"
            raise BackendError(message)
        self._backend.preempt(self._ending(key, action.job, "preempted"))

    def _ending(self, key: str, job: str, note: str) -> Order:
        launch = launch_of(self._documents, job)
        grace = Launch(command=()).grace_s if launch is None else launch.grace_s
        attempt = self._attempt(job)
        return Order(key=key, job=job, attempt=attempt, grace_s=grace, note=note)

    def heard(self, event: Event) -> None:
        """Drop what an event has acknowledged."""
        if isinstance(event, JobStarted):
            self.dispatcher.started(event.job)
        elif isinstance(event, JobEnded):
            assert self._controller is not None
            stop_key = self._controller.ledger.jobs[event.job].stop_key
            self.dispatcher.ended(event.job, stop_key)

    def close(self) -> None:
        """Begin no more errands."""
        self.dispatcher.close()

    # -- bringing back

    def look(self) -> Future[list[Entry]]:
        """List the backend and have the controller log what is new.

        Raises:
            BackendError: if the backend does not answer; jobs go on, and so do their reports.
            BusyError: if the controller has too much to do.
        """
        assert self._controller is not None
        carried_out = self.dispatcher.carried_out()  # before the listing: that order matters
        try:
            listing = self._backend.listing()
        except Exception as error:
            self.backend_problem = f"{type(error).__name__}: {error}"
            raise
        self.backend_problem = ""
        self.quarantined = listing.quarantined
        self._remember_launches(listing)
        view, ledger = self._controller.kernel.state.view, self._controller.ledger
        glance = self._reconciler.glance(listing, view, ledger)
        return self._controller.ask(lambda situation: self._new(glance, situation, carried_out))

    def _remember_launches(self, listing: Listing) -> None:
        """Keep what a backend in attach mode knows of how its jobs run: custody needs it."""
        assert self._controller is not None
        known = self._controller.ledger.jobs
        for report in listing.jobs:
            if report.launch is not None and report.job not in known:
                self._documents.put(LAUNCH, report.job, msgspec.json.encode(report.launch))

    def _new(
        self, glance: Glance, situation: Situation, carried_out: Mapping[str, bool]
    ) -> Sequence[Event]:
        look = Look(now=situation.now, carried_out=carried_out, failed=dict(self.dispatcher.failed))
        found = self._reconciler.compare(glance, situation.view, situation.ledger, look)
        self._found = found
        return found.events

    def tidy(self) -> None:
        """Drop what is over and end what should not run; the log has both ends already.

        Raises:
            BackendError: if the backend does not answer.
        """
        found, self._found = self._found, Difference()
        if found.alerts != self.alerts:
            for alert in found.alerts:
                _log.warning(alert)
            self.alerts = found.alerts
        for job in found.forget:
            self._backend.forget(job)
        for job in found.strays:
            assert self._controller is not None
            record = self._controller.ledger.jobs[job]
            _log.warning("%s runs though the log says it is over: stopping it again", job)
            key = record.stop_key or f"{self._controller.sequence}.stray"
            self._backend.stop(Order(key=key, job=job, attempt=record.launched))
