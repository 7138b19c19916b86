"""Guard the jobs of any scheduler by reports over HTTP and a stop command from the configuration.

The scheduler starts and places its jobs; somebody tells us that they run (`submit`, through the
API) and that they ended (`ended`). Two commands may be set:

    stop_command = "kubectl delete job {job} --grace-period={grace_s}"
    list_command = "kubectl get jobs -o name"

``stop_command`` ends one job. It is split into an argument vector once, by shell quoting rules,
before a value is filled in: a job's name is always one argument and never shell text. With
``shell = true`` it is a shell's text instead, and gets the values as variables (``$EVALSTOP_JOB``
...), again never as text.

``list_command`` prints the names of all jobs that live, one a line (what stands before the last
``/`` is dropped). It is asked once a listing for all jobs. Without it we have no proof that
GPUs are free: the stop command's exit code 0 is taken for it, and the report says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import string
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evalstop.core.errors import BackendError, InputError
from evalstop.core.job import JobSpec
from evalstop.ports import JobReport, Launch, Listing, Order, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["PLACEHOLDERS", "CommandBackend", "CommandTemplate"]

PLACEHOLDERS = ("job", "attempt", "grace_s", "note", "key")
_CALM = re.compile(r"[\w][\w.:/@+=-]*")


class CommandTemplate:
    """A command with places for values.

    Args:
        text: the command, as people type it.
        shell: run it by a shell, values in variables; by default there is no shell.
        time_limit_s: after so many seconds it is killed and counts as failed.

    Raises:
        InputError: it is empty, is not quoted correctly, or names an unknown place.
    """

    def __init__(self, text: str, *, shell: bool = False, time_limit_s: float = 30.0) -> None:
        self._shell = shell
        self._time_limit_s = time_limit_s
        try:
            self._words = ["/bin/sh", "-c", text] if shell else shlex.split(text)
        except ValueError as error:
            message = f"the command {text!r} cannot be split into words ({error}): check its quotes"
            raise InputError(message) from error
        if not text.strip():
            message = "expected a command, got an empty text"
            raise InputError(message)
        if not shell:
            self._check(text)

    def _check(self, text: str) -> None:
        for word in self._words:
            try:
                places = [
                    name for _, name, _, _ in string.Formatter().parse(word) if name is not None
                ]
            except ValueError as error:
                message = f"the command {text!r}: {error}; write a brace as {{{{ or }}}}"
                raise InputError(message) from error
            for name in places:
                if name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
                    message = f"the command {text!r} names {{{name}}}; known places: {known}"
                    raise InputError(message)

    def run(self, values: Mapping[str, str]) -> str:
        """Run the command and return what it printed.

        Raises:
            BackendError: it failed, hung or could not be run.
            InputError: a value could be taken for an option.
        """
        if self._shell:
            words = self._words
        else:
            words = [word.format_map(dict(values)) for word in self._words]
            for word, template in zip(words, self._words, strict=True):
                if word.startswith("-") and template.startswith("{"):
                    message = f"{word!r} would be taken for an option of {words[0]}"
                    raise InputError(message)
        variables = {f"EVALSTOP_{name.upper()}": value for name, value in values.items()}
        return self._run(words, {**os.environ, **variables})

    def _run(self, words: list[str], environment: Mapping[str, str]) -> str:
        try:
            process = subprocess.Popen(  # noqa: S603 -- the operator's own command
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            message = f"{words[0]} cannot be run: {error}"
            raise BackendError(message) from error
        with process:
            try:
                out, err = process.communicate(timeout=self._time_limit_s)
            except subprocess.TimeoutExpired as error:
                message = f"{words[0]} did not end within {self._time_limit_s:g} s"
                raise BackendError(message) from error
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            words_of_it = err.decode(errors="replace").strip()[-500:]
            message = f"{words[0]} failed (exit code {process.returncode}): {words_of_it}"
            raise BackendError(message)
        return out.decode(errors="replace")


class _Guarded(Struct, kw_only=True, omit_defaults=True):
    """One job as it is kept on disk."""

    spec: JobSpec
    launch: Launch
    stopped_by: str = ""
    ended: bool = False
    exit_code: int | None = None
    seen: bool = False


class CommandBackend:
    """Guards jobs that somebody else runs.

    Args:
        folder: where the jobs are remembered over restarts; made if absent.
        stop: the command that ends a job.
        living: the command that prints the names of all living jobs; None if there is none.
        release_limit_s: seconds after a stop without proof, after which a job's GPUs are
            reported as quarantined.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stop: CommandTemplate,
        living: CommandTemplate | None = None,
        release_limit_s: float = 300.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._stop = stop
        self._living = living
        self._release_limit_s = release_limit_s
        self._monotonic = monotonic
        self._stopped_at: dict[str, float] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._jobs = {
            job.spec.id: job
            for path in sorted(folder.glob("*.json"))
            for job in [msgspec.json.decode(path.read_bytes(), type=_Guarded)]
        }

    def start(self, order: Order) -> None:
        """Refuse: another scheduler starts these jobs.

        Raises:
            BackendError: always.
        """
        message = (
            f"{order.job}: the command backend starts nothing; use the scheduler `native` and "
            "let your own scheduler start the job"
        )
        raise BackendError(message)

    def submit(self, job: JobSpec, launch: Launch) -> str:
        """Remember a job that runs elsewhere; return its id. The same one twice is one.

        Raises:
            InputError: its name could be taken for something else by a command.
        """
        if not _CALM.fullmatch(job.id):
            message = f"expected a job name of letters, digits and . : / @ + = -, got {job.id!r}"
            raise InputError(message)
        with self._lock:
            known = self._jobs.get(job.id)
            if known is None or known.ended:
                self._keep(_Guarded(spec=job, launch=launch))
        return job.id

    def ended(self, job: str, exit_code: int | None = None) -> None:
        """Hear that a job is over, from whoever runs it; an unknown one is no error."""
        with self._lock:
            known = self._jobs.get(job)
            if known is not None and not known.ended:
                known.ended, known.exit_code = True, exit_code
                self._keep(known)

    def stop(self, order: Order) -> None:
        """Run the stop command, once for each order.

        Raises:
            BackendError: it failed; to be sent again.
        """
        with self._lock:
            known = self._jobs.get(order.job)
            if known is None or known.ended or known.stopped_by:
                return
        self._stop.run(
            {
                "job": order.job,
                "attempt": str(order.attempt),
                "grace_s": f"{order.grace_s:.0f}",
                "note": order.note,
                "key": order.key,
            }
        )
        with self._lock:
            known.stopped_by = order.key
            known.ended = known.ended or self._living is None
            self._stopped_at[order.job] = self._monotonic()
            self._keep(known)

    def listing(self) -> Listing:
        """Return the jobs that were handed in and not forgotten.

        Raises:
            BackendError: the list command failed.
        """
        if self._living is not None and any(not job.ended for job in self._jobs.values()):
            lines = self._living.run({}).split()
            alive = {line.rpartition("/")[2] for line in lines}
            with self._lock:
                self._compare(alive)
        with self._lock:
            reports = tuple(self._report(job) for job in self._jobs.values())
        lost = tuple(
            f"{r.job}:{n}"
            for r in reports
            if r.state is RunState.QUARANTINED
            for n in range(r.gpus)
        )
        held = sum(report.gpus for report in reports if report.state is not RunState.RELEASED)
        return Listing(jobs=reports, gpus=held - len(lost), quarantined=lost)

    def forget(self, job: str) -> None:
        """Drop a job that has ended."""
        with self._lock:
            known = self._jobs.get(job)
            if known is not None and known.ended:
                del self._jobs[job]
                self._stopped_at.pop(job, None)
                self._path(job).unlink(missing_ok=True)

    def _compare(self, alive: set[str]) -> None:
        for job in self._jobs.values():
            name = job.spec.id.rpartition("/")[2]
            if job.ended:
                continue
            if name in alive:
                if not job.seen:
                    job.seen = True
                    self._keep(job)
            elif job.seen or job.stopped_by:
                # Absent before it was ever seen: its scheduler may not have created it yet.
                job.ended = True
                self._keep(job)

    def _report(self, job: _Guarded) -> JobReport:
        return JobReport(
            job=job.spec.id,
            state=self._state(job),
            attempt=1,
            gpus=job.spec.gpus,
            exit_code=job.exit_code,
            reason="stop_command exited with 0; not verified"
            if job.ended and job.stopped_by and self._living is None
            else "",
            spec=job.spec,
            launch=job.launch,
        )

    def _state(self, job: _Guarded) -> RunState:
        if job.ended:
            return RunState.RELEASED
        if not job.stopped_by:
            return RunState.RUNNING
        since = self._stopped_at.setdefault(job.spec.id, self._monotonic())
        late = self._monotonic() - since > self._release_limit_s
        return RunState.QUARANTINED if late else RunState.RELEASING

    def _keep(self, job: _Guarded) -> None:
        self._jobs[job.spec.id] = job
        path = self._path(job.spec.id)
        aside = path.with_suffix(".new")
        with aside.open("wb") as file:
            file.write(msgspec.json.encode(job))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def _path(self, job: str) -> Path:
        return self._folder / f"{hashlib.sha256(job.encode()).hexdigest()[:32]}.json"
