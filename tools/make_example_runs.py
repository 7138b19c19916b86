"""Make the built-in example runs from the shared collection of public training runs.

    python tools/make_example_runs.py ../shared/traces src/evalstop/traces/data

Takes the series whose source states a licence that permits redistribution (see `PERMISSIVE`);
whatever is unknown, not stated or copyleft stays out. Numbers are facts; the attribution names
repository, path, commit and licence of each file they came from.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PERMISSIVE = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC0-1.0", "ISC")
"""Licences that permit redistribution with attribution; a note in brackets may follow."""

COLUMNS = {
    "trace_id": pa.string(),
    "job_type": pa.string(),
    "metric": pa.string(),
    "greater_is_better": pa.bool_(),
    "step": pa.int64(),
    "score": pa.float64(),
    "stderr": pa.float64(),
    "n_items": pa.int64(),
    "label": pa.string(),
    "primary": pa.bool_(),
}


def is_permissive(licence: str) -> bool:
    """Return whether a licence is stated and permits redistribution."""
    return licence.split(" (", maxsplit=1)[0] in PERMISSIVE


def main(shared: Path, target: Path) -> None:
    """Write ``public_runs.parquet`` and ``ATTRIBUTION.md`` into ``target``."""
    with (shared / "index.csv").open(newline="", encoding="utf-8") as file:
        index = {row["trace_id"]: row for row in csv.DictReader(file)}
    rows = [
        row
        for row in pq.read_table(shared / "public_runs.parquet").to_pylist()
        if is_permissive(row["licence"])
    ]
    table = pa.table({name: _column(rows, index, name, kind) for name, kind in COLUMNS.items()})
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, target / "public_runs.parquet", compression="zstd")
    attribution = _attribution(rows, len(index))
    (target / "ATTRIBUTION.md").write_text(attribution, encoding="utf-8")


def _column(
    rows: list[dict[str, Any]], index: dict[str, dict[str, str]], name: str, kind: pa.DataType
) -> pa.Array:
    if name == "label":
        return pa.array([index[row["trace_id"]]["label"] for row in rows], kind)
    if name == "primary":
        return pa.array([index[row["trace_id"]]["primary"] == "1" for row in rows], kind)
    if name == "step":
        return pa.array([int(row["step"]) for row in rows], kind)
    return pa.array([row["value" if name == "score" else name] for row in rows], kind)


def _attribution(rows: list[dict[str, Any]], all_series: int) -> str:
    series: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for row in rows:
        key = (row["source_repo"], row["source_path"], row["commit"], row["licence"])
        series[key].add(row["trace_id"])
    count = len({row["trace_id"] for row in rows})
    lines = [
        "# Where the built-in runs come from",
        "",
        (
            f"{count} evaluation series ({len(rows)} points) of public training runs, of a "
            f"collection of {all_series}: those whose source states a permissive licence. The "
            "numbers are unchanged; column names are ours, and `stderr` is the binomial error of "
            "`n_items` (add-one smoothed) where the evaluation set's size is known. `label` "
            "describes the whole curve by a stated rule and was never given to a stop rule."
        ),
        "",
        "| repository | path | commit | licence | series |",
        "|---|---|---|---|---:|",
    ]
    lines += [
        f"| {repo} | {path} | {commit} | {licence} | {len(names)} |"
        for (repo, path, commit, licence), names in sorted(series.items())
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
