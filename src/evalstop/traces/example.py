"""Public training runs that evalstop ships: real curves to try a rule on.

``data/public_runs.parquet`` is made by ``tools/make_example_runs.py`` of series whose licence
permits redistribution; ``data/ATTRIBUTION.md`` names repository, path, commit and licence of
each. ``example:`` names the runs that fine-tune a language model, each with its primary metric;
``example:all`` adds their other metrics and runs of classical reinforcement learning.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import ReadError
from evalstop.traces import longform
from evalstop.traces.tables import table_from_arrow

if TYPE_CHECKING:
    from evalstop.traces.series import Loaded

__all__ = ["PREFIX", "read_example"]

PREFIX = "example:"
_CLASSICAL = "rl-other"


def read_example(source: str) -> Loaded:
    """Read the built-in runs that ``example:`` or ``example:all`` names.

    Raises:
        ReadError: it names something else.
    """
    choice = source.removeprefix(PREFIX)
    if choice not in {"", "all"}:
        message = "expected example: (language-model runs) or example:all"
        raise ReadError(source, message)
    data = pq.read_table(Path(__file__).parent / "data" / "public_runs.parquet")
    if not choice:
        data = data.filter(pc.field("primary") & (pc.field("job_type") != _CLASSICAL))
    return longform.curves(table_from_arrow(data, source))
