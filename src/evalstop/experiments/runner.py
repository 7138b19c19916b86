"""Spread tasks over cores, or a Ray cluster; keep what is done; go on where a run broke off.

Rows are appended to ``rows.jsonl`` as tasks finish, each with the hash of its cell and its seed.
A row is taken from there if its hash, its seed and the version of evalstop are those of the plan,
so that a changed spec is run anew and an unchanged one is not. Rows are put into the order of the
plan at the end: the same spec gives the same bytes, however the work was spread.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from evalstop import __version__
from evalstop.experiments.cell_run import Row, Task, run_task
from evalstop.experiments.spec import Cell, Plan, spec_hash, spec_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from evalstop.workloads.generate import Arrived

__all__ = ["Spread", "cores", "run_plans", "tasks_of"]


class Spread(Protocol):
    """Something that runs tasks somewhere and gives their rows back in any order."""

    def __call__(self, tasks: Sequence[Task]) -> Iterable[list[Row]]:
        """Run all tasks."""
        ...


def run_plans(
    plans: Sequence[Plan],
    *,
    folder: Path,
    arrived: Arrived | None = None,
    spread: Spread | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return a row for each cell and seed, in the order of the plans.

    Args:
        plans: what to run.
        folder: keeps ``rows.jsonl``.
        arrived: the arrival trace for cells that want one.
        spread: where to run; all cores of this machine by default.
        progress: told how many rows are done, of how many.
    """
    path = folder / "rows.jsonl"
    done = _read(path)
    wanted = [
        (spec_hash(cell), seed) for plan in plans for cell in plan.cells for seed in plan.seeds
    ]
    tasks = [task for plan in plans for task in tasks_of(plan, done, arrived)]
    left = sum(len(task.cells) for task in tasks)
    count = len(wanted) - left
    tell = progress or _silent
    tell(count, len(wanted))
    with path.open("ab") as file:
        for rows in (spread or cores())(tasks) if tasks else ():
            for row in rows:
                done[row["cell"], row["seed"]] = row
                file.write(msgspec.json.encode({"version": __version__, **row}) + b"\n")
            file.flush()
            count += len(rows)
            tell(count, len(wanted))
    return [done[key] for key in wanted]


def tasks_of(
    plan: Plan, done: dict[tuple[str, int], Row], arrived: Arrived | None
) -> Iterator[Task]:
    """Yield what is left to do: cells of one workload together, large ones on their own."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((spec_text(cell.scenario), cell.trace_jobs), []).append(cell)
    for cells in groups.values():
        for seed in plan.seeds:
            left = [cell for cell in cells if (spec_hash(cell), seed) not in done]
            if left:
                trace = arrived if left[0].trace_jobs else None
                yield Task(cells=tuple(left), seed=seed, arrived=trace)


def cores(count: int | None = None) -> Spread:
    """Return a spread over this many processes; one for each core by default."""
    workers = count or len(os.sched_getaffinity(0))

    def spread(tasks: Sequence[Task]) -> Iterable[list[Row]]:
        if workers == 1:
            yield from map(run_task, tasks)
            return
        with _pool(workers) as pool:
            futures = [pool.submit(run_task, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()

    return spread


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool that drops what is queued when the caller stops listening."""
    # Spawned, not forked: a fork copies whatever threads and locks the caller has.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _read(path: Path) -> dict[tuple[str, int], Row]:
    """Return the rows of an earlier run; a last line that was cut off is dropped."""
    rows: dict[tuple[str, int], Row] = {}
    if not path.exists():
        return rows
    for line in path.read_bytes().splitlines():
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if row.pop("version") == __version__:
            rows[row["cell"], row["seed"]] = {
                name: float("nan") if value is None else value for name, value in row.items()
            }
    return rows


def _silent(done: int, of: int) -> None:
    del done, of
