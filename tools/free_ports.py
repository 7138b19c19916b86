"""Ports for servers that are named before they run, and that are started again on the same port.

A port that the kernel gives (port 0) and that is let go again may be given to anybody until the
server is up, or while it is down: any connection of any program on this machine may get it. So
these come from below the range that the kernel takes from, and each is kept from other processes
that ask here by the name of a socket, until the process that asked ends.
"""

from __future__ import annotations

import socket
from pathlib import Path
from random import SystemRandom

__all__ = ["free_port"]

LOWEST = 10_000
"""Below lie the ports of services."""

USUAL_RANGE = (32_768, 60_999)
FEWEST = 1_000
"""With fewer ports below the kernel's range, its own are taken all the same."""

TRIES = 10_000

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port on 127.0.0.1 that nobody has, and that is given to nobody else here.

    Raises:
        OSError: there is none.
    """
    ports, random = _candidates(), SystemRandom()
    for _ in range(TRIES):
        port = random.choice(ports)
        if _is_free(port) and _reserved(port):
            return port
    message = f"no free port found from {ports[0]} to {ports[-1]}"
    raise OSError(message)


def _candidates() -> range:
    try:
        first, last = map(int, RANGE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = USUAL_RANGE
    return range(LOWEST, first) if first - LOWEST >= FEWEST else range(LOWEST, last + 1)


def _is_free(port: int) -> bool:
    """Whether a server could listen there, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _reserved(port: int) -> bool:
    """Take the name that stands for the port; the kernel frees it when this process ends."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0evalstop-port-{port}")
    except OSError:
        name.close()
        return False
    name.detach()  # left open on purpose; not inherited by programs started from here
    return True
