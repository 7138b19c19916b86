"""The checkpoint callback inside verl's own trainer loop; see `tiny_verl` for what is real."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from free_ports import free_port
from tiny_verl import METRIC, TinyPPOTrainer, configuration, without_transfer_queue

from evalstop.client.curve import read_curve
from evalstop.client.pins import Pins
from evalstop.client.verl import is_whole
from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.traces.replay import replay

pytestmark = pytest.mark.filterwarnings("ignore")

FALLING = [0.4, 0.5, 0.6, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2]
RISING = [0.4 + step / 30 for step in range(11)]
PEAK = 3
NOISE = "+trainer.evalstop.n_items=200"
TEN_STEPS = "trainer.total_training_steps=10"


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    where = f"tcp://127.0.0.1:{free_port()}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _log(monkeypatch, tmp_path):
    without_transfer_queue(monkeypatch)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))


def trainer(folder, accuracies, *overrides) -> TinyPPOTrainer:
    return TinyPPOTrainer(configuration(folder, NOISE, TEN_STEPS, *overrides), accuracies)


def ran(folder, accuracies, *overrides) -> TinyPPOTrainer:
    made = trainer(folder, accuracies, *overrides)
    made.run()
    return made


def weights_of(made: TinyPPOTrainer) -> set[float]:
    return {round(float(p.min()), 6) for p in made.actor_rollout_wg.model.parameters()}


def test_a_falling_run_ends_by_verls_own_loop_and_its_best_checkpoint_can_be_loaded(tmp_path):
    """verl keeps the two newest actors; the best is older, and only the pin still has it."""
    made = ran(tmp_path, FALLING)
    callback = made.checkpoint_callback
    assert PEAK < callback.stopped_at < 9
    assert made.trained == list(range(1, callback.stopped_at + 1))
    assert made.validated == list(range(callback.stopped_at + 1))
    best = tmp_path / "checkpoints" / "evalstop" / f"global_step_{PEAK}"
    assert callback.best_checkpoint == best
    assert not (tmp_path / "checkpoints" / f"global_step_{PEAK}" / "actor").exists()
    folder = tmp_path / "again"
    folder.mkdir()
    again = trainer(
        folder, FALLING, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={best}"
    )
    again._init_dataloader()
    again._load_checkpoint()
    assert again.global_steps == PEAK
    assert weights_of(again) == {FALLING[PEAK]}


def test_a_healthy_run_ends_where_it_would_without_us(tmp_path):
    made = ran(tmp_path, RISING)
    assert made.trained == list(range(1, 11))
    assert made.checkpoint_callback.stopped_at is None
    assert made.checkpoint_callback.verdict.best_step == 10


def test_the_curve_holds_each_validation_with_the_training_reward_beside(tmp_path):
    """Three validations come before the first save: they are read from verl's file log."""
    made = ran(tmp_path, RISING, "trainer.save_freq=3")
    points = read_curve(tmp_path / "checkpoints" / "evalstop")
    assert [point["step"] for point in points] == made.validated == list(range(11))
    assert [point["score"] for point in points] == pytest.approx(RISING, abs=0.0026)
    assert [point["proxy"] for point in points] == [None, *(step / 10 for step in range(1, 11))]
    entropies = [point["signals"].get("entropy") for point in points]
    assert entropies == [None, *(2.0 - step / 10 for step in range(1, 11))]
    (result,) = replay(
        tmp_path / "log.jsonl", parse_rule("none"), direction="max", metric=METRIC
    ).results
    assert (result.n_evals, result.best_step) == (11, 10)


def test_without_a_file_log_the_first_validations_are_said_to_be_unknown(tmp_path, caplog):
    ran(tmp_path, RISING, "trainer.logger=[console]")
    assert "add file to trainer.logger" in caplog.text
    points = read_curve(tmp_path / "checkpoints" / "evalstop")
    assert [point["step"] for point in points] == list(range(1, 11))


def test_a_stopped_run_stays_stopped_until_that_is_undone(tmp_path, caplog):
    first = ran(tmp_path, FALLING)
    again = ran(tmp_path, FALLING)
    assert again.trained == []
    assert "stays stopped" in caplog.text
    undone = ran(tmp_path, RISING, "+trainer.evalstop.undo=true")
    assert undone.trained == list(range(first.checkpoint_callback.stopped_at + 1, 11))
    assert undone.checkpoint_callback.stopped_at is None
    restarted = trainer(tmp_path, RISING)  # no longer told to undo, and still undone
    assert not restarted.checkpoint_callback.verdict.alarm


