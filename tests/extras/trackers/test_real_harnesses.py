"""Against files that lm-evaluation-harness and inspect_ai write themselves."""

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest

from evalstop.feedback.results_folder import ResultsFolder
from evalstop.feedback.scores import Watch
from evalstop.traces.series import normalise
from evalstop.traces.sources import read_source

STEPS = (500, 20, 100)


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """Evaluate a task of 20 questions with the harness's own dummy model, at three checkpoints."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("lm_eval")
    rows = [{"q": f"{i}+1=", "choices": ["1", "2"], "a": i % 2} for i in range(20)]
    (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "toy.yaml").write_text(
        f"task: toy_mc\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {folder}/data.jsonl\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: a\nmetric_list:\n'
        "  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
        "metadata:\n  version: 1.0\n"
    )
    scores = {}
    for step in STEPS:
        tracker = EvaluationTracker(output_path=str(folder / "out"))
        results = lm_eval.simple_evaluate(
            model="dummy",
            tasks=["toy_mc"],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            evaluation_tracker=tracker,
            bootstrap_iters=10,
        )
        model = f"/runs/mine/checkpoint-{step}"
        tracker.general_config_tracker.model_name = model
        tracker.general_config_tracker.model_name_sanitized = model.replace("/", "__")
        tracker.save_results_aggregated(results=results, samples=None)
        scores[step] = results["results"]["toy_mc"]
    return folder / "out", scores


def test_the_harness_gives_a_curve_with_errors_and_direction(harness):
    folder, scores = harness
    (curve,) = read_source(folder).curves
    assert (curve.trace_id, curve.metric) == ("/runs/mine", "toy_mc/acc")
    assert curve.greater_is_better is True
    points = normalise(curve, "max").points
    assert [point.step for point in points] == sorted(STEPS)
    for point in points:
        assert point.score == scores[point.step]["acc,none"]
        assert point.stderr == scores[point.step]["acc_stderr,none"]
        assert point.n_items == 20


def test_the_harness_is_followed(harness):
    folder, _ = harness
    source = ResultsFolder(folder, Watch(job="j", metric="acc", direction="max"))
    assert {reading.point.step for reading in source.readings()} == set(STEPS)
    assert source.readings() == []
    assert source.names == {"toy_mc/acc"}


def written_log(path, step, score):
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalMetric,
        EvalResults,
        EvalScore,
        EvalSpec,
        EvalStats,
        write_eval_log,
    )

    metrics = {
        "accuracy": EvalMetric(name="accuracy", value=score),
        "stderr": EvalMetric(name="stderr", value=0.04),
    }
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created="2026-01-01T00:00:00+00:00",
            task="gsm8k",
            task_version=2,
            dataset=EvalDataset(name="gsm8k", samples=100),
            model=f"hf//runs/mine/checkpoint-{step}",
            config=EvalConfig(limit=100),
        ),
        results=EvalResults(
            total_samples=100,
            completed_samples=100,
            scores=[EvalScore(name="match", scorer="match", scored_samples=90, metrics=metrics)],
        ),
        stats=EvalStats(),
    )
    write_eval_log(log, str(path))


def test_logs_of_inspect_are_read_as_it_compresses_them(tmp_path):
    for step, score in ((100, 0.6), (20, 0.5)):
        written_log(tmp_path / f"2026_gsm8k_{step}.eval", step, score)
    (curve,) = read_source(tmp_path).curves
    points = normalise(curve, "max").points
    assert [(p.step, p.score, p.stderr, p.n_items) for p in points] == [
        (20, 0.5, 0.04, 90),
        (100, 0.6, 0.04, 90),
    ]
    source = ResultsFolder(tmp_path, Watch(job="j", metric="match/accuracy", direction="max"))
    assert len(source.readings()) == 2
