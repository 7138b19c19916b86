"""Slurm's own commands, each with a time limit, and a pause after failures.

With its controller down, squeue and scontrol retry for minutes (Slurm's MessageTimeout times the
number of retries), and a client of a hung controller hangs with it. So every call has a limit
after which its whole process group is killed, and after a failed read the next one waits: one
second, then two, four, up to a minute. Commands that change something are tried at once, always.

A busy controller drops an answer now and then ("Socket timed out on send/recv operation"; about
one in thirty on 24.11 while we tested): such a command is repeated, once. All but sbatch may be:
the second of two equal orders finds nothing left to do, while a second sbatch is a second job.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Literal

from evalstop.backends.slurm import records
from evalstop.backends.slurm.records import END, FIELDS, NODE_FIELDS, SEPARATOR
from evalstop.core.errors import BackendError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SlurmClient", "checked"]

_JOB_ID = re.compile(r"\d+(_\d+)?(\+\d+)?")
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_DROPPED = ("Socket timed out on send/recv operation", "Unexpected message received")


class SlurmClient:
    """Runs Slurm's commands.

    Args:
        listing: "text" (squeue -O, small) or "json" (squeue --json).
        time_limit_s: after so many seconds a command is killed and counts as failed.
        environment: in place of this process's own; SLURM_CONF for instance.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        *,
        listing: Literal["text", "json"] = "text",
        time_limit_s: float = 20.0,
        environment: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listing = listing
        self._time_limit_s = time_limit_s
        self._environment = {
            **(os.environ if environment is None else environment),
            "SLURM_TIME_FORMAT": "%s",  # times as seconds since 1970, in no zone
        }
        self._monotonic = monotonic
        self._pause_s = 0.0
        self._not_before = float("-inf")

    def jobs(self) -> list[records.JobRecord]:
        """Return every job that Slurm remembers, ended ones included.

        Raises:
            BackendError: it could not be asked, or it is not asked again yet.
        """
        if self._listing == "json":
            return records.parse_jobs_json(self._read("squeue", "--json", "--states=all"))
        form = ",".join(f"{name}:{SEPARATOR}" for name in FIELDS[:-1]) + f",{FIELDS[-1]}:{END}"
        return records.parse_jobs_text(
            self._read("squeue", "--noheader", "--states=all", "--array", f"--Format={form}")
        )

    def nodes(self) -> list[records.NodeRecord]:
        """Return every node with its GPUs.

        Raises:
            BackendError: it could not be asked.
        """
        form = ",".join(f"{name}:{SEPARATOR}" for name in NODE_FIELDS[:-1])
        return records.parse_nodes_text(
            self._read("sinfo", "--noheader", "-N", f"--Format={form},{NODE_FIELDS[-1]}:{END}")
        )

    def detail(self, job: str) -> records.JobDetail | None:
        """Return the particulars of one job; None if Slurm no longer knows it.

        Raises:
            BackendError: it could not be asked.
        """
        try:
            text = self._read("scontrol", "-o", "-d", "show", "job", checked(job))
        except BackendError as error:
            if "Invalid job id" in str(error):
                self._well()
                return None
            raise
        return records.parse_detail(text)

    def details(self) -> dict[str, records.JobDetail]:
        """Return the particulars of all jobs, by id.

        Raises:
            BackendError: it could not be asked.
        """
        found = {}
        for line in self._read("scontrol", "-o", "-d", "show", "job").splitlines():
            pairs = dict(re.findall(r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId)=(\S+)", line))
            if "JobId" in pairs:
                task = pairs.get("ArrayTaskId", "")
                name = f"{pairs['ArrayJobId']}_{task}" if task.isdigit() else pairs["JobId"]
                found[name] = records.parse_detail(line)
        return found

    def signal(self, job: str, name: str, *, whole: bool = True) -> bool:
        """Send a signal to a job's processes, or to its batch script alone.

        Returns:
            Whether there was such a job, alive.
        """
        if not re.fullmatch(r"(SIG)?[A-Z][A-Z0-9]{1,9}", name):
            message = f"expected the name of a signal such as USR1, got {name!r}"
            raise InputError(message)
        reach = "--full" if whole else "--batch"
        return self._order("scancel", f"--signal={name.removeprefix('SIG')}", reach, checked(job))

    def cancel(self, job: str) -> bool:
        """End a job for good; return whether there was one to end."""
        return self._order("scancel", checked(job))

    def requeue_hold(self, job: str) -> bool:
        """End a run and keep its job in the queue, held; return whether there was one."""
        try:
            return self._order("scontrol", "requeuehold", checked(job))
        except BackendError as error:
            if "pending execution" not in str(error):
                raise
        return self._order("scontrol", "hold", job)  # requeued already, by us or by somebody

    def release(self, job: str) -> bool:
        """Let a held job run again; return whether there was one."""
        return self._order("scontrol", "release", checked(job))

    def set_admin_comment(self, job: str, text: str) -> bool:
        """Write into a job's record; return False where the job has ended and takes no more."""
        line = " ".join(text.split())
        return self._order("scontrol", "update", f"JobId={checked(job)}", f"AdminComment={line}")

    def submit(self, script: str, options: Sequence[str]) -> str:
        """Hand a batch script to sbatch and return the job's id.

        Raises:
            BackendError: sbatch refused it; says why in its own words.
        """
        return self._run("sbatch", "--parsable", *options, text=script).split(";")[0].strip()

    def _read(self, *command: str) -> str:
        wait = self._not_before - self._monotonic()
        if wait > 0:
            message = f"Slurm did not answer; it is asked again in {wait:.0f} s"
            raise BackendError(message)
        try:
            text = self._run_again(*command)
        except BackendError:
            longer = max(_FIRST_PAUSE_SECONDS, 2.0 * self._pause_s)
            self._pause_s = min(_LONGEST_PAUSE_SECONDS, longer)
            self._not_before = self._monotonic() + self._pause_s
            raise
        self._well()
        return text

    def _well(self) -> None:
        self._pause_s = 0.0
        self._not_before = float("-inf")

    def _order(self, *command: str) -> bool:
        try:
            self._run_again(*command)
        except BackendError as error:
            gone = ("Invalid job id", "already finished", "already completing", "Job/step")
            if any(words in str(error) for words in gone):
                return False
            raise
        return True

    def _run_again(self, *command: str) -> str:
        """Run a command that may be repeated, and repeat it if its answer was dropped."""
        try:
            return self._run(*command)
        except BackendError as error:
            if not any(words in str(error) for words in _DROPPED):
                raise
        return self._run(*command)

    def _run(self, *command: str, text: str = "") -> str:
        with contextlib.ExitStack() as stack:
            try:
                process = stack.enter_context(
                    subprocess.Popen(  # noqa: S603 -- argument vectors of ours, ids checked
                        command,
                        env=self._environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        start_new_session=True,
                    )
                )
            except OSError as error:
                message = f"{command[0]} cannot be run ({error}): is Slurm's client on the PATH?"
                raise BackendError(message) from error
            try:
                out, err = process.communicate(text.encode(), timeout=self._time_limit_s)
            except subprocess.TimeoutExpired as error:
                message = f"{command[0]} did not answer within {self._time_limit_s:g} s"
                raise BackendError(message) from error
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        words = err.decode(errors="replace").strip()
        if process.returncode or "Invalid job format" in words:
            message = f"{command[0]} failed (exit code {process.returncode}): {words}"
            raise BackendError(message)
        return out.decode(errors="replace")


def checked(job: str) -> str:
    """Return the job id, which then is safe to stand in an argument vector.

    Raises:
        InputError: it is not a Slurm job id.
    """
    if not _JOB_ID.fullmatch(job):
        message = f"expected a Slurm job id such as 1234 or 1234_5, got {job!r}"
        raise InputError(message)
    return job
