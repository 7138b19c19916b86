"""The parts of W&B's public API that are relied on exist in the package; no service is asked."""

import inspect

from wandb.apis.public import Api, Run

from evalstop.feedback.scores import Watch
from evalstop.feedback.wandb import WandbPoll


def test_the_api_has_what_is_called():
    assert "path" in inspect.signature(Api.run).parameters
    assert "min_step" in inspect.signature(Run.scan_history).parameters
    assert isinstance(Run.lastHistoryStep, property)
    assert hasattr(Run, "summary")


def test_the_packages_own_objects_are_used(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr("wandb.Api", lambda: "the api")
    assert WandbPoll("wandb:a/b/c", Watch(job="j", metric="m", direction="max"))._api == "the api"
