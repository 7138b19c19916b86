"""What a workload looks like, in words and numbers: frozen descriptions, no data.

A scenario and a seed give a workload (`evalstop.workloads.generate.generate`). Where a number is
asked for, a pair of numbers is a uniform draw a job between them.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, field

from evalstop.core.errors import SpecError
from evalstop.workloads.ranges import Group, Range, highest, lowest

__all__ = [
    "CLOCKS",
    "DECLINING",
    "FAMILIES",
    "PROCESSES",
    "REPORTED",
    "Adversaries",
    "Arrivals",
    "Costs",
    "Curves",
    "Deliveries",
    "Durations",
    "Elasticity",
    "Evals",
    "Family",
    "Mitigation",
    "NodeType",
    "Noise",
    "Range",
    "Scenario",
    "Signals",
    "Tenants",
    "highest",
    "lowest",
]

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]

Declining: TypeAlias = Literal["gao-rl", "best-of-n", "linear-decline", "cliff", "collapse"]
Family: TypeAlias = Literal[
    "gao-rl",
    "best-of-n",
    "linear-decline",
    "cliff",
    "collapse",
    "saturating",
    "slow-rise",
    "plateau",
    "late-bloomer",
    "dip",
    "restart",
    "random-walk",
]

Clock: TypeAlias = Literal["run", "peak"]
Reported: TypeAlias = Literal["true", "understated", "unknown"]
Process: TypeAlias = Literal["poisson", "bursty", "batch"]

FAMILIES: tuple[str, ...] = get_args(Family)
"""Every family of curves."""

DECLINING: tuple[str, ...] = get_args(Declining)
"""Families with a peak: the ones that a hacking run can follow."""

CLOCKS: tuple[str, ...] = get_args(Clock)
"""What counts and durations may be of."""

REPORTED: tuple[str, ...] = get_args(Reported)
"""What reports may say of their error."""

PROCESSES: tuple[str, ...] = get_args(Process)
"""How jobs may arrive."""


class Curves(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """True quality.

    Attributes:
        healthy: weight of each family among healthy jobs. A declining family has its peak at or
            after the end there.
        hacking: likewise among hacking jobs; declining families only.
        start: true score before training.
        gain: what the peak (or the top of a healthy family) adds to it.
        power: KL grows as t^power.
        healthy_kl: KL at the end of a healthy run over KL at its peak, at most 1.
        hacking_kl: likewise of a hacking run, above 1. The peak lies at ratio^(-1 / power).
        clock: what ``Evals.count`` and ``Durations`` are of. "run": of the run, whatever its
            label; hacking runs then climb faster. "peak": of the way to the peak, so that
            evaluation by evaluation nothing tells the labels apart before the peak; hacking
            runs are those that go on for longer.
        floor: what no true score goes below (chance level of a benchmark); none in Gao's law.
        drop: share of the gain lost at the end (linear-decline) or at once (cliff).
        depth: how far below its start a collapse ends, in gains; depth of dips and restarts, in
            gains.
        knee: progress at which a plateau begins.
        time_constant: of saturating rises, in shares of the run.
        place: middle of a dip, instant of a restart, onset of a late bloomer.
        width: of a dip, in shares of the run.
        roughness: standard deviation of a random walk at the end, in gains.
    """

    healthy: dict[Family, NotNegative] = field(default_factory=lambda: {"gao-rl": 1.0})
    hacking: dict[Declining, NotNegative] = field(default_factory=lambda: {"gao-rl": 1.0})
    start: Range = (0.1, 0.2)
    gain: Range = (0.5, 0.7)
    power: Range = (1.0, 2.0)
    healthy_kl: Range = (0.1, 0.5)
    hacking_kl: Range = (4.0, 7.0)
    clock: Clock = "run"
    floor: float | None = None
    drop: Range = (0.3, 0.7)
    depth: Range = (0.2, 0.4)
    knee: Range = (0.2, 0.5)
    time_constant: Range = (0.15, 0.3)
    place: Range = (0.4, 0.7)
    width: Range = (0.15, 0.3)
    roughness: Range = (0.1, 0.3)

    def __post_init__(self) -> None:
        """Refuse what is not a mixture, or contradicts the labels."""
        Group.__post_init__(self)
        for name in ("healthy", "hacking"):
            if not sum(getattr(self, name).values()) > 0:
                message = f"{name} needs at least one family with a weight above 0"
                raise SpecError(message)
        if not 0 < lowest(self.healthy_kl) <= highest(self.healthy_kl) <= 1:
            message = "healthy_kl must lie in (0, 1]: a healthy run ends before its peak"
            raise SpecError(message)
        if not 1 < lowest(self.hacking_kl) <= highest(self.hacking_kl):
            message = "hacking_kl must lie above 1: a hacking run goes past its peak"
            raise SpecError(message)


class Noise(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of observed scores.

    Attributes:
        sigma: standard deviation of a score; ignored where ``items`` is given.
        items: evaluated items: the error is then binomial, sqrt(q (1 - q) / items).
        rho: correlation of neighbouring errors.
        reported: what reports say of it: true, understated (2/3 of it), unknown.
        lost_scores: share of evaluations that give NaN.
    """

    sigma: Range = 0.02  # a constraint here would meet the same fault as Evals.count
    items: Count | None = None
    rho: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    reported: Reported = "true"
    lost_scores: Share = 0.0

    def __post_init__(self) -> None:
        """Refuse a negative error."""
        Group.__post_init__(self)
        if not 0 <= lowest(self.sigma) <= highest(self.sigma):
            message = f"sigma must be at least 0, or a pair in order, got {self.sigma}"
            raise SpecError(message)


