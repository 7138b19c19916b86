"""The lease of the one active controller on a machine: a lock that dies with its process.

No clock is involved, so none can jump: the kernel gives the lock away when the holder is gone,
kill -9 included. A holder that is merely stopped keeps it; and even one that lost it in some way
could do no harm, for its next write meets a sequence that is taken.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileLease"]

_TRY_EVERY_S = 0.1


class FileLease:
    """`evalstop.ports.Lease` by ``flock`` on the file ``path``, which tells who holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` seconds for the lock."""
        if self._file is not None:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(file)
                    return False
                time.sleep(min(_TRY_EVERY_S, max(0.0, deadline - time.monotonic())))
            else:
                os.ftruncate(file, 0)
                os.write(file, f"{os.getpid()}\n".encode())
                self._file = file
                return True

    def held(self) -> bool:
        """Return whether it is held."""
        return self._file is not None

    def release(self) -> None:
        """Give it up."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
