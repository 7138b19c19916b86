"""Run jobs on a Ray cluster, through its Jobs API (extra ``ray``).

evalstop's own base schedulers decide; Ray carries out. Everything is kept by the cluster itself:
a restarted controller finds its jobs in Ray's list. An attempt is one Ray job, its name made of
the job's and the attempt's, so that a start sent twice runs once.

**Gangs.** A gang that fits on one node is a job with that many GPUs. A larger one is a small
driver that holds a placement group, all or nothing (`evalstop.backends.ray_gang`).

**Stopping.** Ray puts its own SIGTERM handler in the place of a driver's that was there before
``ray.init`` (ray#17308), and its actors, where the weights live, hear no signal. So the save is
not left to the signal: with the launch option ``stop=ask`` the training process is given its
grace to ask ``evalstop.client.should_stop()`` and leave by itself, and only then is the job
stopped. Without it the job is stopped at once: SIGTERM, then SIGKILL after the cluster's own
``RAY_JOB_STOP_WAIT_TIME_S``.

**Release** is proven: no living actor or worker of the job, its driver's supervisor included.
A job that has ended without that proof in time is quarantined.
"""

from __future__ import annotations

import hashlib
import shlex
import threading
import time
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import BackendError, MissingExtraError
from evalstop.ports import JobReport, Listing, Order, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RayBackend"]

_JOB, _ATTEMPT, _GPUS = "evalstop_job", "evalstop_attempt", "evalstop_gpus"
_ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_MOST = 10_000
_ASK = "ask"