class Evals(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluations of a job: evenly spaced.

    Attributes:
        count: how many: a number, or the fewest and the most (drawn uniformly).
        at_end: whether the last one is of the final checkpoint; else they lie at i / (count + 1).
        steps: training steps between them.
        replicates: how often each checkpoint could be evaluated again, on request, with fresh
            errors of the same size.
    """

    # Not Annotated[int, Meta(ge=0)] | tuple[int, int]: msgspec 0.23 crashes the interpreter when
    # it converts into a union of a constrained number and a fixed tuple (memory corruption).
    count: int | tuple[int, int] = 8
    at_end: bool = True
    steps: Count = 100
    replicates: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        """Refuse counts that are no range."""
        Group.__post_init__(self)
        low, high = self.counts
        if not 0 <= low <= high:
            message = f"count must be at least 0, or a pair in order, got {self.count}"
            raise SpecError(message)

    @property
    def counts(self) -> tuple[int, int]:
        """The fewest and the most."""
        return self.count if isinstance(self.count, tuple) else (self.count, self.count)


class Durations(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """True service of a job: lognormal.

    Attributes:
        median_s: its median, in seconds.
        sigma: standard deviation of its logarithm.
        per_eval: whether both are of the time between evaluations, not of the whole job.
        whole_seconds: whether to round.
        estimate_sigma: standard deviation of the logarithm of estimate / duration.
        estimate_bias: median of estimate / duration.
        estimated: whether jobs come with an estimate at all.
    """

    median_s: Positive = 7200.0
    sigma: NotNegative = 0.5
    per_eval: bool = False
    whole_seconds: bool = False
    estimate_sigma: NotNegative = 0.2
    estimate_bias: Positive = 1.0
    estimated: bool = True


class Arrivals(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When jobs come.

    Attributes:
        process: poisson, bursty, or batch (all at 0).
        load: work handed in over what the cluster can do.
        variation: coefficient of variation of the gaps of a bursty process; 1 is Poisson.
    """

    process: Process = "poisson"
    load: Positive = 0.9
    variation: Positive = 3.0


class Tenants(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who hands jobs in: ``count`` tenants, the r-th with chance ~ r^-exponent."""

    count: Count = 8
    exponent: NotNegative = 1.0


class Elasticity(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs can use other numbers of GPUs than they ask for (`evalstop.schedulers.goodput`).

    Attributes:
        share: share of jobs that are elastic; the others are rigid.
        shrink: they can run on their gang divided by this, at least one GPU.
        stretch: they can use their gang times this, at most the cluster.
        noise_scale: of the gradient, in batches of one GPU: small ones gain little from more GPUs.
        sync_share: share of a step that each further GPU costs.
    """

    share: Share = 0.0
    shrink: Count = 4
    stretch: Count = 4
    noise_scale: Range = (4.0, 64.0)
    sync_share: Range = (0.01, 0.05)


class Adversaries(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tenants who do not tell the truth: the last ``tenants`` of those there are.

    Attributes:
        tenants: how many.
        estimate_factor: what they multiply their estimates by, to jump the queue.
        hide_declines: whether they report the best score so far in place of the newest.
    """

    tenants: Annotated[int, Meta(ge=0)] = 0
    estimate_factor: Positive = 1.0
    hide_declines: bool = False


class Mitigation(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inner defence: trainers that hold the policy back, as a KL penalty does.

    Gao et al. (2023, section 4): a KL penalty acts like stopping early; the gold score against KL
    is the same curve. So a mitigated run ends at ``kl_factor`` times the KL it would have spent.
    If that is before its peak it is not hacking any more. An inner defence that makes hacking
    rarer (an ensemble of reward models) is a lower share in ``Scenario.hacking``.

    Attributes:
        share: share of jobs whose trainers do so, whatever they would have become.
        kl_factor: KL spent over the KL that would have been.
    """

    share: Share = 0.0
    kl_factor: Annotated[float, Meta(gt=0, le=1)] = 0.3


class Signals(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What training itself reports beside the scores; both improve through hacking.

    Attributes:
        proxy: whether the training reward is reported.
        proxy_noise: its standard deviation.
        loss: whether the training loss is reported.
        loss_rate: how fast the loss decays: floor + (start - floor) / (1 + rate t).
        loss_noise: its standard deviation, in shares of start - floor.
    """

    proxy: bool = True
    proxy_noise: NotNegative = 0.01
    loss: bool = True
    loss_rate: Range = (3.0, 30.0)
    loss_noise: NotNegative = 0.01


class Deliveries(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How reports arrive. The defaults mean: each once, at once, in order.

    Attributes:
        eval_s: what an evaluation takes, beside the training: its report comes that much later.
        delay_s: mean of a further, exponential delay; long ones overtake each other.
        lost: share of reports that never come.
        repeated: share of reports that come twice, each with its own delay.
    """

    eval_s: NotNegative = 0.0
    delay_s: NotNegative = 0.0
    lost: Share = 0.0
    repeated: Share = 0.0

    @property
    def plain(self) -> bool:
        """Whether every report comes once and at once."""
        return not (self.eval_s or self.delay_s or self.lost or self.repeated)


class Costs(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What carrying out an action costs, in seconds: as `evalstop.sim.costs.ExecutionCosts`.

    The simulator is given these; workloads do not depend on them.
    """

    start_s: NotNegative = 0.0
    restart_s: NotNegative = 0.0
    preempt_s: NotNegative = 0.0
    stop_s: NotNegative = 0.0
    release_s: NotNegative = 0.0
    extra_eval_s: NotNegative = 0.0


class NodeType(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one kind.

    Attributes:
        name: of the type.
        gpus: how many.
        speed: service per second on them: 1 is what durations and estimates refer to.
    """

    name: Annotated[str, Meta(min_length=1)]
    gpus: Count
    speed: Positive = 1.0


class Scenario(Group, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload and the cluster it is meant for.

    Attributes:
        name: what results call it.
        gpus: GPUs of the cluster, which ``arrivals.load`` refers to.
        pools: its node types, whose GPUs add up to ``gpus``; none: all GPUs are alike.
        jobs: how many jobs.
        types: share of each job type (exact counts).
        hacking: hidden share of hacking jobs of each type (exact counts); absent: none.
        gangs: weight of each number of GPUs.
        fails: share of jobs that crash, at a uniformly drawn instant.
        single_precision: keep scores and offsets in float32 (workloads of a million jobs).
        curves, noise, evals, durations, arrivals, tenants, elasticity, adversaries, mitigation,
            signals, deliveries, costs: see there.
    """

    name: str = "custom"
    gpus: Count = 64
    pools: tuple[NodeType, ...] = ()
    jobs: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 200
    types: dict[str, NotNegative] = field(
        default_factory=lambda: {"rlhf": 0.8, "dpo": 0.1, "lora": 0.1}
    )
    hacking: dict[str, Share] = field(default_factory=lambda: {"rlhf": 0.6})
    gangs: dict[Count, NotNegative] = field(
        default_factory=lambda: {1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1}
    )
    fails: Share = 0.0
    single_precision: bool = False
    curves: Curves = Curves()
    noise: Noise = Noise()
    evals: Evals = Evals()
    durations: Durations = Durations()
    arrivals: Arrivals = Arrivals()
    tenants: Tenants = Tenants()
    elasticity: Elasticity = Elasticity()
    adversaries: Adversaries = Adversaries()
    mitigation: Mitigation = Mitigation()
    signals: Signals = Signals()
    deliveries: Deliveries = Deliveries()
    costs: Costs = Costs()

    def __post_init__(self) -> None:
        """Refuse shares of nothing, and gangs that never fit."""
        Group.__post_init__(self)
        for name in ("types", "gangs"):
            if not sum(getattr(self, name).values()) > 0:
                message = f"{name} needs at least one entry with a weight above 0"
                raise SpecError(message)
        unknown = sorted(set(self.hacking) - set(self.types))
        if unknown:
            message = f"hacking names {', '.join(unknown)}; types has {', '.join(self.types)}"
            raise SpecError(message)
        if self.adversaries.tenants > self.tenants.count:
            message = (
                f"{self.adversaries.tenants} adversaries cannot be among "
                f"{self.tenants.count} tenants"
            )
            raise SpecError(message)
        self._check_pools()
        largest = max((pool.gpus for pool in self.pools), default=self.gpus)
        if max(self.gangs) > largest:
            where = "GPUs of one node type" if self.pools else "GPUs"
            message = f"a gang of {max(self.gangs)} never fits on {largest} {where}"
            raise SpecError(message)

    def _check_pools(self) -> None:
        """Refuse node types that do not make up the cluster."""
        if not self.pools:
            return
        names = [pool.name for pool in self.pools]
        total = sum(pool.gpus for pool in self.pools)
        if len(set(names)) < len(names) or total != self.gpus:
            message = (
                f"pools must have different names and {self.gpus} GPUs in all, as gpus says, "
                f"got {', '.join(names)} with {total}"
            )
            raise SpecError(message)

    @property
    def speeds(self) -> dict[str, float]:
        """Speed by node type; empty if all GPUs are alike."""
        return {pool.name: pool.speed for pool in self.pools}

    @property
    def capacity(self) -> float:
        """Service that the whole cluster gives in a second: GPUs times their speeds."""
        return sum(pool.gpus * pool.speed for pool in self.pools) or float(self.gpus)
