"""Every run of a reproduction in one Parquet file, with where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from evalstop import __version__
from evalstop.experiments.spec import spec_hash, spec_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.experiments.cell_run import Row
    from evalstop.experiments.spec import Plan

__all__ = ["write_parquet"]


def write_parquet(
    path: Path, plans: Sequence[Plan], rows: Sequence[Row], *, commit: str | None
) -> None:
    """Write a row for each run: its cell's labels and full description, seed, and all figures.

    No times of day and no durations: the same spec and code give the same bytes.
    """
    described = {spec_hash(cell): (cell, spec_text(cell)) for plan in plans for cell in plan.cells}
    table = pa.Table.from_pylist(
        [
            {
                **row,
                "scheduler": described[row["cell"]][0].scheduler,
                "rule": described[row["cell"]][0].rule,
                "spec": described[row["cell"]][1],
            }
            for row in rows
        ]
    )
    about = {"evalstop_version": __version__, "evalstop_commit": commit or "unknown"}
    pq.write_table(table.replace_schema_metadata(about), path, compression="zstd")
