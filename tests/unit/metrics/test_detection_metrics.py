"""Stops against hidden labels: the story counted by hand, identities, empty cases."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.metrics.detection import (
    Confusion,
    confusion,
    count_early_stops,
    count_stops,
    detection_delays,
)


def test_counts_of_the_story(story):
    assert count_stops(story) == Confusion(tp=2, fp=1, fn=1, tn=1)
    assert count_early_stops(story) == 1


def test_rlhf_only_leaves_out_the_wrongly_stopped_lora_job(story):
    counts = count_stops(story, job_type="rlhf")
    assert counts == Confusion(tp=2, fp=0, fn=1, tn=1)
    assert counts.fpr == 0.0


def test_a_type_that_no_job_has_gives_empty_counts(story):
    counts = count_stops(story, job_type="dpo")
    assert counts == Confusion()
    assert math.isnan(counts.fpr)


def test_delay_counts_evals_after_the_peak_and_leaves_out_early_stops(story):
    assert detection_delays(story).tolist() == [2.0]


def test_a_stop_that_no_eval_raised_has_no_delay(make_columns, story):
    columns = make_columns(
        hacking=[True], outcome=[story.outcome[0]], peak_s=[40.0], stop_eval=[-1]
    )
    assert detection_delays(columns).size == 0
    assert count_stops(columns).tp == 1


def test_service_added_up_in_pieces_is_not_early(make_columns, story):
    columns = make_columns(
        hacking=[True],
        outcome=[story.outcome[0]],
        peak_s=[0.3],
        service_s=[0.3 - 1e-16],
        stop_eval=[4],
        peak_evals=[3],
    )
    assert count_early_stops(columns) == 0
    assert detection_delays(columns).tolist() == [2.0]


@pytest.mark.parametrize(
    ("counts", "rates"),
    [
        (Confusion(tp=95, fp=2, fn=1, tn=102), (95 / 97, 95 / 96, 2 / 104, 190 / 193, 96 / 200)),
        (Confusion(), (math.nan, math.nan, math.nan, math.nan, math.nan)),
        (Confusion(tn=5), (math.nan, math.nan, 0.0, math.nan, 0.0)),
        (Confusion(fn=5), (math.nan, 0.0, math.nan, 0.0, 1.0)),
        (Confusion(fp=3), (0.0, math.nan, 1.0, 0.0, 0.0)),
    ],
)
def test_rates(counts, rates):
    got = (counts.precision, counts.recall, counts.fpr, counts.f1, counts.base_rate)
    assert got == pytest.approx(rates, nan_ok=True)


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_counts_add_up_to_the_jobs(pairs):
    counts = confusion([h for h, _ in pairs], [s for _, s in pairs])
    assert counts.tp + counts.fp + counts.fn + counts.tn == len(pairs)
    assert counts.tp + counts.fn == sum(h for h, _ in pairs)
    assert counts.tp + counts.fp == sum(s for _, s in pairs)


@given(*[st.integers(0, 50)] * 4)
def test_f1_is_the_harmonic_mean(tp, fp, fn, tn):
    counts = Confusion(tp=tp, fp=fp, fn=fn, tn=tn)
    if tp:
        p, r = counts.precision, counts.recall
        assert counts.f1 == pytest.approx(2 * p * r / (p + r))


def test_stopping_everything_has_the_base_rate_as_precision():
    counts = confusion([True, False, False, True], [True] * 4)
    assert counts.precision == counts.base_rate
