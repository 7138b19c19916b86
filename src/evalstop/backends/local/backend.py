"""Jobs as process groups on this machine: on its GPUs, or on named slots where it has none.

Every run has a folder and a supervisor process of its own (`supervisor`), so
that the controller may die at any point: whoever opens the same folder again finds the runs, and
learns the exit codes of those that ended meanwhile. Nothing is kept in memory that the folder
does not hold.

A GPU is in a run's hands from the moment its order is written until the supervisor has proven
that no process of the run lives and, where NVML is there, its memory is below a floor. A proof
that does not come in time puts the GPUs in quarantine; one that comes later brings them back.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from evalstop.backends.local import supervisor
from evalstop.backends.local.supervisor import boot_id, boot_seconds, start_ticks
from evalstop.core.errors import BackendError
from evalstop.ports import JobReport, Listing, Order, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LocalBackend"]

_START_TIMEOUT_S = 60.0
"""A supervisor is up in milliseconds; on a machine that does ten things at once, in seconds."""


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """order.json: what the supervisor reads (launch, environment, token) and what we need."""

    key: str
    job: str
    attempt: int
    devices: tuple[str, ...]
    token: str
    environment: dict[str, str]
    launch: dict[str, object]
    written_at: float


class _Run:
    """One run, seen through its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order = msgspec.json.decode((folder / "order.json").read_bytes(), type=_Written)
        self.released = False
        self.exit_code: int | None = None
        self.ended_at = 0.0

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def supervised(self) -> bool:
        """Whether a supervisor lives: it holds the lock."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def process(self) -> int | None:
        """Return the pid of the job's first process if it lives."""
        try:
            noted = msgspec.json.decode((self.folder / "process.json").read_bytes())
        except FileNotFoundError:
            return None
        if noted["boot"] != boot_id() or start_ticks(noted["pid"]) != noted["started"]:
            return None
        return int(noted["pid"])


