"""The scenarios that come with evalstop. Why each number: docs/design/0003-scenario-paper.md."""

from __future__ import annotations

from msgspec.structs import replace

from evalstop.core.errors import SpecError
from evalstop.workloads.scenario import Arrivals, Curves, Durations, Evals, Noise, Scenario, Signals

__all__ = ["CONFORMANCE", "GAO", "HARD", "MATCHED", "NAMED", "PAPER", "named"]

PAPER = Scenario(
    name="paper",
    gpus=64,
    jobs=200,
    types={"rlhf": 0.8, "dpo": 0.1, "lora": 0.1},
    hacking={"rlhf": 0.6},
    curves=Curves(
        start=(0.0, 0.3), gain=(0.8, 1.2), power=2.0, healthy_kl=(0.25, 1.0), hacking_kl=(3.5, 6.0)
    ),
    noise=Noise(sigma=0.035),
    evals=Evals(count=10),
    arrivals=Arrivals(load=1.15),
    signals=Signals(loss_rate=(3.0, 27.0)),
)
"""RLHF-heavy, the paper's experiment: few evaluations, little noise, healthy runs still rise."""

GAO = Scenario(
    name="gao",
    curves=Curves(
        start=(0.2, 0.4),
        gain=(0.3, 0.5),
        power=(1.0, 2.0),
        healthy_kl=(0.25, 1.0),
        hacking_kl=(1.5, 6.0),
    ),
    noise=Noise(items=500),
    evals=Evals(count=20),
)
"""Overoptimisation as Gao et al. measured it: slow declines, healthy runs that flatten at their
peak, binomial errors of 500 items, 20 evaluations."""

MATCHED = replace(
    GAO,
    name="matched",
    curves=replace(GAO.curves, clock="peak", hacking_kl=(1.5, 4.0)),
    evals=Evals(count=(8, 16)),
)
"""As gao, but nothing tells the labels apart before the peak, evaluation by evaluation: all jobs
climb by one law, healthy ones end before they reach their peak, hacking ones go on."""

HARD = Scenario(
    name="hard",
    types={"rlhf": 0.5, "dpo": 0.25, "lora": 0.25},
    hacking={"rlhf": 0.4, "dpo": 0.2},
    fails=0.02,
    curves=Curves(
        healthy={
            "gao-rl": 0.2,
            "saturating": 0.15,
            "plateau": 0.2,
            "slow-rise": 0.1,
            "late-bloomer": 0.1,
            "dip": 0.1,
            "restart": 0.05,
            "random-walk": 0.1,
        },
        hacking={
            "gao-rl": 0.3,
            "best-of-n": 0.1,
            "linear-decline": 0.15,
            "cliff": 0.35,
            "collapse": 0.1,
        },
        start=(0.2, 0.4),
        gain=(0.1, 0.4),
        floor=0.0,
        healthy_kl=(0.25, 1.0),
        hacking_kl=(1.5, 20.0),
    ),
    noise=Noise(items=500, rho=0.3, lost_scores=0.005),
    evals=Evals(count=(6, 40)),
    durations=Durations(sigma=1.0, estimate_sigma=0.5),
    arrivals=Arrivals(process="bursty", load=0.9, variation=3.0),
)
"""What real runs add: plateaus, dips, restarts, cliffs, early peaks, correlated errors, crashes."""

CONFORMANCE = Scenario(
    name="conformance",
    gpus=64,
    jobs=100_000,
    hacking={"rlhf": 0.5},
    gangs={1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1},
    evals=Evals(count=(10, 30)),
    durations=Durations(
        median_s=492.749,  # exp(6.2)
        sigma=0.6,
        per_eval=True,
        whole_seconds=True,
        estimate_sigma=0.3,
    ),
    arrivals=Arrivals(load=0.9),
    signals=Signals(proxy=False, loss=False),
    single_precision=True,
)
"""The law by which the simulators' common traces were drawn, with curves: for benchmarks."""

NAMED = {scenario.name: scenario for scenario in (PAPER, GAO, MATCHED, HARD, CONFORMANCE)}
"""Scenario by name."""


def named(name: str) -> Scenario:
    """Return a scenario that comes with evalstop.

    Raises:
        SpecError: listing the known ones.
    """
    if name not in NAMED:
        message = f"unknown scenario {name!r}; known: {', '.join(NAMED)}, or a .toml file"
        raise SpecError(message)
    return NAMED[name]
