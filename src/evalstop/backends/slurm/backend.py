"""The backend: Slurm's listings as reports, and orders as Slurm's commands.

Slurm places, queues and preempts; we read, and end what a policy stops. Nothing is ever written
to Slurm by reading: in observe mode, where no order comes, this file runs squeue, sinfo and
`scontrol show` only.

A stop begins with the decision in AdminComment (Slurm takes none once a job is over). Then, where
the job may be requeued, the reversible stop: `scontrol requeuehold` ends the run (SIGTERM, the
site's KillWait, SIGKILL) and leaves the job in the queue, held, until somebody undoes the stop or
the window for that is over and it is cancelled. Elsewhere: SIGTERM to all processes of the job,
the grace, then scancel. What falls due later is done by whichever `listing` comes after it, so
that it also happens when the process that began the stop is gone.

When are GPUs free? Not when sinfo says so: GresUsed drops to zero as soon as a job is COMPLETING,
while its processes may live (seen on 22.05). Free is proven when the job has left COMPLETING, its
nodes are in service, and each of its devices on them is unused, or held by another live job.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evalstop.backends.slurm.jobs import job_launch, job_spec
from evalstop.backends.slurm.optin import OptIn, parse_comment
from evalstop.backends.slurm.records import (
    COMPLETING,
    ENDED,
    HELD_BACK,
    JobDetail,
    JobRecord,
    NodeRecord,
)
from evalstop.backends.slurm.submission import batch_script, sbatch_options
from evalstop.backends.slurm.tenants import Tenants
from evalstop.core.errors import BackendError
from evalstop.ports import JobReport, Launch, Listing, Order, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalstop.backends.slurm.client import SlurmClient
    from evalstop.core.job import JobSpec

__all__ = ["SlurmBackend"]

_LOG = logging.getLogger(__name__)
_SIGNATURE = "evalstop: "
_STOPPED = f"{_SIGNATURE}stopped:"
_OWN_ACCOUNTS_ONLY = Tenants()
_GONE = "gone from Slurm's memory"


class _Job(Struct, kw_only=True):
    """What we remember of a watched job between listings."""

    record: JobRecord
    optin: OptIn
    running: JobDetail | None = None
    ended: JobDetail | None = None
    ended_at: float | None = None
    released: bool = False
    attempt_seen: int = 0
    held_by_us: bool = False


class SlurmBackend:
    """Guards the jobs of a Slurm cluster that opted in.

    Args:
        client: how Slurm is asked and told.
        undo_window_s: seconds for which a stopped job stays in the queue, held, so that the
            stop can be undone; 0 cancels at once.
        release_limit_s: seconds after a job's end without proof that its GPUs are free, after
            which they are reported as quarantined.
        tenants: which tenants a job's owner may name.
        now: seconds since 1970, on a clock like Slurm's.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        client: SlurmClient,
        *,
        undo_window_s: float = 86_400.0,
        release_limit_s: float = 120.0,
        tenants: Tenants = _OWN_ACCOUNTS_ONLY,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._undo_window_s = undo_window_s
        self._release_limit_s = release_limit_s
        self._tenants = tenants
        self._now = now
        self._monotonic = monotonic
        self._jobs: dict[str, _Job] = {}
        self._cancel_at: dict[str, float] = {}
        self._forgotten: set[str] = set()
        self._lock = threading.Lock()

    def start(self, order: Order) -> None:
        """Refuse: Slurm starts jobs itself.

        Raises:
            BackendError: always.
        """
        message = (
            f"{order.job}: Slurm places jobs itself; use the scheduler `native` and hand jobs in "
            "with `evalstop submit` or sbatch"
        )
        raise BackendError(message)

    def submit(self, job: JobSpec, launch: Launch) -> str:
        """Hand a job to sbatch, opted in; return Slurm's id for it.

        Raises:
            InputError: an option is not one we pass on, or a value cannot be written.
            BackendError: sbatch refused it.
        """
        return self._client.submit(batch_script(launch), sbatch_options(job, launch))

    def stop(self, order: Order) -> None:
        """End the run, reversibly where the job may be requeued; the decision is written first.

        Raises:
            BackendError: Slurm did not take the order; to be sent again.
        """
        with self._lock:
            known = self._jobs.get(order.job)
            if order.job in self._cancel_at or (known and (_over(known) or known.held_by_us)):
                return
            self._require_no_end_under_way(order.job)
            self.annotate(order.job, f"stopped: {order.note}")
            if known and known.record.held and known.record.restarts:
                known.held_by_us = True  # by the controller before this one
            elif self._is_reversible(order.job):
                self._client.requeue_hold(order.job)
                if known:
                    known.held_by_us = True
            elif order.grace_s > 0 and self._client.signal(order.job, "TERM"):
                self._cancel_at[order.job] = self._monotonic() + order.grace_s
            else:
                self._client.cancel(order.job)
                self._cancel_at[order.job] = float("inf")

    def _require_no_end_under_way(self, job: str) -> None:
        """Send nothing to a job whose run is being ended: by our order before a restart, perhaps.

        A second signal would hang there (seen on 22.05: scancel tries for half a minute), and a
        cancellation would take what was requeued and held out of the queue, and the undo with it.

        Raises:
            BackendError: it is COMPLETING; what became of it is seen when it no longer is.
        """
        known = self._jobs.get(job)
        if known is None:
            detail = self._client.detail(job)
            completing = detail is not None and detail.completing
        else:
            completing = known.record.state == COMPLETING
        if completing:
            message = (
                f"{job} is being ended already: looked at again when it is no longer COMPLETING"
            )
            raise BackendError(message)

    def _is_reversible(self, job: str) -> bool:
        """Whether a job that has begun may be requeued; Slurm is asked about one not seen yet."""
        if self._undo_window_s <= 0:
            return False
        known = self._jobs.get(job)
        if known is not None:
            runs = known.record.state not in HELD_BACK and known.running is not None
            return runs and bool(known.running and known.running.requeue)
        detail = self._client.detail(job)
        return detail is not None and detail.requeue and detail.begun

    def hold(self, order: Order) -> None:
        """End the run and keep the job in the queue, held: `unhold` or `scontrol release` undoes.

        Raises:
            BackendError: Slurm did not take the order (a job may forbid requeueing).
        """
        self.annotate(order.job, f"stopped: {order.note}")
        self._client.requeue_hold(order.job)

    def unhold(self, order: Order) -> None:
        """Let a held job run again: the undo of a reversible stop.

        Raises:
            BackendError: Slurm did not take the order.
        """
        self.annotate(order.job, f"undone: {order.note}")
        self._client.release(order.job)
        with self._lock:
            self._forgotten.discard(order.job)
            self._jobs.pop(order.job, None)

    def request_save(self, order: Order) -> None:
        """Send the job's save signal to its batch script; nothing where it has named none.

        Raises:
            BackendError: Slurm did not take the order.
        """
        known = self._jobs.get(order.job)
        name = known.optin.values.get("save_signal", "") if known else ""
        name = order.launch.save_signal if order.launch and order.launch.save_signal else name
        if name:
            self._client.signal(order.job, name, whole=False)

    def annotate(self, job: str, text: str) -> None:
        """Write one line into AdminComment; a refusal is logged and stops nothing.

        Writing there takes Slurm's operator privilege, which a site may withhold.
        """
        if not text:
            return
        try:
            written = self._client.set_admin_comment(job, f"{_SIGNATURE}{text}")
        except BackendError as error:
            _LOG.warning("job %s: AdminComment could not be written: %s", job, error)
        else:
            if not written:
                _LOG.warning("job %s: it is over, and Slurm takes no AdminComment any more", job)

    def forget(self, job: str) -> None:
        """Leave a released job out of later listings."""
        with self._lock:
            known = self._jobs.get(job)
            if known is not None and known.released:
                self._forgotten.add(job)
                del self._jobs[job]
                self._cancel_at.pop(job, None)

    def listing(self) -> Listing:
        """Return the watched jobs and the cluster's GPUs, freshly read.

        Raises:
            BackendError: Slurm could not be asked.
        """
        records = {record.id: record for record in self._client.jobs()}
        nodes = {node.name: node for node in self._client.nodes()}
        with self._lock:
            self._forgotten &= {
                name for name, record in records.items() if record.state in ENDED or record.held
            }
            self._remember(records)
            self._escalate(records)
            reports = [self._report(name, job, nodes) for name, job in self._jobs.items()]
            found = tuple(report for report in reports if report.gpus > 0)
            lost = tuple(
                device
                for report in found
                if report.state is RunState.QUARANTINED
                for device in report.devices
            )
        in_service = sum(node.gpus if node.in_service else node.used for node in nodes.values())
        return Listing(jobs=found, gpus=in_service - len(lost), quarantined=lost)

    # ---- what is there -------------------------------------------------------------------

    def _remember(self, records: Mapping[str, JobRecord]) -> None:
        for name, record in records.items():
            if name in self._forgotten:
                continue
            known = self._jobs.get(name)
            if known is None:
                optin = parse_comment(record.comment)
                if optin is None:
                    continue
                known = self._jobs[name] = _Job(record=record, optin=optin)
            known.record = record
        for name, known in self._jobs.items():
            # Slurm forgets a job MinJobAge after its end, or lost it with its state.
            missed = name not in records and known.record.state not in ENDED
            if missed and self._client.detail(name) is None:
                known.record = msgspec.structs.replace(
                    known.record, state="NODE_FAIL", reason=_GONE
                )

    def _report(self, name: str, job: _Job, nodes: Mapping[str, NodeRecord]) -> JobReport:
        record = job.record
        state = self._state(name, job, nodes)
        devices = job.running.devices if job.running else ()
        held = sum(count for _, _, count in devices)
        begun = record.restarts + (0 if record.state in HELD_BACK else 1)
        if record.state in ENDED and not record.nodes:
            begun = record.restarts  # cancelled while it waited
        return JobReport(
            job=name,
            state=state,
            attempt=begun,
            gpus=held if held and state is not RunState.QUEUED else record.gpus,
            devices=()
            if state in {RunState.QUEUED, RunState.RELEASED}
            else tuple(
                f"{node}:gpu{index}" for node, indices, _ in devices for index in sorted(indices)
            ),
            exit_code=job.ended.exit_code if job.ended else None,
            reason=_reason(record),
            spec=job_spec(name, record, job.optin, self._tenants),
            launch=job_launch(name, record, job.optin),
        )

    def _state(self, name: str, job: _Job, nodes: Mapping[str, NodeRecord]) -> RunState:
        record = job.record
        if record.state in HELD_BACK and not self._is_held_stop(job):
            job.running = None
            job.held_by_us = job.held_by_us and not record.held
            return RunState.QUEUED
        if record.state == COMPLETING:
            return RunState.RELEASING
        if record.state not in ENDED | HELD_BACK:
            attempt = record.restarts + 1
            if job.running is None or job.attempt_seen != attempt or not job.running.devices:
                job.running = self._client.detail(name)
                job.attempt_seen = attempt
            return RunState.RUNNING
        if job.ended_at is None:
            job.ended_at = self._monotonic()
            ended = record.state in ENDED and record.reason != _GONE
            job.ended = self._client.detail(name) if ended else None
        job.released = job.released or self._is_free(job, nodes)
        if job.released:
            return RunState.RELEASED
        late = self._monotonic() - job.ended_at > self._release_limit_s
        return RunState.QUARANTINED if late else RunState.RELEASING

    def _is_free(self, job: _Job, nodes: Mapping[str, NodeRecord]) -> bool:
        held = {} if job.running is None else {node: idx for node, idx, _ in job.running.devices}
        in_question = []
        for name in {*job.record.nodes, *held}:
            node = nodes.get(name)
            if node is None or not node.in_service:
                return False
            mine = held.get(name) or node.indices
            if mine & node.indices or (node.used and not node.indices):
                in_question.append((node, mine))
        if not in_question:
            return True
        others: dict[str, tuple[set[int], int]] = {}
        for detail in self._client.details().values():
            if detail.exit_code is None:
                for name, indices, count in detail.devices:
                    known, total = others.get(name, (set(), 0))
                    others[name] = (known | indices, total + count)
        return all(
            (mine & node.indices) <= others.get(node.name, (set(), 0))[0]
            and node.used <= others.get(node.name, (set(), 0))[1]
            for node, mine in in_question
        )

    # ---- stops under way -----------------------------------------------------------------

    def _escalate(self, records: Mapping[str, JobRecord]) -> None:
        """Do what has fallen due: cancel after the grace, and what nobody undid in its window."""
        for name, at in list(self._cancel_at.items()):
            known = self._jobs.get(name)
            if known is None or _over(known):
                del self._cancel_at[name]
            elif self._monotonic() >= at:
                self._client.cancel(name)
                self._cancel_at[name] = float("inf")
        for name, record in records.items():
            ours = record.held and record.restarts and record.admin_comment.startswith(_STOPPED)
            if ours and 0 < record.submitted_at < self._now() - self._undo_window_s:
                self._client.cancel(name)

    def _is_held_stop(self, job: _Job) -> bool:
        """Whether a held job is one that we stopped, this process or one before it."""
        record = job.record
        signed = record.admin_comment.startswith(_STOPPED)
        return record.held and record.restarts > 0 and (job.held_by_us or signed)


def _reason(record: JobRecord) -> str:
    if record.state == "CANCELLED":
        return "cancelled"  # the word by which a controller tells it from a failure
    return " ".join(word for word in (record.state, record.reason) if word)


def _over(job: _Job) -> bool:
    return job.record.state in ENDED
