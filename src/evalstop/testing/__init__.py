"""Contract suites for whoever writes a detector, a backend, a store or a checkpoint store; fakes.

Subclass a suite, name how to make the thing, and pytest runs every promise of its port against
it. The fakes here pass the same suites. Belongs here: suites and fakes. Never here: tests of
evalstop's own behaviour, or anything that the product imports.
"""

from __future__ import annotations

from evalstop.testing.backend import BackendContract
from evalstop.testing.custody import CustodyContract
from evalstop.testing.detector import DetectorContract
from evalstop.testing.fakes import FakeBackend, FakeClock
from evalstop.testing.store import StoreContract

__all__ = [
    "BackendContract",
    "CustodyContract",
    "DetectorContract",
    "FakeBackend",
    "FakeClock",
    "StoreContract",
]
