"""What OpenRLHF's own code writes: scores to TensorBoard and W&B, checkpoints by its tags.

Its trainer needs vLLM and DeepSpeed on GPUs; what it does with an evaluation does not.
"""

from __future__ import annotations

import math
import sys
import types
from types import SimpleNamespace

import openrlhf_code
import pytest
import torch

from evalstop.config.rules import parse_rule
from evalstop.custody import FileCustody, find
from evalstop.feedback.scores import Watch
from evalstop.feedback.tensorboard import TensorBoardTail
from evalstop.feedback.wandb import WandbPoll
from evalstop.traces.replay import replay
from evalstop.traces.sources import read_source

pytestmark = pytest.mark.filterwarnings("ignore")

PPO, LOGGING, DEEPSPEED = openrlhf_code.imported()
SHARES = {10: 0.5, 20: 0.75, 30: 0.625, 40: 0.5, 50: 0.375}
PROMPTS, ANSWERS = 16, 4
BEST_KEY = "eval_math/gsm8k_pass1"  # as --ckpt.best_metric_key takes it


def evaluation(share, source="math/gsm8k"):
    """Return the metrics that OpenRLHF's own function makes of answers, ``share`` of them right."""
    right = round(share * PROMPTS)
    prompts = [f"question {i}" for i in range(PROMPTS)]
    samples = [
        SimpleNamespace(
            prompts=[prompt],
            rewards=1.0 if place < right else 0.0,
            response_length=torch.tensor(7.0),
            truncated=torch.tensor(0.0),
        )
        for place, prompt in enumerate(prompts)
        for _ in range(ANSWERS)
    ]
    loader = [([source] * PROMPTS, prompts, prompts, None)]
    return PPO.compute_eval_metrics(loader, samples, ANSWERS)


def arguments(folder):
    return SimpleNamespace(
        ckpt=SimpleNamespace(
            best_metric_key="", path=str(folder), save_steps=10, max_num=2, max_mem=math.inf
        ),
        logger=SimpleNamespace(
            tensorboard_dir=str(folder / "tensorboard"),
            wandb=SimpleNamespace(run_name="ppo_0101", key="k", org=None, project="p", group="g"),
            logging_steps=10,
        ),
        eval=SimpleNamespace(n_samples_per_prompt=ANSWERS),
    )


@pytest.fixture
def logged(tmp_path):
    logger = LOGGING.TensorboardLogger(arguments(tmp_path))
    for step, share in SHARES.items():
        logger.log_train(step, {"policy_loss": 0.1, "rollout/reward_mean": step / 100})
        logger.log_eval(step, evaluation(share))
    logger.close()
    return tmp_path / "tensorboard"


@pytest.mark.parametrize("metric", [BEST_KEY, "eval/eval_math/gsm8k_pass1", "math/gsm8k_pass1"])
def test_its_tensorboard_events_are_replayed_under_its_own_names(logged, metric):
    report = replay(
        logged / "ppo_0101", parse_rule("consecutive:k=2"), direction="max", metric=metric
    )
    (result,) = report.results
    assert (result.stop_step, result.best_step, result.best_score) == (40, 20, 0.75)


def test_scores_come_with_the_number_of_prompts_and_the_training_reward(logged):
    curves = {curve.metric: curve for curve in read_source(logged).curves}
    curve = curves["eval/eval_math/gsm8k_pass1"]
    assert list(curve.n_items) == [PROMPTS] * 5
    assert list(curve.proxies) == pytest.approx([step / 100 for step in SHARES])
    assert curves["eval/eval_response_length_mean"].n_items is None


def test_with_two_sources_the_number_of_prompts_is_not_known(tmp_path):
    logger = LOGGING.TensorboardLogger(arguments(tmp_path))
    logger.log_eval(10, evaluation(0.5, "gsm8k") | evaluation(0.5, "math"))
    logger.close()
    assert all(curve.n_items is None for curve in read_source(tmp_path).curves)


def test_a_run_is_followed_with_standard_errors(logged):
    watch = Watch(job="j", metric=BEST_KEY, direction="max")
    readings = TensorBoardTail(logged / "ppo_0101", watch).readings()
    assert [(r.point.step, r.point.score) for r in readings] == list(SHARES.items())
    assert {r.point.n_items for r in readings} == {PROMPTS}
    assert readings[0].point.stderr == pytest.approx(math.sqrt(0.25 / PROMPTS))


