"""One decision for all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

__all__ = ["agree"]


def agree(decision: tuple[int, int], device: Any) -> tuple[int, int]:  # noqa: ANN401 -- a torch device
    """Return the first rank's decision on every rank.

    A collective: every rank must call it at the same step, and waits for the slowest. Without an
    initialised process group the decision is its own.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return decision
    if distributed.get_world_size() == 1:
        return decision
    words = torch.tensor(decision, dtype=torch.int64, device=device)
    distributed.broadcast(words, src=0)
    first, second = words.tolist()
    return first, second
