"""One setting over several seeds: ``evalstop.simulate``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from evalstop.core.errors import InputError
from evalstop.core.settings import has_methods, is_whole
from evalstop.metrics.columns import JobColumns
from evalstop.metrics.summary import Summary, json_tree, summarise
from evalstop.sim.costs import ExecutionCosts
from evalstop.sim.simulator import Simulator
from evalstop.workloads.generate import generate, generate_on
from evalstop.workloads.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evalstop.core.policy import Policy
    from evalstop.workloads.generate import Arrived
    from evalstop.workloads.job import Workload
    from evalstop.workloads.scenario import NodeType

__all__ = ["Simulated", "costs_of", "simulate", "simulate_once"]


class Simulated(Struct, frozen=True, kw_only=True, eq=False):
    """What one policy did to one scenario.

    Attributes:
        gpus: GPUs of the cluster.
        jobs: jobs of each seed.
        seeds: which seeds were run, in order.
        runs: one record a seed, with the hidden truth joined to it.
        summary: the figures over all seeds, with 95 % intervals.
        events: facts simulated: each submission, start, evaluation, preemption and end once.
    """

    gpus: int
    jobs: int
    seeds: tuple[int, ...]
    runs: tuple[JobColumns, ...]
    summary: Summary
    events: int

    def to_json(self) -> dict[str, Any]:
        """Return plain objects without NaN, in the form ``evalstop simulate --json`` prints."""
        return {
            "gpus": self.gpus,
            "jobs": self.jobs,
            "seeds": list(self.seeds),
            **json_tree(self.summary),
            "events": self.events,
        }


def simulate(
    scenario: Scenario,
    *,
    policy: Callable[[], Policy],
    seeds: Iterable[int] = (0,),
    costs: ExecutionCosts | None = None,
    losses: bool = True,
    arrived: Arrived | None = None,
    after_each: Callable[[int], None] | None = None,
) -> Simulated:
    """Run a scenario under a policy, once for each seed.

    Args:
        scenario: description of cluster, jobs, curves and noise (`evalstop.scenarios`).
        policy: makes a fresh policy for each seed, such as
            ``lambda: EvalStop(base=SrtfEst(), rules=parse_rule("paper"))``. Where the scenario
            has node types its starts must name one, as `Partitioned` does.
        seeds: seeds of the workloads; the same seed gives every policy the same jobs.
        costs: delays of starting, preempting, stopping and releasing; the scenario's if None.
        losses: report training losses to the policy; see `Simulator`.
        arrived: jobs of a real trace in place of the scenario's; their curves are its.
        after_each: called with each seed once it is done, for progress.

    Raises:
        InputError: if there are no seeds, a job is larger than the cluster, or something is not
            what it should be.
    """
    _require_setting(scenario, policy)
    chosen = _seeds(seeds)
    runs, events = [], 0
    for seed in chosen:
        made = policy()
        if not has_methods(made, "decide"):
            msg = f"policy must make a policy, such as Fifo(), but it made {made!r}"
            raise InputError(msg)
        columns, count = simulate_once(
            generate(scenario, seed) if arrived is None else generate_on(scenario, arrived, seed),
            gpus=scenario.gpus,
            pools=scenario.pools,
            policy=made,
            costs=costs or costs_of(scenario),
            losses=losses,
        )
        runs.append(columns)
        events += count
        if after_each is not None:
            after_each(seed)
    return Simulated(
        gpus=scenario.gpus,
        jobs=scenario.jobs if arrived is None else arrived.submit_s.size,
        seeds=chosen,
        runs=tuple(runs),
        summary=summarise(runs, gpus=scenario.gpus),
        events=events,
    )


def _require_setting(scenario: object, policy: object) -> None:
    if not isinstance(scenario, Scenario):
        msg = (
            "expected a scenario, such as scenarios.PAPER or scenarios.named('paper'), but got "
            f"{scenario!r}"
        )
        raise InputError(msg)
    if not callable(policy):
        msg = (
            "policy must make a fresh policy for each seed, as `lambda: Fifo()` or Fifo itself "
            f"does, but got {policy!r}: a policy is used up by its run"
        )
        raise InputError(msg)


def _seeds(seeds: object) -> tuple[int, ...]:
    if not isinstance(seeds, Iterable) or isinstance(seeds, str | bytes):
        msg = f"seeds must be a list such as [3, 7] or range(3), but got {seeds!r}"
        raise InputError(msg)
    chosen = tuple(seeds)
    if not chosen:
        msg = "expected at least one seed, but got none"
        raise InputError(msg)
    for seed in chosen:
        if not is_whole(seed) or seed < 0:
            msg = f"a seed must be a whole number >= 0, but got {seed!r}"
            raise InputError(msg)
    if len(set(chosen)) < len(chosen):
        msg = f"seeds name one twice ({chosen}): that would make the intervals too narrow"
        raise InputError(msg)
    return chosen


def simulate_once(
    workload: Workload,
    *,
    gpus: int,
    policy: Policy,
    pools: Sequence[NodeType] = (),
    costs: ExecutionCosts | None = None,
    losses: bool = True,
) -> tuple[JobColumns, int]:
    """Run one workload on GPUs that are alike, or on these node types.

    Returns:
        Its record and the number of events.
    """
    log = Simulator(
        workload,
        gpus={pool.name: pool.gpus for pool in pools} or gpus,
        speeds={pool.name: pool.speed for pool in pools},
        policy=policy,
        costs=costs,
        losses=losses,
    ).run()
    return log.columns(workload), log.events


def costs_of(scenario: Scenario) -> ExecutionCosts:
    """Return the execution costs that a scenario describes."""
    return ExecutionCosts(**asdict(scenario.costs))
