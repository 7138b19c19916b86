"""What a confirming evaluation buys, and what it costs: the table of docs/confirm.md.

    python benchmarks/confirming_evaluations.py

The same jobs (seeds 0-19) under each rule, with the stop at once and with the guard `Confirmed`:
at the alarm the best checkpoint is evaluated again, on other GPUs, in five minutes; its pooled
score is judged at the next report. FIFO on 64 GPUs. Takes about a minute on one core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from evalstop.config.rules import parse_rule
from evalstop.metrics.summary import Summary, summarise
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guards import Confirmed
from evalstop.schedulers.fifo import Fifo
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.generate import generate
from evalstop.workloads.scenario import Evals, Scenario
from evalstop.workloads.scenarios import HARD

if TYPE_CHECKING:
    from evalstop.metrics.columns import JobColumns

SEEDS = range(20)
RULES = ("consecutive:k=2", "drop:g=3,k=2", "default")
AGAIN = Evals(count=(6, 40), replicates=4)
WORLDS = (
    replace(HARD, evals=AGAIN),
    replace(HARD, name="dips only", evals=AGAIN, curves=replace(HARD.curves, healthy={"dip": 1.0})),
    replace(HARD, name="rho 0.6", evals=AGAIN, noise=replace(HARD.noise, rho=0.6)),
)
COSTS = ExecutionCosts(extra_eval_s=300.0)
WAIT_S = 7200.0


def main() -> None:
    """Print one line a world, rule and way of stopping."""
    print("| world | rule | stop | precision | recall | FPR | delay, evals | extra evals a stop |")
    print("|---|---|---|---|---|---|---|---|")
    for world in WORLDS:
        for rule in RULES:
            for confirmed in (False, True):
                print(line(world, rule, confirmed=confirmed), flush=True)


def line(world: Scenario, rule: str, *, confirmed: bool) -> str:
    """Return one row of the table."""
    runs: list[JobColumns] = []
    extra = 0
    for seed in SEEDS:
        workload = generate(world, seed)
        guard = Confirmed(limit_s=WAIT_S) if confirmed else None
        policy = EvalStop(base=Fifo(), rules=parse_rule(rule), guard=guard)
        simulator = Simulator(workload, gpus=world.gpus, policy=policy, costs=COSTS, losses=False)
        runs.append(simulator.run().columns(workload))
        extra += simulator.log.extra_evals
    summary = summarise(runs, gpus=world.gpus)
    found = summary.detection
    rates = (percent(summary, name) for name in ("precision", "recall", "fpr"))
    stops = found["tp"] + found["fp"]
    way = "confirmed" if confirmed else "at once"
    return (
        f"| {world.name} | `{rule}` | {way} | {' | '.join(rates)} | "
        f"{found['delay_evals_mean']:.1f} | {extra / stops if stops else 0:.2f} |"
    )


def percent(summary: Summary, name: str) -> str:
    """Return a rate with its Wilson interval."""
    low, high = summary.intervals["detection"][name]
    return f"{100 * summary.detection[name]:.1f} ({100 * low:.1f}-{100 * high:.1f}) %"


if __name__ == "__main__":
    main()
