"""``trainer_state.json`` of transformers and TRL: one run's ``log_history``.

The same file also holds what tells a metric's direction without a guess: ``best_metric`` is the
extreme of the watched metric, so a metric whose maximum it is (and whose minimum it is not) was
maximised. A run that watched nothing says nothing, and needs ``--direction``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evalstop.core.errors import ReadError
from evalstop.core.signals import trainer_signals
from evalstop.traces.json_values import as_float, as_step, parsed
from evalstop.traces.series import Curve, Loaded, SkippedPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["curves_of_log", "is_bookkeeping", "read_trainer_state"]

_PREFIX = "eval_"
_BOOKKEEPING = (
    "_runtime",
    "_samples_per_second",
    "_steps_per_second",
    "_model_preparation_time",
    "_jit_compilation_time",
    "_num_tokens",
)
_REWARDS = ("reward", "rewards/chosen", "objective/rlhf_reward")
_SAME = 1e-9
_MEAN, _SPREAD = "/mean", "/std"


def read_trainer_state(path: Path, metric: str | None = None) -> Loaded:  # noqa: ARG001 -- as every reader
    """Read one ``trainer_state.json``.

    Raises:
        ReadError: not JSON (cut short?), no ``log_history``, or no evaluation in it.
    """
    try:
        state = parsed(path.read_bytes())
    except ValueError as error:
        message = f"not valid JSON, perhaps cut short while it was written: {error}"
        raise ReadError(str(path), message) from error
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        raise ReadError(str(path), "there is no list log_history, as trainer_state.json has")
    curves = curves_of_log(
        log,
        source=str(path),
        trace_id=_run_name(path),
        best_metric=as_float(state.get("best_metric")),
    )
    if not curves:
        raise ReadError(str(path), _nothing_in(log))
    return Loaded(curves, [])


def _nothing_in(log: Sequence[Mapping[str, Any]]) -> str:
    """Return why a ``log_history`` gave no curve."""
    names = {name for entry in log for name in entry if name.startswith(_PREFIX)}
    if evaluated := sorted(name for name in names if not is_bookkeeping(name)):
        return f"no entry of {', '.join(evaluated)} is a number at a step of 0 or more"
    return "log_history holds no evaluation (no key that starts eval_)"


def is_bookkeeping(name: str) -> bool:
    """Return whether an ``eval_`` key is about the evaluation's speed, not its result."""
    return name.endswith(_BOOKKEEPING) or name == "eval_epoch"


def curves_of_log(
    log: Sequence[Any], *, source: str, trace_id: str, best_metric: float | None = None
) -> list[Curve]:
    """Return one curve a metric of a ``log_history``.

    Args:
        log: the entries; each has a step, and what was logged at it.
        source: the file.
        trace_id: name of the run.
        best_metric: the state's ``best_metric``, from which a direction may follow.
    """
    found: dict[str, list[tuple[int, float, float, float]]] = {}
    noted: dict[str, list[dict[str, float]]] = {}
    newest: dict[str, float] = {}
    skipped: dict[str, list[SkippedPoint]] = {}
    losses: list[tuple[int, float]] = []
    proxy = math.nan
    for number, entry in enumerate(log):
        if not isinstance(entry, dict):
            raise ReadError(source, f"log_history[{number}] is not an object")
        step = as_step(entry.get("step"))
        if step is None:
            came = entry.get("step")
            raise ReadError(source, f"log_history[{number}] has no whole step, but {came!r}")
        loss = as_float(entry.get("loss"))
        if loss is not None and math.isfinite(loss):
            losses.append((step, loss))
        proxy = next((r for k in _REWARDS if (r := as_float(entry.get(k))) is not None), proxy)
        newest |= trainer_signals(entry)
        for name, value in entry.items():
            if not name.startswith(_PREFIX) or is_bookkeeping(name):
                continue
            score = as_float(value)
            if step < 0 or score is None:
                reason = f"step {step} is negative" if step < 0 else f"not a number: {value!r}"
                skipped.setdefault(name, []).append(SkippedPoint(step=step, reason=reason))
                continue
            error = _standard_error(name, entry)
            found.setdefault(name, []).append((step, score, proxy, error))
            noted.setdefault(name, []).append(dict(newest))
    return [
        Curve(
            trace_id=trace_id,
            source=source,
            metric=name,
            steps=[step for step, *_ in points],
            scores=[value for _, value, *_ in points],
            greater_is_better=_direction([value for _, value, *_ in points], best_metric),
            stderrs=[error for *_, error in points],
            proxies=[reward for _, _, reward, _ in points],
            losses=losses,
            signals={
                signal: [known.get(signal, math.nan) for known in noted[name]] for signal in newest
            },
            skipped=tuple(skipped.get(name, ())),
        )
        for name, points in found.items()
    ]


def _standard_error(name: str, entry: Mapping[str, Any]) -> float:
    """Return the error of one evaluation's score, NaN where the entry does not tell it.

    A sibling ``NAME_stderr`` says it. For TRL's ``.../mean`` there is ``.../std``, the spread
    over completions: over the root of the number of prompts, which the time and the speed of the
    evaluation give. Completions of one prompt are alike and do not count as more.
    """
    stated = as_float(entry.get(f"{name}_stderr"))
    if stated is not None:
        return stated
    if not name.endswith(_MEAN):
        return math.nan
    spread, seconds, speed = (
        as_float(entry.get(key))
        for key in (
            name.removesuffix(_MEAN) + _SPREAD,
            f"{_PREFIX}runtime",
            f"{_PREFIX}samples_per_second",
        )
    )
    if spread is None or seconds is None or speed is None:
        return math.nan
    prompts = seconds * speed
    return spread / math.sqrt(round(prompts)) if 1.0 <= prompts < math.inf else math.nan


def _direction(values: Sequence[float], best: float | None) -> bool | None:
    """Return whether ``best`` is the maximum of ``values`` (or the minimum), None if neither."""
    finite = [value for value in values if math.isfinite(value)]
    if best is None or not finite or not math.isfinite(best):
        return None
    low, high = min(finite), max(finite)
    if math.isclose(low, high, rel_tol=_SAME):
        return None
    if math.isclose(best, high, rel_tol=_SAME):
        return True
    return False if math.isclose(best, low, rel_tol=_SAME) else None


def _run_name(path: Path) -> str:
    """Return the run's folder: a checkpoint's state belongs to the folder above."""
    folder = path.absolute().parent
    return folder.parent.name if folder.name.startswith("checkpoint-") else folder.name
