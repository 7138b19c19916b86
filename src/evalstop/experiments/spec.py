"""What is to be run: frozen, hashable by content, and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import msgspec
from msgspec import Struct

from evalstop.workloads.scenario import Scenario

__all__ = ["Cell", "Mode", "Plan", "spec_hash", "spec_text"]

Mode = Literal["stop", "deprioritise"]


class Cell(Struct, frozen=True, kw_only=True):
    """One setting of one experiment: everything that decides its figures but the seed.

    Attributes:
        suite: the experiment it belongs to.
        labels: what sets it apart within the suite, for tables and figures.
        scenario: workload and cluster.
        scheduler: base scheduler, as a SPEC.
        rule: stop rule, as a SPEC; "none" for the control.
        mode: what an alarm does.
        trace_jobs: jobs of the arrival trace in place of the scenario's arrivals; 0: none.
    """

    suite: str
    labels: dict[str, str | float]
    scenario: Scenario
    scheduler: str
    rule: str
    mode: Mode = "stop"
    trace_jobs: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """A suite's cells and its seeds."""

    suite: str
    title: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]


def spec_hash(cell: Cell) -> str:
    """Return 16 hexadecimal digits that change whenever a result could."""
    return hashlib.sha256(spec_text(cell).encode()).hexdigest()[:16]


def spec_text(described: Struct) -> str:
    """Return a description as JSON with its keys in order: equal descriptions, equal text."""
    return json.dumps(msgspec.to_builtins(described, str_keys=True), sort_keys=True)