class LocalBackend:
    """Runs jobs on ``devices`` of this machine, under ``folder``.

    Args:
        folder: where runs keep their state and their logs.
        devices: names of the GPUs or slots; a job sees its own in CUDA_VISIBLE_DEVICES and
            EVALSTOP_DEVICES.
        release_timeout_s: seconds after the grace until unproven GPUs are quarantined.
        memory_in_use: MiB in use on a device, None where unknown; see `nvml`.
        memory_floor_mib: a device is free when less than this is in use.
    """

    def __init__(
        self,
        folder: Path,
        devices: Sequence[str],
        *,
        release_timeout_s: float = 30.0,
        memory_in_use: Callable[[str], float | None] = lambda _: None,
        memory_floor_mib: float = 500.0,
    ) -> None:
        self._folder = folder
        self._devices = tuple(devices)
        self._release_timeout_s = release_timeout_s
        self._memory_in_use = memory_in_use
        self._memory_floor_mib = memory_floor_mib
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._opened_at = boot_seconds()
        folder.mkdir(parents=True, exist_ok=True)
        self._find_runs()

    def _find_runs(self) -> None:
        for written in sorted(self._folder.glob("*/*/order.json")):
            folder = written.parent
            if not (folder / "forgotten").exists():
                job = unquote(folder.parent.name)
                old = self._runs.get(job)
                if old is None or old.order.attempt < int(folder.name):
                    self._runs[job] = _Run(folder)

    def run_folder(self, job: str, attempt: int) -> Path:
        """Return where a run keeps its state and its ``output.log``."""
        name = quote(job, safe=" ")
        if name.strip(".") == "":
            message = f"a job cannot be called {job!r}"
            raise BackendError(message)
        return self._folder / name / str(attempt)

    # -- orders

    def start(self, order: Order) -> None:
        """Begin to run a job on free devices; the same attempt twice runs once."""
        with self._lock:
            run = self._runs.get(order.job)
            if run is None or run.order.attempt < order.attempt:
                run = self._admit(order, run)
                self._runs[order.job] = run
            if run.order.attempt == order.attempt and not (
                run.has("process.json") or run.has("exit.json")
            ):
                self._supervise(run)

    def _admit(self, order: Order, old: _Run | None) -> _Run:
        if order.launch is None:
            message = f"{order.job}: nothing is known of how to run it"
            raise BackendError(message)
        if old is not None and not self._is_released(old):
            message = f"{order.job}: attempt {old.order.attempt} still holds its GPUs"
            raise BackendError(message)
        free = self._free_devices()
        if len(free) < order.gpus:
            message = f"{order.job} asks for {order.gpus} GPUs, {len(free)} are free"
            raise BackendError(message)
        devices = free[: order.gpus]
        folder = self.run_folder(order.job, order.attempt)
        if not (folder / "order.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # a start that did not get this far
            folder.mkdir(parents=True)
            token = f"{folder}:{order.key}"
            names = ",".join(devices)
            written = _Written(
                key=order.key,
                job=order.job,
                attempt=order.attempt,
                devices=devices,
                token=token,
                environment={
                    supervisor.TOKEN: token,
                    "EVALSTOP_DEVICES": names,
                    "CUDA_VISIBLE_DEVICES": names,
                    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order that NVML counts in
                },
                launch=msgspec.to_builtins(order.launch),
                written_at=boot_seconds(),
            )
            supervisor.write(folder / "order.json", msgspec.to_builtins(written))
        return _Run(folder)

    def _supervise(self, run: _Run) -> None:
        command = [sys.executable, "-I", "-S", supervisor.__file__, str(run.folder)]
        with (run.folder / "supervisor.log").open("ab") as log:
            subprocess.run(  # noqa: S603 -- our own script, in an argument vector
                command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def stop(self, order: Order) -> None:
        """SIGTERM to the whole run, grace, SIGKILL. The first stop sets the grace."""
        with self._lock:
            run = self._runs.get(order.job)
            if run is None or run.has("exit.json"):
                return
            if not run.has("stop.json"):
                supervisor.write(
                    run.folder / "stop.json",
                    {"key": order.key, "grace_s": order.grace_s, "asked_at": boot_seconds()},
                )
            if not run.supervised():
                self._supervise(run)
            self._wake(run)

    def _wake(self, run: _Run) -> None:
        """Tell the supervisor to look at once; it looks five times a second anyway."""
        process = run.process()
        if process is None:
            return
        with suppress(OSError):  # it may end at any moment
            stat = Path(f"/proc/{process}/stat").read_bytes()
            parent = int(stat.rsplit(b")", 1)[1].split()[1])
            command = Path(f"/proc/{parent}/cmdline").read_bytes()
            if os.fsencode(str(run.folder)) in command.split(b"\0"):
                os.kill(parent, signal.SIGUSR1)

    def preempt(self, order: Order) -> None:
        """Take the run off its devices; trainers save at SIGTERM, within the grace."""
        self.stop(order)

    def request_save(self, order: Order) -> None:
        """Send the launch's save signal to the job's first process, if it has one."""
        run = self._runs.get(order.job)
        process = run.process() if run is not None else None
        if run is not None and process is not None and run.order.launch.get("save_signal"):
            os.kill(process, signal.Signals[str(run.order.launch["save_signal"])])

    # -- what is there

    def listing(self) -> Listing:
        """Read every run's folder again."""
        with self._lock:
            reports = tuple(self._report(run) for run in self._runs.values())
        lost = tuple(
            device
            for report in reports
            if report.state is RunState.QUARANTINED
            for device in report.devices
        )
        return Listing(jobs=reports, gpus=len(self._devices) - len(lost), quarantined=lost)

    def _report(self, run: _Run) -> JobReport:
        state, reason = self._state(run)
        return JobReport(
            job=run.order.job,
            attempt=run.order.attempt,
            state=state,
            gpus=len(run.order.devices),
            devices=run.order.devices,
            exit_code=run.exit_code,
            stopped=run.has("stop.json"),
            reason=reason,
        )

    def _state(self, run: _Run) -> tuple[RunState, str]:
        if self._is_released(run):
            return RunState.RELEASED, "" if run.exit_code is not None else "exit code unknown"
        if run.has("exit.json") and not run.has("stop.json"):
            ended_ago = boot_seconds() - run.ended_at
            return self._releasing(ended_ago, "GPU memory is still in use")
        if run.has("stop.json"):
            self._adopt(run)
            asked = msgspec.json.decode((run.folder / "stop.json").read_bytes())
            return self._releasing(boot_seconds() - asked["asked_at"] - asked["grace_s"], "")
        if run.process() is not None:
            return RunState.RUNNING, ""
        return self._between(run)

    def _releasing(self, waited_s: float, reason: str) -> tuple[RunState, str]:
        if waited_s > self._release_timeout_s:
            return RunState.QUARANTINED, f"not released {waited_s:.0f} s after its end or grace"
        return RunState.RELEASING, reason

    def _between(self, run: _Run) -> tuple[RunState, str]:
        """Judge a run whose first process does not live: not yet, or not any more."""
        if run.has("process.json"):
            self._adopt(run)
            return RunState.RELEASING, "its first process has ended"
        # Should the last controller have died before it began: ours is only about to send it again.
        waited_s = boot_seconds() - max(run.order.written_at, self._opened_at)
        if waited_s > _START_TIMEOUT_S and not run.supervised():
            supervisor.write(run.folder / "exit.json", {"exit_code": None, "ended_at": 0.0})
        return RunState.QUEUED, "starting"

    def _adopt(self, run: _Run) -> None:
        """Where a run's supervisor was killed, have another one end what is left and prove it.

        One that is being killed holds its lock for a moment still, so this is asked again at
        each look. A supervisor writes its proof before it lets go of the lock: hence the order.
        """
        if not run.supervised() and not self._is_released(run):
            self._supervise(run)

    def _is_released(self, run: _Run) -> bool:
        if run.released:
            return True
        try:
            proof = msgspec.json.decode((run.folder / "exit.json").read_bytes())
        except FileNotFoundError:
            return False
        run.exit_code, run.ended_at = proof["exit_code"], proof["ended_at"]
        used = (self._memory_in_use(device) or 0.0 for device in run.order.devices)
        run.released = all(mib < self._memory_floor_mib for mib in used)
        return run.released

    def _free_devices(self) -> tuple[str, ...]:
        held = {
            device
            for run in self._runs.values()
            if not self._is_released(run)
            for device in run.order.devices
        }
        return tuple(device for device in self._devices if device not in held)

    def forget(self, job: str) -> None:
        """Drop a released run from the listing; its log stays."""
        with self._lock:
            run = self._runs.get(job)
            if run is not None and self._is_released(run):
                (run.folder / "forgotten").touch()
                del self._runs[job]
