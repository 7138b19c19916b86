"""What every detector promises, whoever wrote it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evalstop.core.history import History
from evalstop.core.points import EvalPoint, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.detector import Detector

__all__ = ["DetectorContract", "curve"]

STDERR = 0.01
RISE = [0.3 + 0.5 * (1 - 0.8**n) for n in range(30)]
FALL = [*RISE[:15], *(RISE[14] - 0.05 * n for n in range(1, 11))]
FLAT = [0.5] * 30


def curve(scores: Sequence[float], *, stderr: float | None = STDERR) -> list[EvalPoint]:
    """Return ``scores`` as evaluations every 100 steps."""
    return [
        EvalPoint(step=100 * number, score=score, stderr=stderr)
        for number, score in enumerate(scores, start=1)
    ]


class DetectorContract:
    """Subclass it and say how to make the detector.

    Attributes:
        stops_plateaus: the rule stops a run that no longer improves, and says so.
        stops_nothing: the rule never raises an alarm.
    """

    stops_plateaus = False
    stops_nothing = False

    def detector(self) -> Detector[Any]:
        """Return the detector with the settings under test."""
        raise NotImplementedError

    def verdicts(self, points: Sequence[EvalPoint]) -> list[Verdict]:
        """Return the verdict after each point."""
        detector = self.detector()
        state = detector.start()
        found = []
        for point in points:
            state, verdict = detector.step(state, point)
            found.append(verdict)
        return found

    def test_the_same_scores_give_the_same_verdicts(self) -> None:
        """Nothing is remembered outside the state, and nothing is drawn."""
        assert self.verdicts(curve(FALL)) == self.verdicts(curve(FALL))

    def test_a_state_can_be_stepped_from_twice(self) -> None:
        """The state that was given is left as it was."""
        detector = self.detector()
        state = detector.start()
        for point in curve(FALL[:18]):
            state, _ = detector.step(state, point)
        before = repr(state)
        up, down = EvalPoint(step=9000, score=0.9), EvalPoint(step=9000, score=0.1)
        first = detector.step(state, down)
        detector.step(state, up)
        assert repr(state) == before
        assert repr(detector.step(state, down)) == repr(first)

    def test_a_rise_is_never_an_alarm(self) -> None:
        """Not with the error known, and not without."""
        for stderr in (STDERR, None):
            assert not any(verdict.alarm for verdict in self.verdicts(curve(RISE, stderr=stderr)))

    def test_a_level_curve_is_an_alarm_only_for_rules_that_stop_plateaus(self) -> None:
        """Thirty equal scores."""
        assert any(v.alarm for v in self.verdicts(curve(FLAT))) is self.stops_plateaus

    def test_a_deep_and_lasting_fall_is_an_alarm(self) -> None:
        """Ten evaluations in a row, each five standard errors below the one before."""
        fired = any(verdict.alarm for verdict in self.verdicts(curve(FALL)))
        assert fired is not self.stops_nothing

    def test_a_verdict_explains_itself(self) -> None:
        """An alarm is a statistic at or above its threshold; numbers are finite; best is best."""
        points = curve(FALL)
        for seen, verdict in enumerate(self.verdicts(points), start=1):
            assert math.isfinite(verdict.statistic)
            assert math.isfinite(verdict.threshold)
            if verdict.state in {State.ALARM, State.OK} and not self.stops_nothing:
                assert verdict.alarm == (verdict.statistic >= verdict.threshold)
            best = max(points[:seen], key=lambda point: (point.score, -point.step))
            assert (verdict.best_step, verdict.best_score) == (best.step, best.score)

    def test_memory_does_not_grow_with_the_run(self) -> None:
        """A long run's state is no larger than a short one's."""
        detector = self.detector()
        state = detector.start()
        sizes = []
        for number in range(2000):
            score = 0.5 + 0.01 * ((number * 7919) % 13)
            state, _ = detector.step(state, EvalPoint(step=number, score=score, stderr=STDERR))
            if number in {99, 1999}:
                sizes.append(len(repr(state)))
        assert sizes[1] <= 1.5 * sizes[0]

    def test_order_of_arrival_does_not_matter(self) -> None:
        """Reports that come late give the verdict they would have given in time (R11)."""
        points = curve(FALL[:20])
        shuffled = [*points[::2], *points[1::2]]
        assert (
            History(self.detector(), shuffled).verdict == History(self.detector(), points).verdict
        )
