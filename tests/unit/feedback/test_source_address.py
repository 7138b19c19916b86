import pytest

from evalstop.core.errors import InputError
from evalstop.feedback.address import KINDS, source_at
from evalstop.feedback.scores import Watch

WATCH = Watch(job="j", metric="acc", direction="max")


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("evals.jsonl", "JsonlTail"),
        ("C:/evals.jsonl", "JsonlTail"),
        ("jsonl:evals.jsonl", "JsonlTail"),
        ("trainer:out", "TrainerStateTail"),
        ("tensorboard:runs/a", "TensorBoardTail"),
        ("results:evals", "ResultsFolder"),
        ("mlflow:http://localhost:5000?run=1", "MlflowPoll"),
    ],
)
def test_the_kind_names_the_source(address, kind):
    assert type(source_at(address, WATCH)).__name__ == kind


def test_a_place_that_makes_no_sense_is_refused():
    with pytest.raises(InputError):
        source_at("mlflow:", WATCH)
    assert "wandb" in KINDS


def test_a_job_whose_source_cannot_be_made_runs_on_visibly_unwatched():
    from evalstop.core.errors import ReadError
    from evalstop.core.job import JobSpec
    from evalstop.service.sources import sources_of

    labels = {"metric": "acc", "direction": "max", "evals": "mlflow:"}
    (source,) = sources_of(JobSpec(id="j", labels=labels), None, ())
    with pytest.raises(ReadError, match="expected mlflow:URI"):
        source.readings()
