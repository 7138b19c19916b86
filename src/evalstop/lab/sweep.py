"""A sweep over arms and seeds that can be broken off and taken up again: one file a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from evalstop.lab.arms import ARMS, PANELS
from evalstop.lab.training import Laboratory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from evalstop.lab.arms import Arm
    from evalstop.lab.training import Outcome

__all__ = ["record", "sweep"]


def _panels(items: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    panels = items.reshape(PANELS, -1)
    errors = panels.std(axis=1, ddof=1) / np.sqrt(panels.shape[1])
    return panels.mean(axis=1).tolist(), errors.tolist()


def record(arm: Arm, seed: int, outcome: Outcome) -> dict[str, Any]:
    """Return the run as plain data: panel means and errors at each step, and what goes with them.

    Imitation (sft) is judged by the likelihood of good held-out text, all else by gold reward.
    """
    start = outcome.measurements[0].gold
    rows = []
    for point in outcome.measurements:
        scores, errors = _panels(point.likelihood if arm.trainer == "sft" else point.gold)
        wins = (point.gold > start).reshape(PANELS, -1).sum(axis=1).tolist()
        ties = (point.gold == start).reshape(PANELS, -1).sum(axis=1).tolist()
        rows.append(
            {
                "step": point.step,
                "scores": scores,
                "stderrs": errors,
                "wins": wins,
                "ties": ties,
                "gold": float(point.gold.mean()),
                "kl": point.kl,
                "proxy": outcome.margins.get(point.step) if arm.trainer == "dpo" else point.proxy,
                "loss": outcome.losses.get(point.step),
            }
        )
    return {
        "version": 1,
        "trace_id": f"{arm.name}/{seed}",
        "arm": asdict(arm),
        "seed": seed,
        "metric": "held_out_log_likelihood" if arm.trainer == "sft" else "gold_reward",
        "proxy_agreement": outcome.proxy_agreement,
        "train_seconds": outcome.seconds,
        "eval_seconds": sum(point.seconds for point in outcome.measurements),
        "evaluations": rows,
    }


def sweep(
    folder: Path,
    *,
    seeds: Iterable[int],
    arms: Iterable[Arm] = ARMS,
    said: Callable[[str], None] = print,
) -> int:
    """Do what is not done yet, seed by seed and arm by arm; return the number of new runs.

    Args:
        folder: one ``ARM--SEED.json`` a run, with the held-out items beside it in an npz.
        seeds: seeds of the runs.
        arms: arms of the runs.
        said: gets one line a run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    laboratory = Laboratory(folder / "cache")
    arms = tuple(arms)
    done = 0
    for seed in seeds:
        for arm in arms:
            target = folder / f"{arm.name}--{seed}.json"
            if target.exists():
                continue
            outcome = laboratory.run(arm, seed=seed)
            gold = np.stack([point.gold for point in outcome.measurements]).astype(np.float32)
            np.savez_compressed(target.with_suffix(".npz"), gold=gold)
            aside = target.with_suffix(".part")
            aside.write_text(json.dumps(record(arm, seed, outcome), allow_nan=False))
            aside.replace(target)
            done += 1
            said(f"{target.stem}: {outcome.seconds:.1f} s")
    return done
