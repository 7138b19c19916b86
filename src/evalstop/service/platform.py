"""Everything one can ask of a running evalstop, as plain methods.

HTTP, dashboard and tests call these; who may call what is decided above, in the API.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from evalstop.core.errors import EvalStopError, InputError
from evalstop.core.events import (
    OperatorCommanded,
)
from evalstop.custody import is_url
from evalstop.ports import Backend, CanHearEnd, CanHold, CanSubmit, EventStore, Order, SnapshotStore
from evalstop.service import facts
from evalstop.service.carry_out import LAUNCH, BackendCarryOut, launch_of
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.doubts import doubts_of, doubts_of_live, state_of
from evalstop.service.explain import encode_record, explain
from evalstop.service.facts import ConflictError, UnknownJobError
from evalstop.service.ledger import key_of
from evalstop.service.live_watches import Watched
from evalstop.service.requests import (
    EvalIn,
    LossIn,
    Submission,
    launch_of_submission,
    spec_of,
)
from evalstop.service.tokens import Principal, Scope, Tokens
from evalstop.service.views import cluster_view, job_view, savings_view

if TYPE_CHECKING:
    from concurrent.futures import Future

    from evalstop.core.job import JobSpec
    from evalstop.ports import Entry, Launch
    from evalstop.service.ledger import JobRecord

__all__ = ["ConflictError", "Platform", "UnknownJobError"]

_log = logging.getLogger(__name__)

CONFIGURE = "configure"
"""The operator command under which a configuration that took effect is logged."""

LISTED_S = 3.0
"""Seconds to wait until a backend that queues jobs itself lists a new one."""

ANSWER_S = 30.0
"""Seconds a caller waits for the controller."""


class Parts(Struct, frozen=True, kw_only=True):
    """What a platform is made of."""

    controller: Controller
    carry_out: BackendCarryOut
    backend: Backend
    store: EventStore
    documents: SnapshotStore
    custodian: Custodian
    tokens: Tokens
    watches: Mapping[str, Watched]
    false_alarms: Mapping[str, str] = {}
    price_per_gpu_hour: float | None = None
    url: str = ""
    logs: Callable[[str, int], Path] | None = None
    before_undo: Callable[[str], None] = lambda _: None
    more_troubles: tuple[Callable[[], list[str]], ...] = ()


class Platform:
    """One cluster under evalstop."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._submitting = threading.Lock()

    @property
    def controller(self) -> Controller:
        """The driver, for who wants to listen to entries."""
        return self.parts.controller

    def _wait(self, future: Future[list[Entry]]) -> list[Entry]:
        return future.result(timeout=ANSWER_S)

    # -- jobs

    def submit(self, submission: Submission) -> str:
        """Take in a job and return its id.

        Raises:
            InputError: if it makes no sense, or asks for more GPUs than there are.
            ConflictError: if a job of this id is known.
        """
        job = submission.id or f"job-{secrets.token_hex(4)}"
        spec, launch = spec_of(submission, job), launch_of_submission(submission)
        backend = self.parts.backend
        if not launch.command and not isinstance(backend, CanHearEnd):
            message = "expected a command: what is to be run?"
            raise InputError(message)
        if isinstance(backend, CanSubmit):
            return self._submit_to(backend, spec, launch)
        with self._submitting:  # a refused namesake must not put its launch in place of the first's
            if job in self.controller.ledger.jobs:
                raise facts.namesake(job)
            self.parts.documents.put(LAUNCH, job, msgspec.json.encode(launch))
            self._wait(self.controller.ask(lambda situation: facts.submission(situation, spec)))
        return job

    def _submit_to(self, backend: CanSubmit, spec: JobSpec, launch: Launch) -> str:
        """Hand a job to a backend that names it itself, with a token that is bound afterwards.

        The token travels in the launch's environment, which backends pass on in a script or a
        request, never in an argument vector; until the job's name is known it opens nothing. A
        backend that runs nothing itself is given none: whoever handed the job in has its token.
        """
        token = self.parts.tokens.draw()
        if self.parts.url and not isinstance(backend, CanHearEnd):
            ours = {"EVALSTOP_URL": self.parts.url, "EVALSTOP_TOKEN": token}
            launch = msgspec.structs.replace(launch, environment=launch.environment | ours)
        job = backend.submit(spec, launch)
        self.parts.tokens.bind(token, Principal(name=f"job {job}", scope=Scope.JOB, job=job))
        self._until_known(job)
        return job

    def _until_known(self, job: str) -> None:
        """Wait a little until a backend that queues jobs itself has listed one."""
        self.parts.carry_out.dispatcher.poke()
        deadline = time.monotonic() + LISTED_S
        while job not in self.controller.ledger.jobs and time.monotonic() < deadline:
            time.sleep(0.02)

    def ended(self, job: str, exit_code: int | None) -> None:
        """Hear that a job is over, from whoever runs it.

        Raises:
            UnknownJobError: if there is no such job.
            ConflictError: if the backend sees ends itself.
        """
        self.record(job)
        backend = self.parts.backend
        if not isinstance(backend, CanHearEnd):
            message = "the backend sees itself when jobs end: nothing needs to be said"
            raise ConflictError(message)
        backend.ended(job, exit_code)
        self.parts.carry_out.dispatcher.poke()

    def job_token(self, job: str) -> str:
        """Return the token with which a job reports on itself."""
        return self.parts.tokens.of_job(job)

    def warnings(self, job: str) -> list[str]:
        """Return what should be looked at again in a submission, in sentences (R07, R26, R29)."""
        record = self.controller.ledger.jobs.get(job)
        if record is None:
            return []
        return doubts_of(record.spec) + self.parts.custodian.doubts(record)

    def record(self, job: str) -> JobRecord:
        """Return what the shell knows of a job.

        Raises:
            UnknownJobError: if there is none of this name.
        """
        return facts.known(self.controller.ledger.jobs, job)

    def job(self, job: str, *, series: bool = True) -> dict[str, Any]:
        """Return one job as plain data."""
        record = self.record(job)
        watch = self.parts.watches.get(job)
        shown = job_view(record, watch, now=self.controller.now(), series=series)
        shown["warnings"] += self.parts.custodian.doubts(record)
        if series and watch is None:
            shown["series"] = self._series_of_ended(job)
        return shown

    def _series_of_ended(self, job: str) -> list[dict[str, Any]]:
        record = explain(self.parts.store.read_job(job), job, false_alarms={})
        decisions = record["decisions"]
        return list(decisions[-1]["series"]) if decisions else []

    def jobs(
        self,
        *,
        tenant: str | None = None,
        job: str | None = None,
        phase: str | None = None,
        limit: int = 1000,
        series: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the newest jobs as plain data, newest first."""
        now = self.controller.now()
        shown: list[dict[str, Any]] = []
        for record in reversed(list(self.controller.ledger.jobs.values())):
            if tenant is not None and record.spec.tenant != tenant:
                continue
            if job is not None and record.spec.id != job:
                continue
            watch = self.parts.watches.get(record.spec.id)
            one = job_view(record, watch, now=now, series=series)
            if phase is None or phase in {one["phase"], one["outcome"]}:
                shown.append(one)
            if len(shown) >= limit:
                break
        return shown

    # -- reports

    def needs_securing(self, job: str, reports: Sequence[EvalIn]) -> bool:
        """Return whether custody has anything to do with these reports."""
        if self.parts.custodian.folder_of(job) is not None:
            return True
        return any(report.checkpoint and is_url(report.checkpoint) for report in reports)

    def secure(self, job: str, reports: Sequence[EvalIn]) -> Sequence[EvalIn]:
        """Take the checkpoints of reported steps into custody; before the report is taken in.

        Returns the reports; those whose checkpoint lies at a URL that custody looks after, and is
        not in custody yet, name none: it is named when it is there (R04).
        """
        custodian, record = self.parts.custodian, self.record(job)
        attempts = {report.step: report.attempt for report in reports}
        named = {
            report.step: report.checkpoint
            for report in reports
            if report.checkpoint
            and is_url(report.checkpoint)
            and custodian.may_touch(record, report.checkpoint)
        }
        custodian.secure(job, attempts, named)
        looked_after = set(named.values())
        return [
            msgspec.structs.replace(report, checkpoint=None)
            if report.checkpoint in looked_after
            and not custodian.is_kept(job, report.checkpoint, report.attempt)
            else report
            for report in reports
        ]

    def report(self, job: str, reports: Sequence[EvalIn]) -> Future[list[Entry]]:
        """Take in evaluations of one job; the future is fulfilled when they are durable.

        Repeats have no effect. A report on a job that has ended is kept and changes nothing.
        """
        self.parts.custodian.look_soon(job)

        return self.controller.ask(lambda situation: facts.evaluations(situation, job, reports))

    def answer(self, job: str, received: int, entries: Sequence[Entry]) -> dict[str, Any]:
        """Return what a reporter is told: what was new, and whether to stop."""
        record = self.record(job)
        watch = self.parts.watches.get(job)
        return {
            "job": job,
            "accepted": len(entries),
            "duplicates": received - len(entries),
            "sequence": entries[-1].sequence if entries else self.controller.sequence,
            "stop": record.stop is not None,
            "state": state_of(record, watch),
            "ended": record.outcome is not None,
        }

    def report_losses(self, job: str, losses: Sequence[LossIn]) -> Future[list[Entry]]:
        """Take in training losses of one job."""
        return self.controller.ask(lambda situation: facts.losses(situation, job, losses))

    def report_checkpoint(self, job: str, step: int, checkpoint: str) -> None:
        """Take in that a complete checkpoint exists where evalstop does not look itself.

        At a URL that custody looks after it is taken there, and the fact is logged when it is.
        """
        record, custodian = self.record(job), self.parts.custodian
        if is_url(checkpoint) and custodian.may_touch(record, checkpoint):
            custodian.secure(job, {step: max(0, record.newest[0])}, {step: checkpoint})
            return
        self._wait(
            self.controller.ask(
                lambda situation: facts.checkpoint(situation, job, step, checkpoint)
            )
        )

    # -- people's orders

    def command(
        self, command: str, *, actor: str, job: str = "", for_s: float | None = None, note: str = ""
    ) -> dict[str, Any]:
        """Log a person's order: stop, approve, snooze, freeze or unfreeze.

        Raises:
            UnknownJobError: if there is no such job.
            ConflictError: if it has ended.
        """
        entries = self._wait(
            self.controller.ask(
                lambda situation: facts.order(
                    situation, command, actor=actor, job=job, for_s=for_s, note=note
                )
            )
        )
        return {"command": command, "job": job, "actions": msgspec.to_builtins(entries[-1].actions)}

    def undo(
        self, job: str, *, actor: str, note: str = "", start: Literal["best", "last"] = "best"
    ) -> dict[str, Any]:
        """Reopen a stopped job: it waits again, with a fresh streak, to go on from ``start``.

        Raises:
            UnknownJobError: if there is no such job.
            ConflictError: if it was not stopped, or is still on its way out.
        """
        best = self.best(job).get("path")
        resume_from = best if start == "best" else self.parts.custodian.kept.last(job)
        if self.record(job).outcome in facts.REVERSIBLE:
            self.parts.before_undo(job)
        launch = launch_of(self.parts.documents, job)
        if launch is not None and resume_from:
            environment = launch.environment | {"EVALSTOP_RESUME_FROM": str(resume_from)}
            launch = msgspec.structs.replace(launch, environment=environment)
            self.parts.documents.put(LAUNCH, job, msgspec.json.encode(launch))
        entries = self._wait(
            self.controller.ask(
                lambda situation: facts.undo(situation, job, actor=actor, note=note)
            )
        )
        backend = self.parts.backend
        if isinstance(backend, CanHold):  # what was stopped reversibly is still in its queue
            key = key_of(entries[0].sequence, 0)
            backend.unhold(Order(key=key, job=job, note=f"by {actor} {note}".strip()))
        return {"job": job, "phase": self.job(job)["phase"], "resume_from": resume_from}

    def configured(self, words: str, *, actor: str = "evalstop") -> None:
        """Log the configuration that is in force, unless the log says so already."""
        policies = self.controller.ledger.policies
        if not policies or policies[-1][1] != words:
            self._wait(
                self.controller.ask(
                    lambda situation: [
                        OperatorCommanded(
                            time=situation.now, command=CONFIGURE, actor=actor, note=words
                        )
                    ]
                )
            )

    # -- answers

    def explain(self, job: str) -> bytes:
        """Return the record of every decision on a job, as JSON."""
        self.record(job)
        record = explain(
            self.parts.store.read_job(job),
            job,
            false_alarms=self.parts.false_alarms,
            policies=self.controller.ledger.policies,
        )
        return encode_record(record)

    def best(self, job: str) -> dict[str, Any]:
        """Return the best score, the best saved score, and the verified path of the latter."""
        return self.parts.custodian.kept.best(job, self.record(job))

    def savings(self) -> dict[str, Any]:
        """Return what was saved, by tenant and in all."""
        return savings_view(self.controller, price=self.parts.price_per_gpu_hour)

    def cluster(self) -> dict[str, Any]:
        """Return GPUs by state and jobs by phase."""
        quarantined = self.parts.carry_out.quarantined
        return self.controller.steady(lambda: cluster_view(self.controller, quarantined))

    def log_tail(self, job: str, *, bytes_: int = 20_000) -> str:
        """Return the end of what a job printed, where its backend keeps that."""
        record = self.record(job)
        if self.parts.logs is None:
            return ""
        path = self.parts.logs(job, max(1, record.launched)) / "output.log"
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - bytes_))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def troubles(self) -> list[str]:
        """Return what is wrong now, in sentences; empty when all is well."""
        carry_out = self.parts.carry_out
        found = list(carry_out.alerts) + carry_out.dispatcher.troubles()
        if carry_out.backend_problem:
            found.append(f"the backend does not answer: {carry_out.backend_problem}")
        if self.controller.store_problem:
            found.append(f"the log cannot be written: {self.controller.store_problem}")
        if carry_out.quarantined:
            found.append(f"GPUs in quarantine: {', '.join(carry_out.quarantined)}")
        for name, watch in list(self.parts.watches.items()):
            if watch.unwatched:
                found.append(f"job {name!r} is not watched: {watch.unwatched}")
        records = list(self.controller.ledger.jobs.values())
        found += doubts_of_live(records, self.controller.now())
        for more in (self.parts.custodian.troubles, *self.parts.more_troubles):
            found += more()
        return found

    def ready(self) -> bool:
        """Return whether reports are taken in now."""
        return not (self.controller.store_problem or self.controller.deposed.is_set())

    def wait_for(self, job: str, phases: set[str], *, within_s: float) -> dict[str, Any]:
        """Wait until a job is in one of these phases or outcomes and return it."""
        deadline = time.monotonic() + within_s
        while True:
            shown = self.job(job, series=False)
            if {shown["phase"], shown["outcome"]} & phases:
                return shown
            if time.monotonic() > deadline:
                message = f"job {job!r} is {shown['phase']} after {within_s:g} s, not in {phases}"
                raise EvalStopError(message)
            time.sleep(0.02)
