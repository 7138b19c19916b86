"""What runs left behind: readers of eval histories and of cluster arrivals, and replay.

Belongs here: one module a format, each turning files into `Curve`s and nothing else; the choice
of the reader by content; `replay`, which feeds curves to rules. Never here: a rule, a scheduler,
polling (that is ``feedback``), or a guess at a metric's direction.
"""

from __future__ import annotations

from evalstop.traces.series import Curve, Loaded, Series, SkippedPoint

__all__ = ["Curve", "Loaded", "Series", "SkippedPoint"]
