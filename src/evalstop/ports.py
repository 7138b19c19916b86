"""What the deciding core needs from the outside, as small protocols, and the words they share.

Every method may block and may raise; the shell calls them from worker threads, bounds the wait
and retries. Commands are idempotent: an `Order` carries the key (sequence, index) of the action
it comes from, and the same key twice has the effect of once. Capabilities that only some
backends have are protocols of their own, asked for by ``isinstance``.

Each port has one contract suite in `evalstop.testing`, which fakes and real ones pass alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from evalstop.core.actions import Action
from evalstop.core.events import Event
from evalstop.core.job import JobSpec
from evalstop.core.points import EvalPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Backend",
    "CanAnnotate",
    "CanHearEnd",
    "CanHold",
    "CanPreempt",
    "CanRequestSave",
    "CanSubmit",
    "CheckpointStore",
    "Clock",
    "Entry",
    "EventStore",
    "FeedbackSource",
    "JobReport",
    "Launch",
    "Lease",
    "Listing",
    "Order",
    "Pin",
    "Reading",
    "RunState",
    "SnapshotStore",
]


class Launch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job is run: what a backend needs and a policy never sees.

    Attributes:
        command: argument vector; no shell is put around it.
        cwd: working directory; empty for the backend's choice (locally, a folder of the job's own).
        environment: variables added to the backend's environment.
        checkpoints: directory in which the job writes its checkpoints; empty if unknown.
        save_signal: name of the signal that asks the trainer for a checkpoint, "SIGUSR1" say;
            empty where the trainer has none.
        grace_s: seconds between SIGTERM and SIGKILL.
        options: backend's own options, such as ``partition`` under Slurm.
    """

    command: tuple[str, ...]
    cwd: str = ""
    environment: dict[str, str] = {}
    checkpoints: str = ""
    save_signal: str = ""
    grace_s: float = 30.0
    options: dict[str, str] = {}


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command to a backend.

    Attributes:
        key: "sequence.index" of the action in the log; the same key twice acts once.
        job: which job.
        attempt: restart counter, from 1; which run of the job is meant.
        gpus: GPUs to start on; unused in a stop.
        launch: how to run it; None in a stop, or where the backend knows the job already.
        grace_s: seconds between SIGTERM and SIGKILL in a stop.
        note: why, in a sentence for the backend's own record.
    """

    key: str
    job: str
    attempt: int = 1
    gpus: int = 0
    launch: Launch | None = None
    grace_s: float = 30.0
    note: str = ""


class RunState(StrEnum):
    """Where one run of a job stands, as its backend sees it.

    ``RELEASED`` is a proof: no process of the run lives and its GPUs are free. ``QUARANTINED``
    says that the proof did not come in time; such GPUs are out of the backend's capacity.
    """

    QUEUED = "queued"
    RUNNING = "running"
    RELEASING = "releasing"
    RELEASED = "released"
    QUARANTINED = "quarantined"


class JobReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a backend knows of one job's newest run.

    Attributes:
        job: name of the job.
        attempt: which run; 0 for a job that has not been started.
        state: see `RunState`.
        gpus: GPUs it holds, or asks for while queued.
        devices: their names, where the backend knows them.
        exit_code: of the finished run; negative for a signal; None if unknown or unfinished.
        stopped: whether an order to stop or preempt reached the run before it had ended.
        reason: the backend's own word for how it ended or why it waits.
        spec: the job as submitted, where it came to the backend past evalstop (attach mode).
        launch: what is known of how it runs, in attach mode.
    """

    job: str
    state: RunState
    attempt: int = 0
    gpus: int = 0
    devices: tuple[str, ...] = ()
    exit_code: int | None = None
    stopped: bool = False
    reason: str = ""
    spec: JobSpec | None = None
    launch: Launch | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """Everything a backend knows now.

    Attributes:
        jobs: newest run of each job that is not forgotten.
        gpus: GPUs in service, quarantined ones not counted.
        quarantined: names of the GPUs that are out of service.
    """

    jobs: tuple[JobReport, ...]
    gpus: int
    quarantined: tuple[str, ...] = ()


class Backend(Protocol):
    """Runs jobs. What came of a command shows in the listing, never in a return value."""

    def start(self, order: Order) -> None:
        """Begin to run a job; return as soon as the command is safe with the backend."""
        ...

    def stop(self, order: Order) -> None:
        """Begin to end a run: SIGTERM to all of it, grace, SIGKILL. A run gone is no error."""
        ...

    def listing(self) -> Listing:
        """Return what is there, freshly read."""
        ...

    def forget(self, job: str) -> None:
        """Drop a released job: its end is safely in the log. An unknown one is no error."""
        ...


@runtime_checkable
class CanPreempt(Protocol):
    """A backend that can take a job off its GPUs and start it again later."""

    def preempt(self, order: Order) -> None:
        """Save the run and take it off its GPUs; it shows as released when it is."""
        ...


@runtime_checkable
class CanRequestSave(Protocol):
    """A backend that can pass on the wish for a checkpoint."""

    def request_save(self, order: Order) -> None:
        """Ask the trainer for a checkpoint now; whether it saves shows in its directory."""
        ...