class RayBackend:
    """A Ray cluster, seen through its dashboard.

    Args:
        address: of the dashboard, ``http://host:8265``.
        headers: sent with each request of the Jobs API, for a proxy say. Ray's own token settings
            (``RAY_AUTH_MODE=token`` with ``RAY_AUTH_TOKEN`` or its file) are heeded by Ray.
        namespace: whose jobs these are, where several installations share a cluster: each sees
            its own only.
        release_timeout_s: seconds an ended job may be without proof that its GPUs are free.
        monotonic: seconds that never go back.

    Raises:
        MissingExtraError: Ray is not installed.
        BackendError: the cluster does not answer.
    """

    def __init__(
        self,
        address: str,
        *,
        headers: Mapping[str, str] | None = None,
        namespace: str = "evalstop",
        release_timeout_s: float = 120.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            submission: Any = import_module("ray.job_submission")
            self._state: Any = import_module("ray.util.state")
        except ImportError as error:
            package = "ray"
            raise MissingExtraError(package, package) from error
        self._address = address
        self._namespace = namespace
        self._release_timeout_s = release_timeout_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stop_at: dict[str, float] = {}  # asked to leave by itself; when that ends
        self._ended_at: dict[str, float] = {}  # seen ended, proof of release still open
        self._proven: set[str] = set()
        self._quarantined: dict[str, int] = {}
        try:
            self._client: Any = submission.JobSubmissionClient(address, headers=dict(headers or {}))
        except Exception as error:
            message = f"no Ray dashboard answers at {address}: {error}"
            raise BackendError(message) from error

    # ---- commands ------------------------------------------------------------------------

    def start(self, order: Order) -> None:
        """Submit one attempt; the same one twice is one.

        Raises:
            BackendError: there is no command to run, or Ray refuses it.
        """
        launch = order.launch
        if launch is None:
            message = f"{order.job}: a Ray job needs a command to run"
            raise BackendError(message)
        name = self._name(order)
        if any(found.submission_id == name for found in self._listed()):
            return
        command, alone = list(launch.command), order.gpus
        largest = max((gpus for gpus in self._nodes().values()), default=0)
        if order.gpus > largest > 0:
            gang = files("evalstop.backends").joinpath("ray_gang.py").read_text()
            command = ["python", "-c", gang, str(order.gpus), str(largest), *command]
            alone = 0  # the gang's GPUs are those of its placement group
        words = shlex.join(command)
        place = f"cd {shlex.quote(launch.cwd)} && " if launch.cwd else ""
        self._ask(
            "submit a job to",
            lambda: self._client.submit_job(
                entrypoint=f"{place}exec {words}",
                submission_id=name,
                metadata={
                    _JOB: order.job,
                    _ATTEMPT: str(order.attempt),
                    _GPUS: str(order.gpus),
                    "evalstop_stop": launch.options.get("stop", ""),
                },
                runtime_env={"env_vars": dict(launch.environment)},
                entrypoint_num_gpus=alone or None,
            ),
        )

    def stop(self, order: Order) -> None:
        """Stop the newest attempt; one that is over, or never was, is no error."""
        found = self._newest().get(order.job)
        if found is None or _status(found) in _ENDED:
            return
        name = found.submission_id
        with self._lock:
            asked = name in self._stop_at
            if not asked and found.metadata.get("evalstop_stop") == _ASK and order.grace_s > 0:
                self._stop_at[name] = self._monotonic() + order.grace_s
                return
        if not asked:
            self._end(name)

    def preempt(self, order: Order) -> None:
        """Stop the run; it shows as released and can be started as the next attempt."""
        self.stop(order)

    def forget(self, job: str) -> None:
        """Delete all ended attempts of a job from Ray's list."""
        for found in self._listed():
            if found.metadata.get(_JOB) == job and _status(found) in _ENDED:
                name = found.submission_id
                self._ask("delete a job of", partial(self._client.delete_job, name))
                with self._lock:
                    self._proven.discard(name)
                    self._ended_at.pop(name, None)

    def _end(self, name: str) -> None:
        with self._lock:
            self._stop_at.pop(name, None)
        self._ask("stop a job of", lambda: self._client.stop_job(name))

    # ---- the listing ---------------------------------------------------------------------

    def listing(self) -> Listing:
        """Return the newest attempt of each of our jobs, and the GPUs of the living nodes.

        Raises:
            BackendError: the cluster does not answer.
        """
        newest = self._newest()
        self._end_the_overdue(newest)
        self._prove({found.submission_id: found for found in newest.values()})
        reports = tuple(self._report(found) for found in newest.values())
        with self._lock:
            lost = dict(self._quarantined)
        gpus = sum(self._nodes().values()) - sum(lost.values())
        names = tuple(f"{name}:{n}" for name, count in lost.items() for n in range(count))
        return Listing(jobs=reports, gpus=max(0, gpus), quarantined=names)

    def _end_the_overdue(self, newest: Mapping[str, Any]) -> None:
        now = self._monotonic()
        with self._lock:
            due = [name for name, at in self._stop_at.items() if at <= now]
        living = {f.submission_id for f in newest.values() if _status(f) not in _ENDED}
        for name in due:
            if name in living:
                self._end(name)
            else:
                with self._lock:
                    self._stop_at.pop(name, None)

    def _prove(self, jobs: Mapping[str, Any]) -> None:
        """Look for what is left of ended jobs, all in one request."""
        with self._lock:
            open_ = [
                name
                for name, found in jobs.items()
                if _status(found) in _ENDED and name not in self._proven
            ]
        if not open_:
            return
        actors = self._ask(
            "list the actors of",
            lambda: self._state.list_actors(
                address=self._address,
                limit=_MOST,
                filters=[("state", "!=", "DEAD")],
                raise_on_missing_output=False,  # the dead ones that the filter leaves out
            ),
        )
        if len(actors) >= _MOST:
            return  # some may be missing: nothing is proven
        names = {actor.name for actor in actors}
        drivers = {actor.job_id for actor in actors}
        now = self._monotonic()
        with self._lock:
            for name in open_:
                driver = jobs[name].job_id
                supervised = any(known and known.endswith(name) for known in names)
                if not supervised and (driver is None or driver not in drivers):
                    self._proven.add(name)
                    self._ended_at.pop(name, None)
                    self._quarantined.pop(name, None)
                    continue
                since = self._ended_at.setdefault(name, now)
                if now - since > self._release_timeout_s:
                    self._quarantined[name] = int(jobs[name].metadata.get(_GPUS, "0"))

    def _report(self, found: Any) -> JobReport:  # noqa: ANN401 -- Ray's own record
        name, status = found.submission_id, _status(found)
        with self._lock:
            if status not in _ENDED:
                leaving = name in self._stop_at
                state = RunState.QUEUED if status == "PENDING" else RunState.RUNNING
                state = RunState.RELEASING if leaving else state
            elif name in self._proven:
                state = RunState.RELEASED
            else:
                lost = name in self._quarantined
                state = RunState.QUARANTINED if lost else RunState.RELEASING
        return JobReport(
            job=found.metadata[_JOB],
            attempt=int(found.metadata.get(_ATTEMPT, "1")),
            state=state,
            gpus=int(found.metadata.get(_GPUS, "0")),
            exit_code=_exit_code(found) if status in _ENDED else None,
            stopped=status == "STOPPED",
            reason=(found.message or "")[:500],
        )

    def _newest(self) -> dict[str, Any]:
        newest: dict[str, Any] = {}
        for found in self._listed():
            job = found.metadata[_JOB]
            known = newest.get(job)
            if known is None or _attempt(known) < _attempt(found):
                newest[job] = found
        return newest

    def _listed(self) -> list[Any]:
        jobs = self._ask("list the jobs of", self._client.list_jobs)
        return [
            found
            for found in jobs
            if (found.submission_id or "").startswith(f"{self._namespace}-")
            and _JOB in (found.metadata or {})
        ]

    def _name(self, order: Order) -> str:
        """Return Ray's name of one start: any job name is allowed, Ray's are not that free.

        The order's key is in it: Ray's own supervisor of a name that has just been deleted may
        kill the next job of that name.
        """
        told = f"{order.job}\0{order.attempt}\0{order.key}".encode()
        return f"{self._namespace}-{hashlib.sha256(told).hexdigest()[:32]}"

    def _nodes(self) -> dict[str, int]:
        """Return the GPUs of each living node."""
        # Filtered here: with a filter, Ray takes the nodes it leaves out for lost output.
        nodes = self._ask(
            "list the nodes of",
            lambda: self._state.list_nodes(address=self._address, limit=_MOST),
        )
        return {
            node.node_id: int(node.resources_total.get("GPU", 0))
            for node in nodes
            if node.state == "ALIVE"
        }

    def _ask(self, what: str, request: Callable[[], Any]) -> Any:  # noqa: ANN401 -- Ray's answer
        try:
            return request()
        except Exception as error:
            message = f"could not {what} the Ray cluster at {self._address}: {error}"
            raise BackendError(message) from error


def _attempt(found: Any) -> int:  # noqa: ANN401 -- Ray's own record
    return int(found.metadata.get(_ATTEMPT, "1"))


def _status(found: Any) -> str:  # noqa: ANN401 -- Ray's own record
    return str(getattr(found.status, "value", found.status))


def _exit_code(found: Any) -> int | None:  # noqa: ANN401 -- Ray's own record
    code = getattr(found, "driver_exit_code", None)
    if code is None and _status(found) == "SUCCEEDED":
        return 0
    return code if code is None else int(code)
