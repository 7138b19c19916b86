"""Write a base scheduler of one's own, put EvalStop around it, and simulate both.

A policy answers each event with actions. It sees a white list of every job and can reach neither
true durations nor true curves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop import EvalStop, parse_rule, scenarios, simulate
from evalstop.core.actions import Action, Start
from evalstop.core.job import JobView, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop import Event
    from evalstop.core.policy import ClusterView


class SmallestFirst:
    """Start the smallest gang that waits, then the next, until one does not fit."""

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Return the starts that fit now."""
        del event  # whatever happened, look again
        waiting = [job for job in view.jobs.values() if job.phase is Phase.WAITING]
        actions: list[Action] = []
        free = view.free_gpus
        for job in sorted(waiting, key=self.order):
            if job.gpus > free:
                break
            actions.append(Start(job=job.id, gpus=job.gpus))
            free -= job.gpus
        return actions

    @staticmethod
    def order(job: JobView) -> tuple[int, float]:
        """Return the sort key: size, then age."""
        return job.gpus, job.submitted_at


for name, policy in {
    "smallest first": SmallestFirst,
    "smallest first + paper": lambda: EvalStop(base=SmallestFirst(), rules=parse_rule("paper")),
}.items():
    figures = simulate(scenarios.PAPER, policy=policy, seeds=[0, 1]).to_json()["system"]
    hours = figures["jct_mean_s"] / 3600
    print(
        f"{name:24} mean completion {hours:.2f} h, {figures['gpu_hours_wasted']:.0f} GPU-h wasted"
    )