@runtime_checkable
class CanHold(Protocol):
    """A backend that can end a run and keep the job, on hold: the reversible stop."""

    def hold(self, order: Order) -> None:
        """End the run and keep the job in the queue, not eligible to start."""
        ...

    def unhold(self, order: Order) -> None:
        """Let a held job run again."""
        ...


@runtime_checkable
class CanAnnotate(Protocol):
    """A backend with a record of its own in which people look for evidence."""

    def annotate(self, job: str, text: str) -> None:
        """Write one line on a job into the backend's own record."""
        ...


@runtime_checkable
class CanSubmit(Protocol):
    """A backend that queues and places jobs itself (attach mode)."""

    def submit(self, job: JobSpec, launch: Launch) -> str:
        """Hand the job to the backend's queue; return the id that its listing will show."""
        ...


@runtime_checkable
class CanHearEnd(Protocol):
    """A backend whose jobs somebody else starts and ends: it has to be told of both."""

    def ended(self, job: str, exit_code: int | None = None) -> None:
        """Hear that a job is over; an unknown one is no error."""
        ...


class Reading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One evaluation found at a source, direction already normalised: higher is better.

    Attributes:
        job: whose.
        point: the evaluation.
        metric: empty for the primary metric, else a guardrail's name.
        reported_at: the source's own time, data only.
    """

    job: str
    point: EvalPoint
    metric: str = ""
    reported_at: float | None = None


class FeedbackSource(Protocol):
    """A place where scores appear: a file that grows, a tracker, an evaluator."""

    def readings(self) -> Sequence[Reading]:
        """Return what is new since the last call; repeats do no harm.

        Raises:
            ReadError: the source cannot be read now; the jobs go on, visibly unwatched.
        """
        ...


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log: a fact and what was decided on it. ``sequence`` counts from 1."""

    sequence: int
    event: Event
    actions: tuple[Action, ...] = ()


class EventStore(Protocol):
    """The log: all state there is. Sequences have no gaps, and none is ever written twice."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write all of them or none, durably, before returning.

        The very same entries again are no error: the answer to a write may have been lost.

        Raises:
            StoreConflictError: a sequence is taken: another controller writes this log.
            StoreError: the write failed (disk full, database gone); nothing was written.
        """
        ...

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield entries with a sequence above ``after``, in order."""
        ...

    def read_job(self, job: str) -> Iterator[Entry]:
        """Yield the entries whose event or actions concern one job, in order."""
        ...

    def last_sequence(self) -> int:
        """Return the highest sequence written, 0 for an empty log."""
        ...


class SnapshotStore(Protocol):
    """Folds of the log, and documents beside it; a lost snapshot costs time only."""

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Write one document, durably, in place of an older one of that key."""
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one document, None if there is none."""
        ...

    def delete(self, kind: str, key: str) -> None:
        """Remove one document; an unknown one is no error."""
        ...

    def documents(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of one kind as (key, data), in order of key."""
        ...


class Lease(Protocol):
    """The right to be the one active controller of a log; ends with its holder's process."""

    def acquire(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` seconds for the lease; return whether it is held."""
        ...

    def held(self) -> bool:
        """Return whether it is still held."""
        ...

    def release(self) -> None:
        """Give it up."""
        ...


class Pin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verified checkpoint in custody.

    Attributes:
        job: whose.
        step: training step at which it was saved.
        name: the checkpoint's own name, as events carry it.
        path: where the copy in custody lies.
        source: where the trainer wrote it.
        bytes: size of its files.
        digest: of its file names, sizes and safetensors headers; equal for equal checkpoints.
        attempt: which run of the job wrote it, where one went through a step again; 0 for the
            first.
    """

    job: str
    step: int
    name: str
    path: str
    source: str = ""
    bytes: int = 0
    digest: str = ""
    attempt: int = 0


class CheckpointStore(Protocol):
    """Custody: holds on to checkpoints that the trainer's own rotation may delete."""

    def pin(
        self, job: str, step: int, source: str, *, attempt: int = 0, scored: bool = True
    ) -> Pin:
        """Verify a checkpoint and take it into custody, atomically; twice is once.

        One whose weights were written anew is another checkpoint, of a later attempt at least:
        it is pinned beside the first (R03). A pin that nobody ``scored`` yet may have been taken
        before it was known that a new attempt had begun: ``attempt`` corrects it.

        Raises:
            TornCheckpointError: it is not complete, and so not a checkpoint (yet).
        """
        ...

    def verify(self, pin: Pin) -> Pin:
        """Read a pinned checkpoint again and return it.

        Raises:
            TornCheckpointError: it is gone or damaged.
        """
        ...

    def unpin(self, pin: Pin) -> None:
        """Let a checkpoint go; one that is gone is no error."""
        ...

    def pins(self, job: str) -> Iterable[Pin]:
        """Return the checkpoints of a job in custody, by step."""
        ...


class Clock(Protocol):
    """The controller's time. Nothing below the shell has one."""

    def now(self) -> float:
        """Return seconds since 1970; may jump, the controller smooths it."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...