def test_a_run_that_crashed_goes_on_from_its_curve_and_keeps_the_best(tmp_path, monkeypatch):
    """Resumed from step 5 it saves step 6 anew, over the files that were pinned as the best."""
    accuracies = [0.4, 0.5, 0.6, 0.65, 0.65, 0.65, 0.9, 0.6, 0.6]
    crashed = trainer(tmp_path, accuracies, "trainer.total_training_steps=8")
    step = TinyPPOTrainer.step

    def crash(self, metrics, timing_raw):
        if self.global_steps == 7:
            raise RuntimeError
        return step(self, metrics, timing_raw)

    with monkeypatch.context() as patch:
        patch.setattr(TinyPPOTrainer, "step", crash)
        with pytest.raises(RuntimeError):
            crashed.run()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("5")
    accuracies[6] = 0.66
    again = ran(tmp_path, accuracies, "trainer.total_training_steps=8")
    assert again.trained == [6, 7, 8]
    curve = again.checkpoint_callback._monitor.history
    assert [(p.attempt, p.step) for p in curve.series] == [
        *((0, step) for step in range(5)),
        *((1, step) for step in range(5, 9)),
    ]
    assert curve.best.score == 0.9
    best = again.checkpoint_callback.best_checkpoint
    assert best.name == "global_step_6"
    shard = torch.load(best / "actor" / "model_world_size_1_rank_0.pt", weights_only=False)
    assert shard
    assert {round(float(value.min()), 6) for value in shard.values()} == {0.9}


def test_a_metric_that_is_not_there_leaves_the_run_unwatched(tmp_path, caplog):
    made = ran(tmp_path, FALLING, "trainer.evalstop.metric=val-core/math/acc/mean@1")
    assert len(made.trained) == 10
    assert METRIC in caplog.text


def test_the_trained_reward_is_warned_of(tmp_path, caplog):
    ran(tmp_path, RISING, "trainer.evalstop.metric=critic/rewards/mean")
    assert "reward that training maximises" in caplog.text


def test_nothing_that_fails_in_here_ends_the_run(tmp_path, monkeypatch, caplog):
    def broken(*_, **__):
        msg = "no space left"
        raise OSError(msg)

    monkeypatch.setattr(Pins, "saved", broken)
    monkeypatch.setattr(Pins, "scored", broken)
    made = ran(tmp_path, FALLING)
    assert len(made.trained) == 10
    assert "goes on unwatched: OSError: no space left" in caplog.text


def test_advice_only_leaves_the_run_alone(tmp_path, caplog):
    made = ran(tmp_path, FALLING, "+trainer.evalstop.stop=false")
    assert len(made.trained) == 10
    assert "would stop" in caplog.text
    assert made.checkpoint_callback.stopped_at is not None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("~trainer.evalstop.direction", "direction"),
        ("trainer.evalstop.direction=up", "direction"),
        ("+trainer.evalstop.patience=3", "patience"),
        ("+trainer.evalstop.rule=nonsense", "nonsense"),
    ],
)
def test_a_mistake_in_the_settings_is_refused_before_anything_starts(tmp_path, override, words):
    with pytest.raises(InputError, match=words):
        trainer(tmp_path, RISING, override)


def test_checkpoints_written_in_the_background_are_not_taken_for_whole(tmp_path, caplog):
    made = trainer(tmp_path, RISING)
    callback = made.checkpoint_callback
    callback._trainer = made
    folder = tmp_path / "checkpoints" / "global_step_1"
    (folder / "actor").mkdir(parents=True)
    callback.on_save(made, 1, str(folder), async_save=True)
    assert "asynchronously" in caplog.text
    callback.on_save(made, 1, str(folder))
    assert "not whole" in caplog.text
    assert callback.best_checkpoint is None


@pytest.mark.parametrize(
    ("files", "whole"),
    [
        (["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"], True),
        (["model_world_size_2_rank_0.pt"], False),
        (["huggingface/model.safetensors"], True),
        (["fsdp_config.json"], False),
        ([], False),
    ],
)
def test_a_checkpoint_is_whole_with_the_shards_of_all_ranks(tmp_path, files, whole):
    for name in files:
        path = tmp_path / "actor" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert is_whole(tmp_path) == whole


@pytest.fixture
def server(monkeypatch):
    """A server that asks for a stop once it has heard of step 5."""
    heard: list[dict] = []

    class Answers(BaseHTTPRequestHandler):
        def _answer(self):
            body = json.dumps({"stop": any(eval_["step"] >= 5 for eval_ in heard)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            heard.extend(json.loads(self.rfile.read(length))["evals"])
            self._answer()

        do_GET = _answer  # noqa: N815 -- the base's name

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("EVALSTOP_URL", f"http://127.0.0.1:{served.server_port}")
        monkeypatch.setenv("EVALSTOP_JOB_ID", "grpo-1")
        yield heard
        served.shutdown()
        thread.join()


def test_with_a_server_scores_are_reported_and_it_decides(tmp_path, server, monkeypatch, caplog):
    step = TinyPPOTrainer.step

    def slow(self, metrics, timing_raw):
        self.checkpoint_callback._reporter.flush(300)  # a real step takes minutes
        return step(self, metrics, timing_raw)

    monkeypatch.setattr(TinyPPOTrainer, "step", slow)
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made = ran(tmp_path, RISING)
    assert made.checkpoint_callback.stopped_at in {5, 6}
    assert len(made.trained) == made.checkpoint_callback.stopped_at
    assert "the server asked for it" in caplog.text
    assert [eval_["step"] for eval_ in server] == made.validated
    assert {eval_["metric"] for eval_ in server} == {METRIC}
    assert all(eval_["n_items"] == 200 for eval_ in server)
