"""What is heard at a glance ends where judging every evaluation ends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.schedulers import parse_scheduler
from evalstop.core.cluster import ClusterState
from evalstop.core.detector import QuietDetector
from evalstop.core.events import EvalReported, JobStarted, JobSubmitted
from evalstop.core.history import History
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint
from evalstop.core.policy import hears_evals
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.never import Never
from evalstop.detectors.patience import Patience
from evalstop.policies.evalstop import EvalStop

QUIET = [ConsecutiveDecline(k=1), ConsecutiveDecline(k=2), ConsecutiveDecline(k=4), Never()]

scores = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, float("nan")])
reports = st.lists(
    st.builds(
        EvalPoint,
        step=st.integers(0, 12),
        score=scores,
        attempt=st.sampled_from([0, 0, 0, 1]),
        epoch_key=st.sampled_from([None, None, None, "other judge"]),
        checkpoint=st.sampled_from([None, "saved"]),
        proxy=st.sampled_from([None, 1.0, 2.0]),
    ),
    max_size=14,
)
in_line = st.lists(scores.filter(math.isfinite), max_size=14).map(
    lambda values: [EvalPoint(step=step, score=score) for step, score in enumerate(values)]
)


@given(points=reports | in_line, detector=st.sampled_from([*QUIET, Patience(k=2)]))
def test_a_history_that_hears_raises_the_alarms_of_one_that_judges(points, detector):
    heard, judged = History(detector), History(detector)
    assert [heard.hear(point) for point in points] == [judged.add(point).alarm for point in points]
    assert repr(heard.verdict) == repr(judged.verdict)
    assert repr(heard.best) == repr(judged.best)
    assert repr(heard.best_saved) == repr(judged.best_saved)
    assert repr(heard.series) == repr(judged.series)


@given(points=in_line.filter(bool), detector=st.sampled_from(QUIET), cut=st.integers(0, 14))
def test_a_fold_is_its_steps_and_what_is_quiet_raises_no_alarm(points, detector, cut):
    assert isinstance(detector, QuietDetector)
    state, alarms = detector.start(), []
    for point in points:
        state, verdict = detector.step(state, point)
        alarms.append(verdict.alarm)
    first, rest = points[: cut % len(points)], points[cut % len(points) :]
    begun = detector.fold(detector.start(), first)[0] if first else detector.start()
    assert detector.fold(begun, rest) == (state, verdict)
    for index, alarm in enumerate(alarms):
        below = index > 0 and points[index].score < points[index - 1].score
        assert not alarm or (below and not detector.quiet(points[: index + 1]))


@pytest.mark.parametrize(
    "name", ["fifo", "fifo-backfill", "sjf-est", "srtf-est", "tiresias", "loss-aware", "pollux"]
)
def test_a_scheduler_that_hears_no_evaluations_says_nothing_to_them(name):
    base = parse_scheduler(name)
    assert not hears_evals(base)
    kernel = Kernel(ClusterState(2), base)
    for index in range(3):
        kernel.handle(JobSubmitted(time=0.0, job=JobSpec(id=f"j{index}", estimated_s=10.0)))
    kernel.handle(JobStarted(time=0.0, job="j0", gpus=1))
    event = EvalReported(time=1.0, job="j0", point=EvalPoint(step=1, score=0.5))
    assert list(kernel.handle(event)) == []


class Curious:
    def __init__(self):
        self.heard = []

    def decide(self, event, view):
        del view
        self.heard.append(event)
        return ()


class Deaf(Curious):
    hears_evals = False


@pytest.mark.parametrize(("base", "times"), [(Curious, 2), (Deaf, 1)])
def test_a_base_is_told_of_evaluations_unless_it_says_it_hears_none(base, times):
    policy = EvalStop(base=base(), rules=ConsecutiveDecline(k=2))
    kernel = Kernel(ClusterState(1), policy)
    kernel.handle(JobSubmitted(time=0.0, job=JobSpec(id="j")))
    kernel.handle(EvalReported(time=1.0, job="j", point=EvalPoint(step=1, score=0.5)))
    assert len(policy.base.heard) == times
