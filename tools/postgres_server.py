"""A PostgreSQL server of one's own, for tests and soaks: started, killed, and started again.

server = PostgresServer.make(folder)   # an empty folder; it must not run as root, and does not
server.address("postgres")             # postgresql:///postgres?host=...
server.kill()                          # all its processes at once, as when the power fails
server.start()
server.stop()
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from evalstop.backends.local.supervisor import start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PostgresServer"]

BINARIES = Path("/usr/lib/postgresql/15/bin")
START_S = 300
PLAIN = ("--no-locale", "--encoding=UTF8")
"""Whatever locale the environment names, installed or not."""


class PostgresServer:
    """A server in ``folder``, heard on a socket there and nowhere else.

    Args:
        folder: where it keeps everything; made by `make`.
        durable: with fsync; without it is quicker, and survives a kill all the same.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder, self.data = folder, folder / "data"
        self._durable = durable

    @classmethod
    def make(cls, folder: Path, *, durable: bool = False) -> PostgresServer:
        """Make the server in an empty folder and start it."""
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
        server = cls(folder, durable=durable)
        server.run(
            "initdb", "-D", server.data, "-A", "trust", "-U", "postgres", "--no-sync", *PLAIN
        )
        server.start()
        return server

    @classmethod
    @contextlib.contextmanager
    def temporary(cls) -> Iterator[PostgresServer]:
        """Make a server in a folder of its own; end it and remove the folder afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="evalstop-pg-", dir="/tmp"))  # short: holds a socket
        server = cls.make(folder)
        try:
            yield server
        finally:
            server.stop()
            shutil.rmtree(folder)

    def run(self, name: str, *words: object) -> None:
        """Run one of PostgreSQL's programs; it must succeed."""
        done = subprocess.run(  # noqa: S603 -- programs of PostgreSQL, in an argument vector
            [BINARIES / name, *map(str, words)],
            user="postgres" if os.geteuid() == 0 else None,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=False,
        )
        log = self.folder / "log"
        assert done.returncode == 0, log.read_text()[-2000:] if log.exists() else (name, words)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        fsync = "on" if self._durable else "off"
        options = f"-c listen_addresses= -c fsync={fsync} -k {self.folder}"
        log = self.folder / "log"
        self.run("pg_ctl", "-D", self.data, "-o", options, "-l", log, "-w", "-t", START_S, "start")

    def stop(self) -> None:
        """End the server."""
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def processes(self) -> list[int]:
        """Return its processes: they work in its data folder; ended ones have none any more."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and start_ticks(int(folder.name)) is not None:
                with contextlib.suppress(OSError):
                    if (folder / "cwd").readlink() == self.data:
                        found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """Kill all of it at once, as when the machine loses power."""
        while processes := self.processes():
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for left in [self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL*")]:
            left.unlink(missing_ok=True)  # they name a zombie, which nobody may have reaped yet

    def address(self, database: str) -> str:
        """Return where a database is reached."""
        return f"postgresql:///{database}?host={self.folder}&user=postgres"
