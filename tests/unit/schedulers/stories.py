"""What happens on a small cluster, and what a scheduler answers."""

from evalstop.config.rules import parse_rule
from evalstop.policies.evalstop import EvalStop
from evalstop.sim.simulator import Simulator


def story(workload, base, *, costs, stops):
    """Return every event and what it was answered with."""
    policy = EvalStop(base=base, rules=parse_rule("consecutive:k=2")) if stops else base
    told = []

    def note(event, actions):
        told.append((event, [*actions]))

    Simulator(workload, gpus=8, policy=policy, costs=costs, observer=note).run()
    return told
