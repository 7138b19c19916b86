"""Keep one run of one job: start it, pass on its end, and prove that nothing of it is left.

Started by the local backend as a script of its own (standard library only, so that it is
up in milliseconds), detached from the controller, which may die and come back. All it says and
hears lies in its folder:

    order.json     what to run (written before it starts)
    lock           held while a supervisor lives; so two of them never run one job
    process.json   the job's process, written before it may execute anything
    stop.json      the wish to end it, with the grace; SIGUSR1 says "look at once"
    exit.json      the proof: the exit code, written when no process of the run is left
    output.log     what the job printed

The proof rests on the kernel: as child subreaper this process inherits every descendant, also
those that left the process group or forked twice, and ``waitpid`` says ECHILD when none is left.
Should a supervisor itself be killed, another one adopts the run and finds its processes by the
token in their environment; it cannot learn the exit code then.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

__all__ = ["TOKEN", "boot_id", "boot_seconds", "main", "start_ticks", "token_processes", "write"]

TOKEN = "EVALSTOP_RUN"  # noqa: S105 -- the name of a variable, not a secret
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.2
_KILL_EVERY_S = 0.05
_LOCK_TRIES = 20
_LEFTOVER_GRACE_S = 5.0
_NOT_EXECUTABLE = 127
_WATCHED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def write(path: Path, data: dict[str, object]) -> None:
    """Write JSON aside, sync it, and put it in place in one step; nobody else may read it.

    An order holds the job's environment: its token, and the keys its owner gave it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(number, "w", encoding="utf-8") as file:  # noqa: PTH123 -- Path opens no descriptor
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def boot_id() -> str:
    """Return what tells this boot of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def boot_seconds() -> float:
    """Return seconds since the machine started, which no clock jump moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_ticks(pid: int) -> int | None:
    """Return when process ``pid`` started, in ticks since boot; None if it does not live.

    A pid is used again; pid and start together are not. A zombie counts as dead.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rsplit(b")", 1)[1].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def token_processes(token: str) -> list[int]:
    """Return the living processes that carry ``token`` in their environment."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0") and start_ticks(pid) is not None:
            found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def descendants(root: int) -> list[int]:
    """Return every living process below ``root``, in no order."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
    found, frontier = [], [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def send(pids: list[int], *signals: signal.Signals) -> None:
    """Send the signals to each process that still lives."""
    for pid in pids:
        for one in signals:
            try:
                os.kill(pid, one)
            except OSError:
                break


class _Run:
    """One run: its folder, and what has been seen of it so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
        self.main = 0
        self.exit_code: int | None = None
        self.main_gone = False
        self.termed = False
        self.kill_at = float("inf")

    # -- starting

    def launch(self) -> None:
        """Fork the job, note its process, and only then let it execute."""
        gate_read, gate_write = os.pipe()
        self.main = os.fork()
        if self.main == 0:
            os.close(gate_write)
            self._become_job(gate_read)
        os.close(gate_read)
        write(
            self.folder / "process.json",
            {"pid": self.main, "started": start_ticks(self.main), "boot": boot_id()},
        )
        os.write(gate_write, b"!")
        os.close(gate_write)

    def _become_job(self, gate: int) -> None:
        try:
            if not os.read(gate, 1):  # the supervisor died before it had noted us
                os._exit(_NOT_EXECUTABLE)
            os.close(gate)
            os.setsid()
            for one in _WATCHED:
                signal.signal(one, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            launch = self.order["launch"]
            out = os.open(self.folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(launch.get("cwd") or self._own_place())
            environment = dict(os.environ) | launch.get("environment", {})
            environment |= self.order["environment"]
            os.execvpe(launch["command"][0], launch["command"], environment)  # noqa: S606 -- an argument vector, no shell
        except (OSError, ValueError) as error:
            # Not the whole launch: its environment holds secrets, and many may read the output.
            words = " ".join(self.order["launch"]["command"])
            os.write(2, f"evalstop: cannot run {words!r}: {error}\n".encode())
        os._exit(_NOT_EXECUTABLE)

    def _own_place(self) -> Path:
        """Return where a job that names no folder runs: one of its own, the same each time.

        Not among the files of its runs: what it writes there must not be taken for one of ours.
        """
        place = self.folder.parent / "place" / "work"
        place.mkdir(parents=True, exist_ok=True)
        return place

    # -- watching

    def processes(self) -> list[int]:
        """Return what lives of the run now."""
        if self.main:
            return descendants(os.getpid())
        return token_processes(self.order["token"])

    def reap(self) -> bool:
        """Collect the dead; return whether any process of the run may still live."""
        if not self.main:
            return bool(self.processes())
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main:
                self.exit_code = os.waitstatus_to_exitcode(status)
                self.main_gone = True

    def press(self) -> None:
        """End the run as far as it is wished by now: SIGTERM once, SIGKILL after the grace."""
        stop = self.folder / "stop.json"
        if not self.termed and (stop.exists() or self.main_gone):
            grace = _LEFTOVER_GRACE_S
            if stop.exists():
                grace = float(json.loads(stop.read_text(encoding="utf-8"))["grace_s"])
            send(self.processes(), signal.SIGTERM, signal.SIGCONT)
            self.termed = True
            self.kill_at = time.monotonic() + grace
        if time.monotonic() >= self.kill_at:
            send(self.processes(), signal.SIGKILL)

    def keep(self) -> None:
        """Watch until nothing of the run is left, then write the proof."""
        while self.reap():
            self.press()
            wait = _LOOK_EVERY_S
            if self.kill_at != float("inf"):
                wait = min(wait, max(_KILL_EVERY_S, self.kill_at - time.monotonic()))
            signal.sigtimedwait(_WATCHED, wait)
        write(
            self.folder / "exit.json",
            {"exit_code": self.exit_code, "ended_at": boot_seconds()},
        )


def _locked(folder: Path) -> bool:
    """Take the run's lock; return False where another supervisor has it.

    Whoever asks whether a supervisor lives holds the lock for an instant: hence the retries.
    """
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_KILL_EVERY_S)
        else:
            return True
    return False


def main(folder: Path) -> None:
    """Keep the run in ``folder``, in a process that is nobody's child."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if not _locked(folder) or (folder / "exit.json").exists():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = _Run(folder)
    if not (folder / "process.json").exists():
        run.launch()
    run.keep()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
