"""What each format gives."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalstop.config.rules import parse_rule
from evalstop.core.errors import ReadError
from evalstop.core.points import binomial_stderr
from evalstop.traces.replay import replay
from evalstop.traces.series import Curve, normalise
from evalstop.traces.sources import read_source


def only(loaded):
    assert not loaded.errors
    (curve,) = loaded.curves
    return curve


def test_every_column_of_the_long_form_is_read(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        "trace_id,step,value,metric,greater_is_better,stderr,n_items,job_type,loss,proxy,label\n"
        "a,1,0.5,acc,True,0.01,100,grpo,2.5,0.1,healthy\n"
        "a,2,0.6,acc,True,,200,grpo,,,healthy\n"
    )
    curve = only(read_source(path))
    assert (curve.trace_id, curve.metric, curve.greater_is_better) == ("a", "acc", True)
    assert (curve.job_type, curve.label, curve.source) == ("grpo", "healthy", str(path))
    assert (list(curve.steps), list(curve.scores)) == ([1, 2], [0.5, 0.6])
    assert list(curve.losses) == [(1, 2.5)]
    first, second = normalise(curve, "max", "grpo").points
    assert (first.stderr, first.n_items, first.proxy) == (0.01, 100, 0.1)
    assert second.stderr == pytest.approx(binomial_stderr(0.6, 200))
    assert second.proxy is None


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_the_same_rows_give_the_same_curves_in_every_format(tmp_path, suffix):
    rows = [
        {"trace_id": t, "metric": m, "step": s, "score": v, "greater_is_better": m == "acc"}
        for t, m, s, v in [("b", "acc", 1, 0.5), ("a", "loss", 2, 1.5), ("b", "acc", 3, math.nan)]
    ]
    path = tmp_path / f"x{suffix}"
    if suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(str(v) for v in row.values()) for row in rows)]
        path.write_text("\n".join(lines))
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    curves = read_source(path).curves
    assert [(c.trace_id, c.metric, c.greater_is_better) for c in curves] == [
        ("b", "acc", True),
        ("a", "loss", False),
    ]
    assert list(curves[0].steps) == [1, 3]
    assert math.isnan(curves[0].scores[1])


def test_byte_order_marks_quotes_and_blank_lines_do_not_matter(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'\xef\xbb\xbftrace_id,step,score\r\n"a,b",1, 0.5\r\n\r\n"a,b",2,0.6\r\n')
    curve = only(read_source(path))
    assert (curve.trace_id, list(curve.scores)) == ("a,b", [0.5, 0.6])


def test_numbers_as_trace_ids_stay_text(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"trace_id": [7, 7], "step": [1, 2], "score": [1, 2]}), path)
    assert only(read_source(path)).trace_id == "7"


def test_missing_and_negative_reports_are_left_out_with_a_reason(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("trace_id,step,score\na,-1,0.1\na,1,0.2\na,2,\na,3,0.3\n")
    curve = only(read_source(path))
    assert list(curve.steps) == [1, 3]
    assert [(s.step, s.reason) for s in curve.skipped] == [
        (-1, "step -1 is negative"),
        (2, "no score"),
    ]


def test_a_table_with_one_column_a_metric_is_read_by_name(tmp_path):
    path = tmp_path / "run7.csv"
    path.write_text("step,train_loss,val/accuracy\n0,2.0,0.1\n5,1.5,0.4\n")
    curve = only(read_source(path, "val_accuracy"))
    assert (curve.trace_id, curve.metric, list(curve.scores)) == (
        "run7",
        "val/accuracy",
        [0.1, 0.4],
    )


def test_scores_in_percent_get_errors_in_percent(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("trace_id,step,score,n_items\na,1,50,100\na,2,0,100\n")
    points = normalise(only(read_source(path)), "max").points
    assert points[0].stderr == pytest.approx(100 * math.sqrt(0.25 / 100), rel=0.01)
    assert points[1].stderr > 0


def test_losses_and_scores_beyond_percent_get_no_binomial_error(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("trace_id,step,metric,score,n_items\na,1,loss,0.5,9\na,1,elo,1200,9\n")
    for curve in read_source(path).curves:
        assert normalise(curve, "max").points[0].stderr is None


def test_normalising_turns_the_metric_and_back():
    curve = Curve(trace_id="a", source="s", metric="wer", steps=[2, 1], scores=[30.0, math.inf])
    series = normalise(curve, "min")
    assert [point.step for point in series.points] == [1, 2]
    assert math.isnan(series.points[0].score)
    assert series.points[1].score == -30.0
    assert series.raw(series.points[1].score) == 30.0


LOG = [
    {"step": 5, "loss": 2.0, "reward": 0.1},
    {"step": 10, "eval_wer": 30.0, "eval_loss": 1.0, "eval_runtime": 3.0},
    {"step": 15, "loss": 1.0, "reward": 0.2},
    {"step": 20, "eval_wer": 20.0, "eval_loss": float("nan")},
    {"step": 30, "eval_wer": 25.0, "eval_loss": "n/a"},
]


@pytest.mark.parametrize(
    ("best", "wer_states"), [(20.0, False), (30.0, True), (None, None), (25.0, None)]
)
def test_a_trainer_state_states_its_direction_by_its_best(tmp_path, best, wer_states):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": LOG, "best_metric": best}))
    curves = read_source(path).curves
    stated = {curve.metric: curve.greater_is_better for curve in curves}
    assert stated == {"eval_wer": wer_states, "eval_loss": None}


def test_a_trainer_state_gives_losses_rewards_and_what_was_left_out(tmp_path):
    folder = tmp_path / "myrun" / "checkpoint-30"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    wer, loss = read_source(folder / "trainer_state.json").curves
    assert wer.trace_id == "myrun"
    assert list(wer.losses) == [(5, 2.0), (15, 1.0)]
    assert list(wer.proxies) == [0.1, 0.2, 0.2]
    assert math.isnan(loss.scores[1])
    assert loss.skipped[0].reason == "not a number: 'n/a'"


def test_a_folder_takes_each_runs_newest_state(tmp_path):
    for run, steps in (("a", (10, 20)), ("b/c", (10,))):
        for step in steps:
            folder = tmp_path / run / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            log = [entry for entry in LOG if entry["step"] <= step]
            (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    curves = read_source(tmp_path).curves
    found = {(c.trace_id, tuple(c.steps)) for c in curves if c.metric == "eval_wer"}
    assert found == {("a", (10, 20)), ("b/c", (10,))}


def test_verls_log_gives_its_validation_metrics_with_the_reward_beside(tmp_path):
    path = tmp_path / "exp.jsonl"
    name = "val-core/gsm8k/reward/mean@1"
    lines = [
        {"step": 0, "data": {name: 0.3}},
        {"step": 1, "data": {"critic/rewards/mean": 0.5}},
        {"step": 5, "data": {name: 0.4, "critic/rewards/mean": 0.6}},
        {"step": 10, "data": {name: float("nan")}},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    curve = only(read_source(path))
    assert (curve.trace_id, curve.metric, list(curve.steps)) == ("exp", name, [0, 5, 10])
    assert math.isnan(curve.proxies[0])
    assert curve.proxies[1] == 0.6
    assert math.isnan(curve.scores[2])


def results(step, score, stderr, version=1, task="toy"):
    return {
        "results": {
            task: {"alias": task, "sample_len": 50, "acc,none": score, "acc_stderr,none": stderr}
        },
        "higher_is_better": {task: {"acc": True}},
        "n-samples": {task: {"original": 100, "effective": 50}},
        "versions": {task: version},
        "model_name": f"/out/run1/checkpoint-{step}",
    }


def test_a_folder_of_the_harness_becomes_a_curve_in_order_of_its_checkpoints(tmp_path):
    for step, score, stderr in ((20, 0.6, 0.07), (100, 0.7, "N/A"), (5, 0.5, 0.07)):
        folder = tmp_path / f"__out__run1__checkpoint-{step}"
        folder.mkdir()
        path = folder / f"results_2026-01-01T00-00-{step}.json"
        path.write_text(json.dumps(results(step, score, stderr)))
        (folder / "samples_toy.jsonl").write_text('{"doc_id": 1}\n')
    curve = only(read_source(tmp_path))
    assert (curve.trace_id, curve.metric, curve.greater_is_better) == ("/out/run1", "toy/acc", True)
    points = normalise(curve, "max").points
    assert [(p.step, p.score) for p in points] == [(5, 0.5), (20, 0.6), (100, 0.7)]
    assert points[0].stderr == 0.07
    assert points[2].stderr == pytest.approx(binomial_stderr(0.7, 50))


def test_a_new_version_of_a_task_is_a_new_epoch(tmp_path):
    for step, version in ((1, 1), (2, 2)):
        (tmp_path / f"results_{step}.json").write_text(
            json.dumps(results(step, 0.5, 0.1, version=version))
        )
    points = normalise(only(read_source(tmp_path)), "max").points
    assert points[0].epoch_key != points[1].epoch_key


@pytest.mark.parametrize(
    ("model", "arguments", "run", "step"),
    [
        ("out/global_step_40/actor", None, "out//actor", 40),
        ("", "pretrained=m/step-7,dtype=auto", "m", 7),
        ("", {"pretrained": "m/ckpt_12"}, "m", 12),
        ("checkpoint-3", None, "run", 3),
    ],
)
def test_the_step_is_read_off_the_checkpoints_path(tmp_path, model, arguments, run, step):
    data = results(1, 0.5, 0.1) | {"model_name": model, "config": {"model_args": arguments}}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    curve = only(read_source(path))
    assert (curve.trace_id, list(curve.steps)) == (run, [step])


def test_the_built_in_runs_are_there_with_direction_and_label():
    curves = read_source("example:").curves
    assert len(curves) > 50
    assert all(curve.greater_is_better is not None for curve in curves)
    assert {curve.label for curve in curves} >= {"healthy", "declined", "plateau"}
    assert len(read_source("example:all").curves) > len(curves)


def test_attempts_epochs_and_replicates_are_told_apart(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        "trace_id,step,score,attempt,epoch_key,eval_id\n"
        "a,1,0.5,0,v1,first\na,1,0.6,0,v1,second\na,1,0.7,1,v2,\n"
    )
    points = normalise(only(read_source(path)), "max").points
    assert [(p.attempt, p.epoch_key, p.eval_id) for p in points] == [
        (0, "v1", "first"),
        (0, "v1", "second"),
        (1, "v2", None),
    ]


def test_an_unknown_example_is_refused():
    with pytest.raises(ReadError, match="example:all"):
        read_source("example:most")


def test_replay_says_what_side_signals_did_and_decides_without_them(tmp_path):
    log, bare = [], []
    for step, score in enumerate([0.50, 0.60, 0.55, 0.50, 0.45], start=1):
        training = {"step": step, "loss": 1.0}
        log.append(training | {"kl": step**2, "completions/mean_length": 100.0})
        bare.append(training)
        for lines in (log, bare):
            lines.append({"step": step, "eval_accuracy": score})
    results = []
    for name, lines in (("with", log), ("without", bare)):
        path = tmp_path / name / "trainer_state.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"log_history": lines}))
        rule = parse_rule("consecutive:k=2")
        report = replay(path, rule, metric="eval_accuracy", direction="max", job_type="rlhf")
        results += report.results
    told, untold = results
    (words,) = told.remarks
    assert words.startswith(
        "KL from the start rose from 2.5 to 12.5 since the best score at step 2"
    )
    assert untold.remarks == ()
    assert (told.stop_step, told.reason) == (untold.stop_step, untold.reason) == (4, told.reason)
