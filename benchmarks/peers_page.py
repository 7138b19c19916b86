"""The whole grid of the detection benchmark, other libraries included, and docs/peers.md from it.

    pip install 'evalstop[peers]'
    python benchmarks/peers_page.py                        # all of it: about 20 minutes, one core
    python benchmarks/peers_page.py --part "slow rules"    # these again, the rest as saved
    python benchmarks/peers_page.py --from-cells           # the page again, from the saved cells

Every number has the seed below. Cells go to docs/peers/cells.parquet, one row a rule and cell;
the text of the page between ``<!-- NAME -->`` and ``<!-- end -->`` is replaced, nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from evalstop import parse_rule
from evalstop.experiments.detection.bench import Cell, Grid, run
from evalstop.experiments.detection.worlds import WORLDS
from evalstop.experiments.peers.registry import parse_peer
from evalstop.experiments.real_runs import LANGUAGE, built_in_runs, measure_peer, shared_runs
from evalstop.experiments.real_runs import measure as measure_rule
from peers_figures import draw_false_stops, draw_roc
from peers_tables import tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.experiments.real_runs import RealRunFigures

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "peers.md"
FOLDER = ROOT / "docs" / "peers"
CELLS = FOLDER / "cells.parquet"
SEED = 20260101

EVALS = (5, 10, 20, 40, 100)
SIGMAS = (0.005, 0.01, 0.02, 0.05, 0.12)
RHOS = (0.0, 0.3, 0.6)
SHARES = (0.2, 0.6)
ALONE = ("transformers:patience", "lightning:patience:min_delta=0.01", "optuna:patient:k=2")
"""Peers that need one curve alone: these judge real runs too."""


def grids(runs: int, peer_runs: int) -> dict[str, Grid]:
    """Return the parts of the grid: what costs more sees fewer cells, or fewer curves of each."""
    whole = Grid(
        worlds=WORLDS,
        evals=EVALS,
        sigmas=SIGMAS,
        rhos=RHOS,
        base_rates=SHARES,
        runs=runs,
        peer_runs=peer_runs,
        seed=SEED,
        reference=False,
        rules=(),
    )
    blind = ("consecutive:k=2", "consecutive:k=3", "patience:k=3", "patience:k=3,min_delta=0.01")
    libraries = (
        "transformers:patience",
        "lightning:patience",
        "lightning:patience:min_delta=0.01",
        "keras:patience",
        "optuna:median",
        "optuna:patient:k=2",
        "ray:median",
    )
    by_items = replace(whole, rhos=(0.0,), sigmas=(0.05,), runs=peer_runs, peer_runs=peer_runs)
    return {
        "rules that use errors": replace(
            whole, rules=("default", "drop", "cusum"), reports=("true", "understated", "unknown")
        ),
        "rules that do not": replace(whole, rules=blind),
        "slow rules": replace(whole, rules=("order-restricted", "e-detector"), rhos=(0.0,)),
        "libraries": replace(whole, peers=libraries, rhos=(0.0,), sigmas=(0.01, 0.05, 0.12)),
        "libraries, autocorrelated": replace(
            whole, peers=libraries, rhos=(0.3, 0.6), sigmas=(0.05,)
        ),
        "item by item": replace(
            by_items, rules=("paired",), peers=("optuna:wilcoxon", "optuna:wilcoxon:p=0.001")
        ),
    }


def run_parts(parts: dict[str, Grid], known: list[Cell]) -> list[Cell]:
    """Run parts of the grid, say what each took, and save it; the rest stays as it is known."""
    for name, grid in parts.items():
        start = time.process_time()
        found = run(grid)
        again = {(cell.rule, cell.rho) for cell in found}
        known = [cell for cell in known if (cell.rule, cell.rho) not in again] + found
        print(f"{name}: {len(found)} cells, {time.process_time() - start:.0f} s of CPU", flush=True)
        save(known, CELLS)
    return known


def save(cells: Sequence[Cell], path: Path) -> None:
    """Write one row a cell, its intervals as columns."""
    rows = []
    for cell in cells:
        row = msgspec.to_builtins(cell)
        for name, (low, high) in row.pop("intervals").items():
            row |= {f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def load(path: Path) -> list[Cell]:
    """Read cells back, none if there are none."""
    cells: list[Cell] = []
    if not path.exists():
        return cells
    for row in pq.read_table(path).to_pylist():
        names = [key.removesuffix("_low") for key in row if key.endswith("_low")]
        row["intervals"] = {
            name: (row.pop(f"{name}_low"), row.pop(f"{name}_high")) for name in names
        }
        cells.append(Cell(**row))
    return cells


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells rule by rule in the order of the parts, each in the grid's own order."""
    order = [rule for grid in grids(10, 10).values() for rule in (*grid.rules, *grid.peers)]
    return sorted(cells, key=lambda cell: (order.index(cell.rule), cell.rho))


def real_figures(shared: Path | None) -> list[RealRunFigures]:
    """Return rules and libraries on the language-model runs."""
    runs = (shared_runs(shared) if shared else built_in_runs())[LANGUAGE]
    rules = ("default", "consecutive:k=2", "consecutive:k=3", "patience:k=3")
    return [
        *(measure_rule(LANGUAGE, runs, parse_rule(spec)) for spec in rules),
        *(measure_peer(LANGUAGE, runs, parse_peer(spec)) for spec in ALONE),
    ]


def write_page(sections: dict[str, str]) -> None:
    """Replace the generated parts of the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, body in sections.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            sys.exit(f"{PAGE} has no place for {name!r}")
        text = pattern.sub(lambda found, body=body: f"{found[1]}\n{body}\n{found[2]}", text)
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Run, save, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60, help="curves of each kind in a cell")
    parser.add_argument("--peer-runs", type=int, default=20, help="of these, judged by libraries")
    parser.add_argument("--shared", type=Path, help="the whole collection of real runs")
    parser.add_argument("--part", action="append", help="run these alone; repeatable")
    parser.add_argument("--no-page", action="store_true", help="save cells, draw and write nothing")
    parser.add_argument("--no-figures", action="store_true", help="leave the figures as they are")
    parser.add_argument("--from-cells", action="store_true", help="run nothing of the grid again")
    options = parser.parse_args()
    os.environ.setdefault("KERAS_BACKEND", "torch")
    FOLDER.mkdir(exist_ok=True)
    cells = load(CELLS) if options.part or options.from_cells else []
    if not options.from_cells:
        parts = grids(options.runs, options.peer_runs)
        wanted = {name: parts[name] for name in options.part or parts}
        cells = run_parts(wanted, cells)
    if options.no_page:
        return
    cells = in_order(cells)
    if not options.no_figures:
        draw_false_stops(FOLDER / "false-stops.svg", SEED)
        draw_roc(FOLDER / "roc.svg", SEED)
    write_page(tables(cells, [msgspec.to_builtins(row) for row in real_figures(options.shared)]))
    print(f"wrote {PAGE} and {FOLDER}")


if __name__ == "__main__":
    main()
