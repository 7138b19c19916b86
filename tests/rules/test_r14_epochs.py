"""R14: scores of two eval epochs never compare: not for a stop, not for best, not in custody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evalstop import Monitor, parse_rule
from evalstop.core.events import EvalReported, JobSubmitted
from evalstop.core.job import JobSpec
from evalstop.core.points import EvalPoint
from evalstop.custody import to_keep
from evalstop.ports import Entry
from evalstop.service.ledger import Ledger

RULES = (
    "default", "scan", "consecutive:k=2", "patience:k=3", "drop", "cusum", "page-hinkley",
    "glr-cusum",
)  # fmt: skip


@given(
    st.sampled_from(RULES),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12),
    st.floats(-1e3, 1e3),
    st.integers(1, 12),
)
def test_a_drop_from_one_epoch_to_the_next_is_no_evidence(rule, scores, offset, later):
    """The second epoch is flat: whatever lies between it and the first, nothing is stopped."""
    monitor = Monitor(parse_rule(rule), direction="max")
    for step, score in enumerate(sorted(scores)):
        monitor.update(score=score, step=step, stderr=0.01, epoch_key="first")
    for step in range(len(scores), len(scores) + min(later, 2)):
        verdict = monitor.update(score=offset, step=step, stderr=0.01, epoch_key="second")
        assert not verdict.alarm
        assert verdict.best_score == offset
    only = Monitor(parse_rule(rule), direction="max")
    for step in range(len(scores), len(scores) + later):
        both = monitor.update(score=offset - step, step=step + 50, stderr=0.01, epoch_key="second")
        alone = only.update(score=offset, step=step, stderr=0.01, epoch_key="second")
        assert alone.best_score == offset
        assert both.best_score <= offset


@given(
    st.lists(
        st.tuples(st.sampled_from(["percent", "share", ""]), st.floats(0.0, 1.0)),
        min_size=1,
        max_size=30,
    )
)
def test_best_is_the_current_epochs_and_earlier_bests_stay_in_custody(reports):
    ledger = Ledger()
    ledger.note(Entry(sequence=1, event=JobSubmitted(time=0.0, job=JobSpec(id="a"))), {})
    by_epoch = {}
    for step, (epoch, share) in enumerate(reports):
        score = 100.0 * share if epoch == "percent" else share
        point = EvalPoint(step=step, score=score, epoch_key=epoch or None)
        event = EvalReported(time=float(step), job="a", point=point)
        ledger.note(Entry(sequence=step + 2, event=event), {})
        by_epoch.setdefault(epoch, {})[step] = score
    record = ledger.jobs["a"]
    current = by_epoch[reports[-1][0]]
    assert record.best.score == max(current.values())
    assert record.scores == current
    always = [best.step for best in record.bests.values()]
    kept = to_keep(set(range(len(reports))), record.scores, always=always)
    for scores in by_epoch.values():
        assert min(scores, key=lambda step: (-scores[step], step)) in kept
