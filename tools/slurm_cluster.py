"""A real Slurm cluster of this machine's own: two nodes with eight fake GPUs each.

Nothing here is a mock but the GPU device nodes, which are character devices with the numbers of
/dev/null. The cluster lives in one folder, listens on 127.0.0.1 on free ports, needs root (mknod,
slurmd) and Debian's packages (`.ci/slurm-packages`), starts in about a second, and is ended by the
process ids it started.

By hand, until Ctrl-C or SIGTERM (the folder then holds the logs):

    python tools/slurm_cluster.py FOLDER
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SlurmCluster", "missing_programs"]

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
NODES = 2
GPUS_A_NODE = 8
START_SECONDS = 300.0
END_SECONDS = 60.0

# Backfill is asked to look at once: a test should not wait for a scheduler's default patience.
# cred_expire bounds how long a requeued job waits before it may start again (default 121 s), and
# how long a busy machine may take from the start of a job to its node's consent.
# MessageTimeout bounds how long a busy controller may take for an answer, SlurmdTimeout how long a
# busy node may be silent before its jobs are taken for lost, BatchStartTimeout how long it may take
# to begin one, and UnkillableStepTimeout to end one before it is drained.
# KillWait: a job that ignores SIGTERM is killed after 5 s, not 30.
CONFIGURATION = """\
ClusterName=evalstop
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=10
CryptoType=crypto/munge
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
JobRequeue=1
KillWait=5
MinJobAge={min_job_age}
SlurmctldTimeout=300
SlurmdTimeout=300
InactiveLimit=0
MessageTimeout=10
TCPTimeout=10
BatchStartTimeout=300
UnkillableStepTimeout=600
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=8 RealMemory=8000 State=UNKNOWN
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1_port} Gres=gpu:h100:{gpus}
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2_port} Gres=gpu:h100:{gpus}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the Slurm programs this machine lacks; empty where the cluster can start."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def search_path() -> str:
    """Return PATH with the folders of system programs, which a user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class SlurmCluster:
    """One cluster in one folder; use it as a context manager.

    Args:
        folder: where everything lies; made if absent. Its path must be short (a unix socket
            lies inside) and readable by other users (munged checks).
        min_job_age: seconds that slurmctld keeps the record of an ended job.
        gpus_a_node: fake GPUs of each of the two nodes.
        node_prefix: put before slurmd's command, and so inherited by all jobs: taskset, nice.
    """

    def __init__(
        self,
        folder: Path,
        *,
        min_job_age: int = 300,
        gpus_a_node: int = GPUS_A_NODE,
        node_prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.min_job_age = min_job_age
        self.gpus_a_node = gpus_a_node
        self.node_prefix = tuple(node_prefix)
        self.environment = {
            **os.environ,
            "PATH": search_path(),
            "SLURM_CONF": str(folder / "etc/slurm.conf"),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start munged, slurmctld and both slurmd; return once both nodes are idle."""
        try:
            self._write()
            self._start("munged", *self._munged())
            self._await((self.folder / "run/munge.sock").exists, "munged")
            self.start_controller(fresh=True)
            for node in range(1, NODES + 1):
                self._start(f"slurmd-n{node}", *self.node_prefix, "slurmd", "-D", "-N", f"n{node}")
            self._await(self._nodes_are_idle, "both nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all jobs and all daemons that this object started, by their process ids."""
        if "slurmctld" in self._running:
            self.cancel_all_jobs()
        for name in [*sorted(self._running, reverse=True)]:
            self._end(name)

    def start_controller(self, *, fresh: bool = False) -> None:
        """Start slurmctld; ``fresh`` forgets the saved state."""
        self._start("slurmctld", "slurmctld", "-D", *(["-i"] if fresh else []))
        self._await(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld")

    def end_controller(self, *, kill: bool = False) -> None:
        """End slurmctld; ``kill`` gives it no chance to save its state."""
        self._end("slurmctld", signal.SIGKILL if kill else signal.SIGTERM)

    def await_saved(self, job: str) -> None:
        """Wait until slurmctld has saved a job: a kill -9 before that loses what is new."""
        told = time.time()
        self.run("scontrol", "update", f"JobId={job}", "AdminComment=save this")
        saved = self.folder / "state/job_state"
        self._await(lambda: saved.exists() and saved.stat().st_mtime > told, f"job {job} saved")

    def run(
        self, *command: str, check: bool = True, seconds: float = 300.0, tries: int = 10
    ) -> str:
        """Run a client command and return what it printed.

        Raises:
            RuntimeError: it failed, and ``check`` asked to be told.
        """
        try:
            done = subprocess.run(  # noqa: S603 -- our own test cluster
                command,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            if check:
                raise
            return ""
        dropped = "Socket timed out on send/recv" in done.stderr  # the controller was too busy
        if dropped and tries > 1 and command[0] != "sbatch":
            return self.run(*command, check=check, seconds=seconds, tries=tries - 1)
        if check and done.returncode:
            message = f"{' '.join(command)} failed ({done.returncode}): {done.stderr}"
            raise RuntimeError(message)
        return done.stdout

    def version(self) -> tuple[int, ...]:
        """Return Slurm's version: (22, 5) of Debian 12, (24, 11) of Debian 13."""
        words = self.run("slurmd", "-V").split()[-1].split(".")
        return tuple(int(word) for word in words[:2])

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script and return the job's id."""
        path = self.folder / f"jobs/script-{secrets.token_hex(4)}.sh"
        path.write_text(script)
        return self.run("sbatch", "--parsable", f"--chdir={self.folder}/jobs", *options, str(path))[
            :-1
        ]

    def state(self, job: str) -> str:
        """Return a job's state as Slurm names it."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith("JobState="))

    def await_state(self, job: str, *states: str, seconds: float = 300.0) -> str:
        """Wait until a job is in one of these states and return it.

        Raises:
            TimeoutError: it was not, in time.
        """
        self._await(lambda: self.state(job) in states, f"job {job} in {states}", seconds)
        return self.state(job)

    def _write(self) -> None:
        for name in ("etc", "state", "spool/n1", "spool/n2", "log", "run", "dev", "jobs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "run").chmod(0o755)
        for number in range(self.gpus_a_node):
            device = self.folder / f"dev/fakegpu{number}"
            if not device.exists():
                os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
        key = self.folder / "run/munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
        controller, n1, n2 = free_port(), free_port(), free_port()
        (self.folder / "etc/slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder,
                controller_port=controller,
                n1_port=n1,
                n2_port=n2,
                min_job_age=self.min_job_age,
                gpus=self.gpus_a_node,
            )
        )
        if self.version() >= (23, 11):
            # It wants cgroups whether a plugin uses them or not, and containers have none.
            (self.folder / "etc/cgroup.conf").write_text("CgroupPlugin=disabled\n")
        devices = f"{self.folder}/dev/fakegpu[0-{self.gpus_a_node - 1}]"
        (self.folder / "etc/gres.conf").write_text(
            f"NodeName=n[1-2] Name=gpu Type=h100 File={devices}\n"
        )

    def _munged(self) -> tuple[str, ...]:
        run = self.folder / "run"
        return (
            "munged",
            "--foreground",
            "--force",
            f"--key-file={run}/munge.key",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={run}/munged.log",
            f"--seed-file={run}/munged.seed",
            "--num-threads=2",
        )

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"log/{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(  # noqa: S603 -- our own test cluster
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._running.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)

    def cancel_all_jobs(self) -> None:
        """End every job and wait until none is left, or `END_SECONDS` are over."""
        ids = self.run("squeue", "-h", "-o", "%A", check=False).split()
        if ids:
            self.run("scancel", "--signal=KILL", "--full", *ids, check=False)
            self.run("scancel", *ids, check=False)
            deadline = time.monotonic() + END_SECONDS
            while time.monotonic() < deadline and self.run("squeue", "-h", check=False):
                time.sleep(0.1)

    def _nodes_are_idle(self) -> bool:
        return self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * NODES

    def _await(self, condition: object, what: str, seconds: float = START_SECONDS) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                message = f"{what}: not within {seconds:g} s; logs are in {self.folder}/log"
                raise TimeoutError(message)
            time.sleep(0.05)


def main() -> int:
    """Start a cluster in the folder named on the command line and keep it until a signal."""
    if len(sys.argv) != 2:  # noqa: PLR2004 -- the program and its folder
        print(__doc__, file=sys.stderr)  # noqa: T201 -- a command
        return 2
    if missing := missing_programs():
        print(f"missing programs: {', '.join(missing)}; see .ci/slurm-packages", file=sys.stderr)  # noqa: T201 -- a command
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with SlurmCluster(Path(sys.argv[1]).resolve()) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)  # noqa: T201 -- a command
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