def test_rows_of_its_wandb_logger_are_read_at_the_trainers_step(tmp_path, monkeypatch):
    """The service's package is a stand-in that keeps the rows; OpenRLHF's logger makes them."""
    rows: list[dict] = []
    wandb = types.ModuleType("wandb")
    wandb.api = SimpleNamespace(api_key="k")
    wandb.init = wandb.define_metric = wandb.Table = lambda *_, **__: None
    wandb.log = lambda row: rows.append({"_step": len(rows), "_timestamp": 1.0, **row})
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logger = LOGGING.WandbLogger(arguments(tmp_path))
    for step, share in SHARES.items():
        logger.log_train(step, {"policy_loss": 0.1})
        logger.log_eval(step, evaluation(share))
    run = SimpleNamespace(
        summary={key: value for row in rows for key, value in row.items()},
        lastHistoryStep=len(rows) - 1,
        scan_history=lambda min_step: [row for row in rows if row["_step"] >= min_step],
    )
    api = SimpleNamespace(run=lambda _path: run)
    source = WandbPoll("wandb:a/b/c", Watch(job="j", metric=BEST_KEY, direction="max"), api)
    read = [(r.point.step, r.point.score) for r in source.readings()]
    assert read == list(SHARES.items())


class Group:
    """The actor's group of workers: one, whose saves go through OpenRLHF's own strategy."""

    def __init__(self, folder):
        self.folder = folder / "_actor"
        self.engine = openrlhf_code.engine(DEEPSPEED)
        self.strategy = DEEPSPEED.DeepspeedStrategy.__new__(DEEPSPEED.DeepspeedStrategy)
        self.strategy.print = lambda *_: None

    def async_run_method(self, *, method_name, tag, client_states, metric_value, metric_key):
        assert method_name == "save_checkpoint"
        self.strategy.save_ckpt(
            self.engine, str(self.folder), tag, 2, math.inf, client_states,
            metric_value=metric_value, metric_key=metric_key,
        )  # fmt: skip
        return []


def test_its_checkpoints_are_found_and_the_best_outlives_its_rotation(tmp_path, monkeypatch):
    """OpenRLHF deletes the old best before it writes the new one; custody keeps both until then."""
    monkeypatch.setattr(PPO.ray, "get", lambda refs: refs)
    monkeypatch.setattr(DEEPSPEED, "torch_dist_barrier_and_cuda_sync", lambda: None)
    trainer = PPO.BasePPOTrainer.__new__(PPO.BasePPOTrainer)
    trainer.args = arguments(tmp_path)
    trainer.wandb_logger = trainer.tensorboard_logger = trainer.critic_model_group = None
    trainer.best_eval_metric_key, trainer.best_eval_metric_value = "", -math.inf
    trainer._latest_eval_metric_value = None
    trainer.actor_model_group = group = Group(tmp_path)
    custody = FileCustody(
        tmp_path / "pins", marker=DEEPSPEED.DeepspeedStrategy.CKPT_METRIC_FILENAME
    )
    for step, share in SHARES.items():
        group.engine.step = float(step)
        trainer.save_logs_and_checkpoints(step, {}, {})
        trainer.save_best_checkpoint(evaluation(share), step, {})
        for one in find(group.folder):
            custody.pin("j", one.step, one.path)
    there = {(one.step, one.name) for one in find(group.folder)}
    assert (20, "best_global_step20") in there
    assert sum(name.startswith("best") for _, name in there) == 1
    assert len(there) == 3  # max_num regular ones beside it
    pinned = {(pin.step, pin.name): pin for pin in custody.pins("j")}
    assert {name for _, name in pinned} == {
        *(f"global_step{step}" for step in SHARES),
        "best_global_step10",
        "best_global_step20",
    }
    best = pinned[20, "best_global_step20"]
    custody.verify(best)
    states = torch.load(f"{best.path}/mp_rank_00_model_states.pt", weights_only=False)
    assert float(states["module"]["w"]) == 20.0
    assert states["best_eval_metric_key"] == BEST_KEY
