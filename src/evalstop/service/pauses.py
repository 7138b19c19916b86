"""What keeps answers quick in a process with many jobs and several threads.

Measured with 10,000 live jobs on two cores, before: a full garbage collection held every thread
up for 130 to 350 ms each time the heap had grown by a quarter; a reply waited 40 ms for the
reporter's delayed acknowledgement, since asyncio turns Nagle's algorithm off only on sockets that
name their protocol; and a thread that computes kept the interpreter lock for 5 ms at each hand-over
between the thread that decides and the one that answers.
"""

from __future__ import annotations

import gc
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["keep_pauses_short", "tcp_listener"]

_SWITCH_S = 0.0005
_OLDEST = 2


def tcp_listener() -> socket.socket:
    """Return an unbound listening socket whose connections send small answers at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener


def keep_pauses_short() -> None:
    """Set this process up for many threads and a large heap that lives long; once, when it stands.

    What has survived a full collection is known to be in use, so it is taken out of later ones:
    they look only at what came since. Frozen objects are freed as ever when their last reference
    goes; only a cycle that dies after it was frozen stays, and our own data has no cycles.
    """
    sys.setswitchinterval(_SWITCH_S)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    gc.collect()


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
