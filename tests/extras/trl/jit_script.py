"""A run that is asked to leave by SIGTERM, with transformers' just-in-time checkpointing on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from tiny_trainer import HEALTHY, World, trainer
from transformers import TrainerCallback

from evalstop.client import EvalStopCallback


class Slow(TrainerCallback):
    def on_step_end(self, *_args, **_):
        time.sleep(0.1)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    scores = [*HEALTHY[:2], 0.7] + [0.69] * 2000  # best at the third evaluation, then a plateau
    callback = EvalStopCallback("eval_world", direction="max")
    made = trainer(
        folder,
        [World(scores), callback, Slow()],
        max_steps=4000,
        save_total_limit=1,
        enable_jit_checkpoint=True,
    )
    made.train()
    (folder / "told").write_text(f"best {callback.best_checkpoint.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
