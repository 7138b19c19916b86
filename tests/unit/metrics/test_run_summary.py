"""Several seeds in one tree: what the contract names is there, intervals hold the figures."""

import json
import math

import pytest

from evalstop.metrics.summary import json_tree, summarise

SYSTEM = [
    "jct_mean_s",
    "jct_completed_mean_s",
    "jct_p50_s",
    "jct_p95_s",
    "makespan_s",
    "queue_delay_mean_s",
    "utilisation",
    "gpu_hours_used",
    "gpu_hours_wasted",
    "gpu_hours_hacking",
    "gpu_hours_lost_healthy",
    "gpu_hours_reclaimed",
    "jain_tenants",
]
QUALITY = ["delivered_score_mean", "regret_mean"]
DETECTION = [
    "tp",
    "fp",
    "fn",
    "tn",
    "precision",
    "recall",
    "fpr",
    "fpr_rlhf",
    "f1",
    "delay_evals_mean",
    "early_stops",
]


def test_the_tree_has_every_name_of_the_contract_and_intervals_the_same(story):
    tree = json_tree(summarise([story, story], gpus=8))
    for branch, names in (("system", SYSTEM), ("quality", QUALITY), ("detection", DETECTION)):
        assert set(names) <= set(tree[branch])
        assert set(tree["intervals"][branch]) == set(tree[branch])


def test_counts_are_pooled_and_figures_averaged(story, make_columns):
    other = make_columns(end_s=[10.0, 20.0])
    summary = summarise([story, other], gpus=8)
    assert summary.detection["tp"] == 2
    assert summary.detection["tn"] == 3
    assert summary.system["jct_mean_s"] == pytest.approx((87.5 + 15.0) / 2)
    assert summary.detection["fpr"] == pytest.approx(1 / 4)


def test_an_undefined_figure_of_one_seed_is_left_out_of_the_mean(story, make_columns):
    summary = summarise([story, make_columns(end_s=[math.nan])], gpus=8)
    assert summary.system["jct_mean_s"] == pytest.approx(87.5)


def test_intervals_hold_their_figures(story, make_columns):
    summary = summarise([story, make_columns(end_s=[10.0, 20.0]), story], gpus=8)
    for branch, intervals in summary.intervals.items():
        for name, (low, high) in intervals.items():
            if not math.isnan(low):
                assert low <= getattr(summary, branch)[name] <= high, name


@pytest.mark.parametrize("seeds", [0, 1])
def test_too_few_seeds_give_null_and_say_so(story, seeds):
    tree = json_tree(summarise([story] * seeds, gpus=8))
    text = json.dumps(tree, allow_nan=False)
    assert "NaN" not in text
    if seeds == 0:
        assert tree["detection"]["precision"] is None
        assert "detection.precision" in tree["undefined"]
    else:
        assert tree["intervals"]["system"]["jct_mean_s"] is None
        assert tree["intervals"]["detection"]["precision"] is not None
        assert tree["undefined"] == []
