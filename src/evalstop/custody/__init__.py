"""Custody of checkpoints: find them, tell whole ones from torn ones, hold on to the best.

Belongs here: reading checkpoint folders, verifying and pinning them, and which pins to keep.
Never here: loading weights, deciding on jobs, or writing into a trainer's own folder.
"""

from __future__ import annotations

from evalstop.custody.files import FileCustody
from evalstop.custody.find import Found, find
from evalstop.custody.retain import scored_pins, to_keep
from evalstop.custody.verify import inspect

__all__ = ["FileCustody", "Found", "find", "inspect", "scored_pins", "to_keep"]
