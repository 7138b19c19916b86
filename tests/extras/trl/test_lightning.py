"""The callback inside Lightning's own Trainer."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_trainer import HACKED, HEALTHY, STDERR
from torch.utils.data import DataLoader, TensorDataset

from evalstop.client.lightning import EvalStopLightning
from evalstop.core.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")


EPOCHS = len(HACKED)


class Model(LightningModule):
    """A linear model whose world feedback is scripted: one score an epoch."""

    def __init__(self, scores):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.scores = scores

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, _batch, _):
        self.log("win_rate", self.scores[self.current_epoch])
        self.log("error", STDERR)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class TalkingModel(Model):
    """It logs the error as loggers name it, and what is going on beside the score."""

    def validation_step(self, batch, place):
        super().validation_step(batch, place)
        self.log("win_rate_stderr", STDERR)
        self.log("objective/kl", 0.5 * self.current_epoch)


def fit(folder, scores, callback, *, resume=None, epochs=EPOCHS, callbacks=(), model=Model):
    data = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, *callbacks],
    )
    trainer.fit(model(scores), data, data, ckpt_path=resume)
    return trainer


def guard(**options):
    return EvalStopLightning("win_rate", direction="max", stderr="error", **options)


def test_a_falling_run_is_stopped_and_a_healthy_one_is_not(tmp_path):
    falling, healthy = guard(), guard()
    assert fit(tmp_path / "a", HACKED, falling).current_epoch < len(HACKED)
    assert falling.verdict.best_score == pytest.approx(max(HACKED))
    assert fit(tmp_path / "b", HEALTHY, healthy).current_epoch == len(HEALTHY)
    assert healthy.stopped_at is None


def test_the_error_is_found_by_its_usual_name_and_side_signals_are_kept(tmp_path):
    named, found = guard(), EvalStopLightning("win_rate", direction="max")
    fit(tmp_path / "a", HACKED, named)
    fit(tmp_path / "b", HACKED, found, model=TalkingModel)
    assert found.verdict == named.verdict
    points = found.state_dict()["points"]
    assert [point["stderr"] for point in points] == [pytest.approx(STDERR)] * len(points)
    assert [point["signals"] for point in points] == [{"kl": i / 2} for i in range(len(points))]


def test_the_curve_comes_back_with_the_checkpoint(tmp_path):
    whole = guard()
    fit(tmp_path / "whole", HACKED, whole)
    assert whole.stopped_at is not None
    keep = ModelCheckpoint(dirpath=tmp_path / "kept", save_last=True)
    fit(tmp_path / "part", HACKED, guard(), epochs=3, callbacks=[keep])
    resumed = guard()
    fit(tmp_path / "part", HACKED, resumed, resume=tmp_path / "kept" / "last.ckpt")
    assert resumed.stopped_at == whole.stopped_at
    assert resumed.verdict == whole.verdict


def test_a_metric_that_is_not_logged_is_said_with_those_that_are(tmp_path, caplog):
    callback = EvalStopLightning("wn_rate", direction="max")
    assert fit(tmp_path, HACKED[:3], callback, epochs=3).current_epoch == 3
    assert "'wn_rate' was not logged; there is: error, win_rate" in caplog.text


def test_a_rule_that_cannot_judge_lets_the_run_go_on(tmp_path, caplog):
    assert fit(tmp_path, HACKED, guard(rule="stop-at:fraction=0.5")).current_epoch == len(HACKED)
    assert "unwatched" in caplog.text


def test_mistakes_are_refused_at_once():
    with pytest.raises(InputError, match="direction"):
        EvalStopLightning("win_rate", direction="higher")
    with pytest.raises(ValueError, match="version 9"):
        guard().load_state_dict({"version": 9, "points": []})
