"""Custody of checkpoints: find them, tell whole ones from torn ones, hold on to the best.

Belongs here: reading checkpoint folders, here and in object stores, verifying and pinning them,
which pins to keep, and which URLs may be touched at all.
Never here: loading weights, deciding on jobs, or writing into a trainer's own folder.
"""

from __future__ import annotations

from evalstop.custody.allow import Allowed, is_url, locate
from evalstop.custody.files import FileCustody
from evalstop.custody.find import Found, find
from evalstop.custody.object_store import ObjectCustody
from evalstop.custody.retain import scored_pins, to_keep
from evalstop.custody.verify import inspect

__all__ = [
    "Allowed",
    "FileCustody",
    "Found",
    "ObjectCustody",
    "find",
    "inspect",
    "is_url",
    "locate",
    "scored_pins",
    "to_keep",
]
