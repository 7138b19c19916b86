"""Write a rule of one's own, and use it wherever the built-in ones go.

A rule is a frozen object that holds parameters. Its state is separate, plain data: `step` takes the
old state and returns a new one. Order, repeats, rewinds and NaN are dealt with before it is asked.
"""

from __future__ import annotations

from msgspec import Struct

from evalstop import AnyOf, EvalPoint, Monitor, Verdict, parse_rule
from evalstop.core.points import State


class Seen(Struct, frozen=True):
    """The highest score and its step."""

    best: float = float("-inf")
    step: int = -1


class Below(Struct, frozen=True):
    """Alarm once the score falls under ``share`` of the best so far."""

    share: float = 0.9

    def start(self) -> Seen:
        """Return the state before the first evaluation."""
        return Seen()

    def step(self, state: Seen, point: EvalPoint) -> tuple[Seen, Verdict]:
        """Compare one evaluation with the best before it."""
        if point.score > state.best:
            state = Seen(best=point.score, step=point.step)
        lost = 1 - point.score / state.best
        return state, Verdict(
            state=State.ALARM if lost >= 1 - self.share else State.OK,
            statistic=lost,
            threshold=1 - self.share,
            best_step=state.step,
            best_score=state.best,
        )


either = AnyOf((Below(share=0.9), parse_rule("consecutive:k=3").for_type("rlhf")))
monitor = Monitor(either, direction="max")
for step, score in enumerate([0.60, 0.64, 0.66, 0.63, 0.58]):
    verdict = monitor.update(score=score, step=100 * step)
    print(f"step {100 * step}: {verdict.reason}")
assert verdict.alarm
