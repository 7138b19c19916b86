"""What is heard at a glance ends where judging every evaluation ends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.schedulers import parse_scheduler
from evalstop.core.ahead import Ahead
from evalstop.core.cluster import ClusterState
from evalstop.core.detector import QuietDetector
from evalstop.core.errors import IllegalEventError
from evalstop.core.events import EvalReported, JobStarted, JobSubmitted
from evalstop.core.history import FARTHEST, History
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint
from evalstop.core.policy import hears_evals
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.never import Never
from evalstop.detectors.patience import Patience
from evalstop.detectors.scan import Scan
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


@given(
    points=reports | in_line,
    ahead=in_line.filter(bool),
    odd=st.lists(st.tuples(st.integers(0, 13), scores), max_size=2),
    detector=st.sampled_from([*QUIET, Patience(k=2), Scan(alpha=0.2)]),
    cut=st.floats(0, 1),
)
def test_what_a_history_foresees_is_what_hearing_one_after_the_other_comes_to(
    points, ahead, odd, detector, cut
):
    columns = {"scores": [point.score for point in ahead], "steps": [p.step for p in ahead]}
    for place, score in odd:
        columns["scores"][place % len(ahead)] = score
        columns["steps"][-place % len(ahead)] += 1
    lies = Ahead(**columns)
    foresees, hears = History(detector, points), History(detector, points)
    before = repr((foresees.verdict, foresees.reports, foresees.best))
    stop = foresees.foresee(lies, 0, len(lies))
    assert repr((foresees.verdict, foresees.reports, foresees.best)) == before
    half = int(cut * stop)
    for start, end in ((0, half), (half, stop)) if stop else ():
        assert not any(hears.hear(point) for point in lies.points(start, end))
        foresees.take_in(lies, start, end)
        assert everything(foresees) == everything(hears)
    for point in lies.points(stop, len(lies)):
        assert foresees.hear(point) == hears.hear(point)
    assert everything(foresees) == everything(hears)


def everything(history):
    return repr(
        (
            history.verdict,
            history.best,
            history.best_saved,
            history.newest,
            tuple(history.series),
            tuple(history.reports),
        )
    )


class Unsure(ConsecutiveDecline, frozen=True, kw_only=True):
    """A rule that fails at a score, and cannot tell at a glance."""

    quiet = quiet_for = property()

    def step(self, state, point):
        if point.score == 0.3:
            raise ZeroDivisionError
        return super().step(state, point)


def test_nothing_is_foreseen_beyond_a_failure_nor_taken_in_that_was_not_foreseen():
    ahead = Ahead(steps=[1, 2, 3, 4], scores=[0.1, 0.2, 0.3, 0.4])
    history = History(Unsure(k=2))
    assert history.foresee(ahead, 0, 4) == 2
    history.take_in(ahead, 0, 1)
    for start, stop in ((0, 2), (2, 2), (1, 3), (1, 0)):
        with pytest.raises(IllegalEventError, match="were not foreseen"):
            history.take_in(ahead, start, stop)
    with pytest.raises(IllegalEventError, match="were not foreseen"):
        history.take_in(Ahead(steps=[2], scores=[0.2]), 1, 2)
    history.hear(EvalPoint(step=2, score=0.2))
    with pytest.raises(IllegalEventError, match="were not foreseen"):
        history.take_in(ahead, 1, 2)
    assert [point.step for point in history.reports] == [1, 2]


def test_a_long_curve_is_foreseen_piece_by_piece():
    ahead = Ahead(steps=range(2 * FARTHEST), scores=[0.5] * 2 * FARTHEST)
    history = History(Never())
    assert history.foresee(ahead, 0, len(ahead)) == FARTHEST
    history.take_in(ahead, 0, FARTHEST)
    assert history.foresee(ahead, FARTHEST, len(ahead)) == 2 * FARTHEST


def test_quiet_evaluations_may_be_late_but_not_before_what_happened_to_their_job():
    kernel = Kernel(ClusterState(2), EvalStop(base=Deaf(), rules=ConsecutiveDecline(k=2)))
    ahead = Ahead(steps=[1, 2, 3], scores=[0.1, 0.2, 0.3])
    kernel.handle(JobSubmitted(time=0.0, job=JobSpec(id="j")))
    kernel.handle(JobStarted(time=1.0, job="j", gpus=1))
    assert kernel.foresee("j", ahead, 0) == 3
    kernel.handle(JobSubmitted(time=9.0, job=JobSpec(id="other")))
    with pytest.raises(IllegalEventError, match="illegal evaluations of 'j'"):
        kernel.hear_quiet("j", ahead, 0, 2, last_at=0.5)
    kernel.hear_quiet("j", ahead, 0, 2, last_at=3.0)
    with pytest.raises(IllegalEventError, match="illegal evaluations of 'j'"):
        kernel.hear_quiet("j", ahead, 2, 3, last_at=2.0)
    with pytest.raises(IllegalEventError, match="illegal evaluations of 'nobody'"):
        kernel.hear_quiet("nobody", ahead, 2, 3, last_at=4.0)
    job, now = kernel.state.view.jobs["j"], kernel.state.view.now
    assert (job.evals_seen, job.last_eval_at, now) == (2, 3.0, 9.0)
    kernel.hear_quiet("j", ahead, 2, 3, last_at=11.0)
    assert kernel.state.view.now == 11.0


def test_of_a_job_that_is_not_there_and_by_a_policy_that_hears_nothing_is_foreseen():
    ahead = Ahead(steps=[1, 2], scores=[0.1, 0.2])
    rules = ConsecutiveDecline(k=2)
    assert Kernel(ClusterState(1), EvalStop(base=Deaf(), rules=rules)).foresee("j", ahead, 0) == 0
    assert Kernel(ClusterState(1), Deaf()).foresee("j", ahead, 0) == 2
    assert Kernel(ClusterState(1), Curious()).foresee("j", ahead, 0) == 0
    assert (
        Kernel(ClusterState(1), EvalStop(base=Curious(), rules=rules)).foresee("j", ahead, 1) == 1
    )


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
    scores = [point.score for point in points]
    for index in range(len(points)):
        after = alarms[index:]
        quiet = after.index(True) if True in after else len(after)
        assert detector.quiet_for(points[:index], scores[index:]) == quiet
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
