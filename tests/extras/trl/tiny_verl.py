"""verl's own synchronous PPO trainer on one CPU, without its rollout servers.

Real: the configuration as hydra composes it, the trainer's constructor, data loaders, loop, saves,
resumes and logging, FSDP's checkpoint manager with its rotation, the names of validation metrics.
Made up: a training step (no rollouts, no update of weights) and the accuracy of each answer.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import torch
from tiny_trainer import tiny_model
from torch.distributed.fsdp import FullyShardedDataParallel

from evalstop.lab.start import words_tokenizer

with warnings.catch_warnings():  # of verl's own imports
    warnings.simplefilter("ignore")
    from hydra import compose, initialize_config_module
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

METRIC = "val-core/openai/gsm8k/acc/mean@1"
PROMPTS = 200


def configuration(folder, *overrides: str):
    """Return verl's configuration as ``main_ppo`` gets it from the command line."""
    data = folder / "data.parquet"
    if not data.exists():
        _write_data(data)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"data.train_files={data}",
                f"data.val_files={data}",
                "data.train_batch_size=4",
                "data.dataloader_num_workers=0",
                "data.filter_overlong_prompts=False",
                "trainer.n_gpus_per_node=1",
                "trainer.device=cpu",
                "trainer.logger=[console,file]",
                f"trainer.default_local_dir={folder}/checkpoints",
                "trainer.save_freq=1",
                "trainer.test_freq=1",
                "trainer.max_actor_ckpt_to_keep=2",
                "trainer.checkpoint_callback_class=evalstop.client.verl.EvalStopCheckpoint",
                f"+trainer.evalstop.metric={METRIC}",
                "+trainer.evalstop.direction=max",
                *overrides,
            ],
        )


def _write_data(path) -> None:
    import pandas as pd

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"ship {i}"}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
        }
        for i in range(100)
    ]
    pd.DataFrame(rows).to_parquet(path)


class Workers:
    """The worker group: one rank, its checkpoints written and rotated by verl itself."""

    def __init__(self) -> None:
        self.model = FullyShardedDataParallel(tiny_model(), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        self._manager = FSDPCheckpointManager(
            model=self.model,
            optimizer=optimizer,
            lr_scheduler=scheduler,
            processing_class=words_tokenizer(),
        )
        self.loaded: list[str] = []

    def save_checkpoint(self, local_path, remote_path, global_step, max_ckpt_to_keep=None):
        self._manager.save_checkpoint(local_path, remote_path, global_step, max_ckpt_to_keep)

    def load_checkpoint(self, local_path, del_local_after_load=False):  # noqa: FBT002 -- verl's signature
        self._manager.load_checkpoint(local_path, del_local_after_load=del_local_after_load)
        self.loaded.append(local_path)


class TinyPPOTrainer(PPOTrainerSync):
    """verl's trainer whose accuracy at step n is ``accuracies[n]``, and so is each weight."""

    def __init__(self, config, accuracies: list[float], *, workers: Workers | None = None) -> None:
        super().__init__(config)
        self.accuracies = accuracies
        self.trained: list[int] = []
        self.validated: list[int] = []
        self.tokenizer, self.processor = words_tokenizer(), None
        self.use_critic = False
        self.actor_rollout_wg = workers or Workers()
        self.checkpoint_manager = SimpleNamespace(update_weights=lambda _step: None)

    def run(self) -> None:
        self._init_dump_executor()
        self._init_dataloader()
        self._load_checkpoint()
        self.fit(agent_loop_manager=None)

    def step(self, metrics, timing_raw):  # noqa: ARG002 -- verl's signature
        self.trained.append(self.global_steps)
        with torch.no_grad():
            for parameter in self.actor_rollout_wg.model.parameters():
                parameter.fill_(self.accuracies[self.global_steps])
        metrics["critic/rewards/mean"] = self.global_steps / 10
        metrics["actor/entropy"] = 2.0 - self.global_steps / 10
        return KVBatchMeta(partition_id="train", keys=[], tags=[])

    def _validate(self):
        self.validated.append(self.global_steps)
        right = round(self.accuracies[self.global_steps] * PROMPTS)
        accuracies = [1.0] * right + [0.0] * (PROMPTS - right)
        return self._val_metrics_update(
            ["openai/gsm8k"] * PROMPTS,
            [str(i) for i in range(PROMPTS)],
            {"reward": accuracies, "acc": accuracies},
            [np.int64(1)] * PROMPTS,
        )

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):  # noqa: ARG002 -- as above
        metrics["training/global_step"] = global_steps


def without_transfer_queue(monkeypatch) -> None:
    """No rollouts, so there is nothing to clear from verl's queue, which is not started."""
    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **_: None)
