"""What every backend promises."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from evalstop.ports import CanPreempt, Launch, Order, RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalstop.ports import Backend, JobReport

__all__ = ["BackendContract", "eventually"]

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.25


def eventually(holds: Callable[[], bool], within_s: float) -> None:
    """Wait until ``holds()``; fail when it does not within ``within_s`` seconds.

    It is asked ever more rarely, up to four times a second: a backend that is asked all the time
    has none left to do what is waited for.
    """
    deadline, wait_s = time.monotonic() + within_s, _FIRST_WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"did not come true within {within_s} s"
        time.sleep(wait_s)
        wait_s = min(_LONGEST_WAIT_S, 1.5 * wait_s)


class BackendContract:
    """Subclass it, say how to make the backend and what to run on it.

    The backend has at least two GPUs, and nothing runs on it. ``within_s`` bounds every wait.
    """

    within_s = 60.0

    def backend(self) -> Backend:
        """Return an empty backend with two or more GPUs."""
        raise NotImplementedError

    def reopened(self, backend: Backend) -> Backend:
        """Return the same backend as a controller would find it after a kill -9."""
        raise NotImplementedError

    def lasting(self) -> Launch:
        """Return what runs until it is stopped, and goes at SIGTERM."""
        return Launch(command=("sleep", "300"), grace_s=5.0)

    def stubborn(self) -> Launch:
        """Return what runs until it is killed: it ignores SIGTERM."""
        return Launch(command=("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"))

    def ending(self, code: int) -> Launch:
        """Return what soon exits with ``code`` by itself."""
        return Launch(command=("sh", "-c", f"exit {code}"))

    # -- the words of the suite

    def report(self, backend: Backend, job: str) -> JobReport | None:
        """Return what the backend lists of ``job``."""
        return next((found for found in backend.listing().jobs if found.job == job), None)

    def reaches(self, backend: Backend, job: str, state: RunState) -> JobReport:
        """Wait until ``job`` is in ``state`` and return its report."""

        def there() -> bool:
            found = self.report(backend, job)
            return found is not None and found.state is state

        eventually(there, self.within_s)
        found = self.report(backend, job)
        assert found is not None
        return found

    def run(self, backend: Backend, launch: Launch, *, job: str = "a", gpus: int = 1) -> Order:
        """Start ``launch`` as ``job`` and wait until it runs or is over."""
        order = Order(key=f"1.{job}", job=job, attempt=1, gpus=gpus, launch=launch)
        backend.start(order)
        eventually(lambda: self._begun(backend, job), self.within_s)
        return order

    def _begun(self, backend: Backend, job: str) -> bool:
        found = self.report(backend, job)
        return found is not None and found.state is not RunState.QUEUED

    def close(self, backend: Backend) -> None:
        """Stop whatever the test left running."""
        for found in backend.listing().jobs:
            if found.state is not RunState.RELEASED:
                backend.stop(Order(key=f"9.{found.job}", job=found.job, grace_s=0.0))
                self.reaches(backend, found.job, RunState.RELEASED)

    # -- the promises

    def test_an_empty_backend_lists_its_gpus_and_no_jobs(self) -> None:
        """Capacity is known before anything runs."""
        listing = self.backend().listing()
        assert listing.gpus >= 2  # noqa: PLR2004 -- what the suite asks for
        assert not listing.jobs

    def test_a_started_job_is_listed_as_running_on_its_gpus(self) -> None:
        """Start shows in the listing, with attempt and GPUs."""
        backend = self.backend()
        self.run(backend, self.lasting(), gpus=2)
        found = self.reaches(backend, "a", RunState.RUNNING)
        assert (found.attempt, found.gpus) == (1, 2)
        self.close(backend)

    def test_the_same_start_twice_runs_once(self) -> None:
        """A re-sent command after a crash has no second effect."""
        backend = self.backend()
        order = self.run(backend, self.lasting())
        before = self.reaches(backend, "a", RunState.RUNNING)
        backend.start(order)
        listed = Counter(found.job for found in backend.listing().jobs)
        assert listed == {"a": 1}
        assert self.report(backend, "a") == before
        self.close(backend)

    def test_exit_codes_are_told(self) -> None:
        """0 and 3 come back as they were; the GPUs are proven free."""
        for code in (0, 3):
            backend = self.backend()
            self.run(backend, self.ending(code))
            assert self.reaches(backend, "a", RunState.RELEASED).exit_code == code

    def test_a_stopped_job_is_released(self) -> None:
        """Stop ends the run, and stopping again, or what never was, is no error."""
        backend = self.backend()
        self.run(backend, self.lasting())
        order = Order(key="2.0", job="a", grace_s=5.0)
        backend.stop(order)
        backend.stop(order)
        self.reaches(backend, "a", RunState.RELEASED)
        backend.stop(order)
        backend.stop(Order(key="3.0", job="never-was"))

    def test_what_ignores_sigterm_is_killed_after_the_grace(self) -> None:
        """Grace is bounded."""
        backend = self.backend()
        self.run(backend, self.stubborn())
        time.sleep(0.3)  # let it install its trap
        backend.stop(Order(key="2.0", job="a", grace_s=0.2))
        self.reaches(backend, "a", RunState.RELEASED)

    def test_jobs_side_by_side_share_no_device(self) -> None:
        """No GPU is in two allocations."""
        backend = self.backend()
        self.run(backend, self.lasting(), job="a")
        self.run(backend, self.lasting(), job="b")
        self.reaches(backend, "a", RunState.RUNNING)
        self.reaches(backend, "b", RunState.RUNNING)
        devices = Counter(name for found in backend.listing().jobs for name in found.devices)
        assert not devices or max(devices.values()) == 1
        self.close(backend)

    def test_a_released_job_can_be_forgotten(self) -> None:
        """Forgetting drops it from the listing; twice is no error."""
        backend = self.backend()
        self.run(backend, self.ending(0))
        self.reaches(backend, "a", RunState.RELEASED)
        backend.forget("a")
        backend.forget("a")
        eventually(lambda: self.report(backend, "a") is None, self.within_s)

    def test_running_jobs_survive_the_controller(self) -> None:
        """After a restart the job still runs, and can be stopped."""
        backend = self.backend()
        self.run(backend, self.lasting())
        self.reaches(backend, "a", RunState.RUNNING)
        backend = self.reopened(backend)
        self.reaches(backend, "a", RunState.RUNNING)
        backend.stop(Order(key="2.0", job="a"))
        self.reaches(backend, "a", RunState.RELEASED)

    def test_an_end_during_the_restart_is_not_lost(self) -> None:
        """A job that ends while no controller lives is reported with its exit code."""
        backend = self.backend()
        self.run(backend, self.ending(3))
        backend = self.reopened(backend)
        assert self.reaches(backend, "a", RunState.RELEASED).exit_code == 3  # noqa: PLR2004 -- as ended

    def test_a_preempted_job_can_be_started_again(self) -> None:
        """Preempt releases the GPUs; the next attempt runs."""
        backend = self.backend()
        if not isinstance(backend, CanPreempt):
            return
        self.run(backend, self.lasting())
        backend.preempt(Order(key="2.0", job="a"))
        self.reaches(backend, "a", RunState.RELEASED)
        backend.start(Order(key="3.0", job="a", attempt=2, gpus=1, launch=self.lasting()))
        found = self.reaches(backend, "a", RunState.RUNNING)
        assert found.attempt == 2  # noqa: PLR2004 -- as started
        self.close(backend)
