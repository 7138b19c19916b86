"""Files as real runs left them give the numbers that ship as example data."""

from pathlib import Path

import pytest

from evalstop.config.rules import parse_rule
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source

ORIGINALS = Path(__file__).parent / "originals"


@pytest.fixture(scope="module")
def shipped():
    return {curve.trace_id: curve for curve in read_source("example:all").curves}


@pytest.mark.parametrize(
    ("folder", "metric", "trace_id"),
    [
        ("agnews", "eval_accuracy", "lora-roberta-agnews-run4:eval_accuracy"),
        ("agnews", "loss", "lora-roberta-agnews-run4:eval_loss"),
        ("flemish", "eval/wer", "whisper-v2-flemish:eval_wer"),
        ("dpo", "val_loss", "dpo-llama31-8b-DPOP_content_lr3.0e-06_b0.10_dp50.0:val_loss"),
    ],
)
def test_an_original_gives_the_shipped_series(shipped, folder, metric, trace_id):
    wanted = shipped[trace_id]
    direction = "max" if wanted.greater_is_better else "min"
    report = replay(ORIGINALS / folder, parse_rule("none"), metric=metric, direction=direction)
    (series,) = report.series
    assert [point.step for point in series.points] == list(wanted.steps)
    assert [series.raw(point.score) for point in series.points] == pytest.approx(wanted.scores)


def test_a_trainer_state_needs_no_direction_where_it_watched_a_metric():
    (result,) = replay(ORIGINALS / "flemish", parse_rule("default")).results
    assert (result.metric, result.direction) == ("eval_wer", "min")
    assert result.best_score == pytest.approx(9.615871912312803)  # the state's own best_metric
    assert result.best_step == 15000
