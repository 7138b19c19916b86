"""One rank of the test of ranks: torchrun starts four of these."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from tiny_trainer import HACKED, HEALTHY, World, trainer
from transformers import TrainerCallback

from evalstop.client import EvalStopCallback

SLOW_RANK = 3


class Straggler(TrainerCallback):
    def on_step_end(self, *_args, **_):
        time.sleep(0.05)

    def on_evaluate(self, *_args, **_):
        time.sleep(0.3)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # Only the first rank sees the decline: were another one to decide for itself, it would stay.
    callback = EvalStopCallback("eval_world", direction="max")
    callbacks = [World(HACKED if rank == 0 else HEALTHY), callback]
    if rank == SLOW_RANK:
        callbacks.insert(0, Straggler())
    made = trainer(folder / "run", callbacks, ddp_backend="gloo", save_total_limit=1)
    made.train()
    told = {
        "left_at": made.state.global_step,
        "stopped_at": callback.stopped_at,
        "best": str(callback.best_checkpoint),
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
