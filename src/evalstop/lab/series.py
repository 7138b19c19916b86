"""The recorded runs: from a sweep's files to the Parquet that ships, and back.

``data/lab_runs.parquet`` holds one row an evaluation in the long form that ``evalstop replay``
reads: the score on panel 0 of the held-out prompts with its standard error, beside proxy, KL and
loss. ``true_score`` is the mean over the other seven panels, which the rule does not see;
``construction`` and ``measured`` are the two labels (`evalstop.lab.arms`, `evalstop.lab.labels`).
``data/lab_panels.parquet`` holds the scores on every panel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from evalstop.core.errors import InputError
from evalstop.core.points import EvalPoint
from evalstop.lab.arms import PANELS
from evalstop.lab.labels import measure
from evalstop.traces.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from evalstop.lab.labels import Measured

__all__ = ["PANELS_FILE", "RUNS_FILE", "LabRun", "pack", "recorded_runs", "runs_of_sweep"]

_DATA = Path(__file__).parent / "data"
RUNS_FILE = _DATA / "lab_runs.parquet"
PANELS_FILE = _DATA / "lab_panels.parquet"
_ITEMS = 64


@dataclass(frozen=True, kw_only=True)
class LabRun:
    """One recorded run; arrays have one entry an evaluation, the first at step 0.

    Attributes:
        trace_id: ``ARM/SEED``.
        arm, seed, construction, job_type, metric: what was run, and what for.
        proxy_agreement: share of fresh clean comparisons the proxy gets right; NaN without one.
        seconds: wall time of training, evaluations included.
        steps: optimiser steps.
        scores, stderrs, wins, ties: on each panel of 64 held-out prompts, shape (8, n). Wins and
            ties count prompts whose completion has a higher (the same) gold reward as at step 0.
        gold: mean gold reward over all panels.
        kl: KL divergence from the start a completion, in nats.
        proxy, loss: training reward and loss; NaN where there is none.
    """

    trace_id: str
    arm: str
    seed: int
    construction: str
    job_type: str
    metric: str
    proxy_agreement: float
    seconds: float
    steps: NDArray[np.int64]
    scores: NDArray[np.float64]
    stderrs: NDArray[np.float64]
    wins: NDArray[np.int64]
    ties: NDArray[np.int64]
    gold: NDArray[np.float64]
    kl: NDArray[np.float64]
    proxy: NDArray[np.float64]
    loss: NDArray[np.float64]

    def true_scores(self, panel: int = 0) -> NDArray[np.float64]:
        """Return the mean over the panels that a rule watching ``panel`` does not see."""
        others = np.delete(self.scores, panel, axis=0)
        means: NDArray[np.float64] = others.mean(axis=0)
        return means

    def true_stderrs(self, panel: int = 0) -> NDArray[np.float64]:
        """Return the standard errors of `true_scores`."""
        others = np.delete(self.stderrs, panel, axis=0)
        errors: NDArray[np.float64] = np.sqrt((others**2).sum(axis=0)) / len(others)
        return errors

    def stderr(self, panel: int = 0) -> float:
        """Return the median standard error of one evaluation on ``panel``."""
        return float(np.median(self.stderrs[panel]))

    def measured(self, panel: int = 0) -> Measured:
        """Return what the run did, by the panels that a rule watching ``panel`` does not see."""
        # The unit is the typical error of the run's panels: it must not hang on the watched one.
        return measure(self.true_scores(panel), stderr=float(np.median(self.stderrs)))

    @cached_property
    def label(self) -> str:
        """What the run did, as measured beside panel 0."""
        return self.measured().label

    def series(self, panel: int = 0) -> Series:
        """Return what a stop rule gets to see: one panel."""
        points = tuple(
            EvalPoint(
                step=int(step),
                score=float(self.scores[panel, place]),
                stderr=float(self.stderrs[panel, place]),
                n_items=_ITEMS,
                proxy=float(self.proxy[place]) if np.isfinite(self.proxy[place]) else None,
            )
            for place, step in enumerate(self.steps)
        )
        losses = tuple(
            (int(step), float(loss))
            for step, loss in zip(self.steps, self.loss, strict=True)
            if np.isfinite(loss)
        )
        return Series(
            trace_id=f"{self.trace_id}#{panel}",
            source="lab",
            metric=self.metric,
            direction="max",
            job_type=self.job_type,
            points=points,
            losses=losses,
            label=self.measured(panel).label,
        )


def runs_of_sweep(folder: Path) -> list[LabRun]:
    """Read what `evalstop.lab.sweep.sweep` has written so far, by arm and seed.

    Raises:
        InputError: if there is nothing.
    """
    found = [_from_record(json.loads(file.read_text())) for file in folder.glob("*--*.json")]
    if not found:
        msg = f"no runs in {folder}: `evalstop lab run --out {folder}` makes some"
        raise InputError(msg)
    return sorted(found, key=lambda run: (run.arm, run.seed))


def recorded_runs() -> list[LabRun]:
    """Return the runs that ship with the package."""
    runs = _rows_by_trace(pq.read_table(RUNS_FILE).to_pylist())
    panels = _rows_by_trace(pq.read_table(PANELS_FILE).to_pylist())
    return [_from_rows(runs[trace], panels[trace]) for trace in runs]


def pack(runs: Sequence[LabRun], *, runs_file: Path, panels_file: Path) -> None:
    """Write the two Parquet files."""
    runs_file.parent.mkdir(parents=True, exist_ok=True)
    for rows, file in (
        ([row for run in runs for row in _long_rows(run)], runs_file),
        ([row for run in runs for row in _panel_rows(run)], panels_file),
    ):
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, file, compression="zstd", compression_level=19)


def _or_nan(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _from_record(record: dict[str, Any]) -> LabRun:
    rows = record["evaluations"]
    arm = record["arm"]
    return LabRun(
        trace_id=record["trace_id"],
        arm=arm["name"],
        seed=record["seed"],
        construction=arm["construction"],
        job_type=arm["trainer"],
        metric=record["metric"],
        proxy_agreement=_or_nan([record["proxy_agreement"]])[0],
        seconds=record["train_seconds"],
        steps=np.array([row["step"] for row in rows]),
        scores=np.array([row["scores"] for row in rows]).T,
        stderrs=np.array([row["stderrs"] for row in rows]).T,
        wins=np.array([row["wins"] for row in rows]).T,
        ties=np.array([row["ties"] for row in rows]).T,
        gold=_or_nan(row["gold"] for row in rows),
        kl=_or_nan(row["kl"] for row in rows),
        proxy=_or_nan(row["proxy"] for row in rows),
        loss=_or_nan(row["loss"] for row in rows),
    )


def _long_rows(run: LabRun) -> list[dict[str, Any]]:
    measured = run.measured()
    true_scores, true_stderrs = run.true_scores(), run.true_stderrs()
    return [
        {
            "trace_id": run.trace_id,
            "step": int(step),
            "score": float(run.scores[0, place]),
            "stderr": float(run.stderrs[0, place]),
            "n_items": _ITEMS,
            "wins": int(run.wins[0, place]),
            "ties": int(run.ties[0, place]),
            "proxy": _or_none(run.proxy[place]),
            "kl": float(run.kl[place]),
            "loss": _or_none(run.loss[place]),
            "gold": float(run.gold[place]),
            "true_score": float(true_scores[place]),
            "true_stderr": float(true_stderrs[place]),
            "metric": run.metric,
            "greater_is_better": True,
            "job_type": run.job_type,
            "arm": run.arm,
            "seed": run.seed,
            "construction": run.construction,
            "measured": measured.label,
            "measured_drop": measured.drop,
            "proxy_agreement": _or_none(run.proxy_agreement),
            "seconds": run.seconds,
        }
        for place, step in enumerate(run.steps)
    ]


def _panel_rows(run: LabRun) -> list[dict[str, Any]]:
    return [
        {
            "trace_id": run.trace_id,
            "panel": panel,
            "step": int(step),
            "score": float(run.scores[panel, place]),
            "stderr": float(run.stderrs[panel, place]),
            "wins": int(run.wins[panel, place]),
            "ties": int(run.ties[panel, place]),
        }
        for panel in range(PANELS)
        for place, step in enumerate(run.steps)
    ]


def _rows_by_trace(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["trace_id"], []).append(row)
    return grouped


def _from_rows(rows: list[dict[str, Any]], panels: list[dict[str, Any]]) -> LabRun:
    first = rows[0]
    shape = (PANELS, len(rows))

    def of_panels(name: str) -> NDArray[Any]:
        return np.array([row[name] for row in panels]).reshape(shape)

    return LabRun(
        trace_id=first["trace_id"],
        arm=first["arm"],
        seed=first["seed"],
        construction=first["construction"],
        job_type=first["job_type"],
        metric=first["metric"],
        proxy_agreement=_or_nan([first["proxy_agreement"]])[0],
        seconds=first["seconds"],
        steps=np.array([row["step"] for row in rows]),
        scores=of_panels("score"),
        stderrs=of_panels("stderr"),
        wins=of_panels("wins"),
        ties=of_panels("ties"),
        gold=_or_nan(row["gold"] for row in rows),
        kl=_or_nan(row["kl"] for row in rows),
        proxy=_or_nan(row["proxy"] for row in rows),
        loss=_or_nan(row["loss"] for row in rows),
    )
