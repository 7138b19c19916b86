"""R08 and R30: a metric that is missing or has ceased to come is told, and decides nothing.

The same for trainers' callbacks: tests/extras/trl/test_trainer_callback.py; for files that are
pulled: tests/unit/service/test_puller.py.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.events import EvalReported, JobStarted, JobSubmitted
from evalstop.core.job import JobSpec, Outcome, Phase
from evalstop.core.points import EvalPoint
from evalstop.ports import Entry
from evalstop.service.doubts import STALE_AFTER_GAPS, STALE_AFTER_S, blindness, staleness
from evalstop.service.ledger import Ledger

FALLING = (0.5, 0.9, 0.8, 0.7, 0.6, 0.5)


def test_a_job_whose_metric_never_comes_is_blind_and_the_nearest_name_is_told(platform, job):
    platform.submit(job, metric="accuracy")
    platform.until(job, "running")
    for step in (1, 2):
        platform.report(job, 0.5, first=step, metric="accurcy")
    assert platform.get(f"/jobs/{job}")["verdict"]["state"] == "ok", "too soon to tell"
    answer = platform.report(job, *FALLING, first=3, metric="accurcy")
    platform.report(job, *FALLING, first=3, metric="loss")
    assert (answer["state"], answer["stop"]) == ("blind", False)
    shown = platform.get(f"/jobs/{job}")
    assert shown["verdict"]["state"] == "blind"
    assert shown["phase"] == "running"
    assert shown["best"] is None
    (told,) = [words for words in platform.get("/troubles")["troubles"] if repr(job) in words]
    assert "no metric 'accuracy'; there are: accurcy, loss" in told
    assert "Did you mean 'accurcy'?" in told
    platform.report(job, 0.5, first=9, metric="accuracy")
    assert platform.get(f"/jobs/{job}")["verdict"]["state"] == "ok"
    assert not [words for words in platform.get("/troubles")["troubles"] if repr(job) in words]


def test_a_job_that_names_no_metric_and_gets_named_reports_is_blind(platform, job):
    platform.submit(job)
    answer = platform.report(job, *FALLING, metric="eval_f1")
    assert (answer["state"], answer["stop"]) == ("blind", False)
    assert "eval_f1" in platform.get(f"/jobs/{job}")["warnings"][0]


@pytest.mark.parametrize(
    ("own", "reported"),
    [
        ("eval_accuracy", "eval/accuracy"),
        ("eval/accuracy", "eval_accuracy"),
        ("eval_gsm8k/pass@1", "eval_gsm8k/pass_at_1"),
        ("eval/gsm8k/pass_at_1", "eval_gsm8k_pass@1"),
        ("Accuracy", "accuracy"),
        ("rouge-L", "rouge_l"),
    ],
)
def test_the_spellings_of_one_metric_are_one_metric_at_the_door(platform, job, own, reported):
    """R27: each sink spells it in its own way."""
    platform.submit(job, metric=own)
    platform.report(job, FALLING[0], metric=reported)
    again = platform.report(job, FALLING[0], metric=own)
    assert again["duplicates"] == 1, "the same report under both spellings counts once"
    answer = platform.report(job, *FALLING[1:], first=2, metric=reported)
    assert answer["stop"] is True


def test_another_metric_never_counts_as_the_jobs_own(platform, job):
    platform.submit(job, metric="eval_accuracy")
    platform.report(job, 0.5, 0.6)
    answer = platform.report(job, *FALLING, metric="test_accuracy")
    assert (answer["state"], answer["stop"]) == ("ok", False)
    assert platform.get(f"/jobs/{job}")["best"]["score"] == 0.6


class Log:
    """A ledger fed by hand, with a job that runs."""

    def __init__(self, metric=""):
        self.ledger, self.sequence, self.now = Ledger(), 0, 0.0
        labels = {"metric": metric} if metric else {}
        self.tell(JobSubmitted(time=0.0, job=JobSpec(id="a", labels=labels)))
        self.tell(JobStarted(time=0.0, job="a", gpus=1))
        self.record.view = _View(Phase.RUNNING)

    @property
    def record(self):
        return self.ledger.jobs["a"]

    def tell(self, event):
        self.sequence += 1
        self.ledger.note(Entry(sequence=self.sequence, event=event, actions=()), {})

    def report(self, step, score=0.5, metric=""):
        point = EvalPoint(step=step, score=score)
        self.tell(EvalReported(time=self.now, job="a", point=point, metric=metric))


class _View:
    def __init__(self, phase, started_at=0.0):
        self.phase, self.started_at = phase, started_at


@given(st.lists(st.floats(1.0, 10_000.0), min_size=3, max_size=20), st.floats(0.0, 100_000.0))
def test_stale_is_thrice_the_longest_pause_between_scores(gaps, silent_s):
    log = Log()
    for step, gap in enumerate(gaps):
        log.now += gap
        log.report(step)
    longest = max(gaps[1:])
    words = staleness(log.record, log.now + silent_s)
    assert bool(words) == (silent_s > max(STALE_AFTER_S, STALE_AFTER_GAPS * longest))
    log.now += silent_s
    log.report(len(gaps))
    assert staleness(log.record, log.now) == "", "a score ends it"


@given(st.sampled_from(["ended", "waiting", "restarted", "few"]))
def test_a_job_that_cannot_report_is_not_stale(why):
    log = Log()
    for step in range(2 if why == "few" else 10):
        log.now += 10.0
        log.report(step)
    now = log.now + 1e6
    if why == "ended":
        log.record.outcome = Outcome.COMPLETED
    elif why == "waiting":
        log.record.view = _View(Phase.WAITING)
    elif why == "restarted":
        log.record.view = _View(Phase.RUNNING, started_at=now - 1.0)
    assert staleness(log.record, now) == ""


@given(st.integers(0, 6), st.integers(0, 6), st.sampled_from([0.5, math.nan]))
def test_blind_is_three_reports_of_another_metric_and_none_of_its_own(own, other, score):
    log = Log(metric="accuracy")
    for step in range(own):
        log.report(step, score)
    for step in range(other):
        log.report(step, metric="f1")
    assert bool(blindness(log.record)) == (own == 0 and other >= 3)
