"""Run the cells that share a workload on one seed, and reduce each run to a row of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from evalstop.config.rules import parse_rule
from evalstop.config.schedulers import parse_scheduler
from evalstop.experiments.spec import Cell, spec_hash
from evalstop.metrics.detection import RLHF, count_early_stops, count_stops, detection_delays
from evalstop.metrics.summary import quality_figures, system_figures
from evalstop.policies.baselines import LossPlateau
from evalstop.policies.deprioritise import Deprioritise
from evalstop.policies.evalstop import EvalStop
from evalstop.sim.simulate import costs_of, simulate_once
from evalstop.workloads.generate import Arrived, generate, generate_on

if TYPE_CHECKING:
    from evalstop.core.policy import Policy
    from evalstop.metrics.columns import JobColumns
    from evalstop.policies.rules import Rules
    from evalstop.workloads.job import Workload

__all__ = ["Row", "Task", "run_task"]

Row: TypeAlias = dict[str, Any]

_READS_LOSSES = ("loss-aware", "pollux")


class Task(Struct, frozen=True, kw_only=True):
    """Cells that meet the same workload, and the seed it is made from."""

    cells: tuple[Cell, ...]
    seed: int
    arrived: Arrived | None = None


def run_task(task: Task) -> list[Row]:
    """Run every cell on one workload; the same task gives the same rows, wherever it runs."""
    first = task.cells[0]
    workload = _workload(first, task.seed, task.arrived)
    return [_run(cell, task.seed, workload) for cell in task.cells]


def _workload(cell: Cell, seed: int, arrived: Arrived | None) -> Workload:
    if arrived is not None and cell.trace_jobs:
        return generate_on(cell.scenario, arrived, seed)
    return generate(cell.scenario, seed)


def _run(cell: Cell, seed: int, workload: Workload) -> Row:
    rules = parse_rule(cell.rule)
    base = parse_scheduler(cell.scheduler, speeds=cell.scenario.speeds)
    make = Deprioritise if cell.mode == "deprioritise" else EvalStop
    policy: Policy = make(base=base, rules=rules)
    columns, events = simulate_once(
        workload,
        gpus=cell.scenario.gpus,
        pools=cell.scenario.pools,
        policy=policy,
        costs=costs_of(cell.scenario),
        losses=cell.scheduler.startswith(_READS_LOSSES) or _reads_losses(rules),
    )
    return {
        "suite": cell.suite,
        "cell": spec_hash(cell),
        "seed": seed,
        **figures(columns, gpus=cell.scenario.gpus),
        "events": events,
    }


def figures(columns: JobColumns, *, gpus: int) -> Row:
    """Return all figures of a run, flat."""
    everyone, rlhf = count_stops(columns), count_stops(columns, job_type=RLHF)
    delays = detection_delays(columns)
    return {
        **system_figures(columns, gpus=gpus),
        **quality_figures(columns),
        "tp": everyone.tp,
        "fp": everyone.fp,
        "fn": everyone.fn,
        "tn": everyone.tn,
        "rlhf_fp": rlhf.fp,
        "rlhf_tn": rlhf.tn,
        "early_stops": count_early_stops(columns),
        "delay_evals_sum": float(delays.sum()),
        "delay_evals_count": int(delays.size),
        "jobs": len(columns),
    }


def _reads_losses(rules: Rules) -> bool:
    return any(isinstance(named.rule, LossPlateau) for named in rules.by_type.values())
