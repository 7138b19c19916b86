"""What training itself says beside the score: sentences for people, never a vote (R18).

KL, entropy, response length, gradient norm and the training reward move for many reasons, and a
run whose KL grows may be getting better. So no rule reads them, and nothing here knows a verdict:
a decision with side signals is the decision without them. They help whoever reads one.

A signal is told if its mean over the newest three evaluations differs from that over the three up
to the best score by more than two standard errors, read off its own second differences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from evalstop.core.points import EvalPoint

__all__ = ["Signals", "remarks", "signals_of", "trainer_signals"]

Signals = tuple[tuple[str, float], ...]
"""Side signals of one evaluation by name, in order of name."""

_MEAN_OF = 3
_SIGNIFICANT = 2.0
_SECOND_DIFFERENCE = math.sqrt(6.0 * 2.0 / math.pi)
"""Mean absolute second difference of independent noise, in its standard deviations."""

_SPELLINGS = {
    "kl": ("kl", "objective/kl", "approx_kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy": ("entropy", "objective/entropy", "policy/entropy_avg", "actor/entropy"),
    "length": (
        "completions/mean_length",
        "completion_length",
        "response_length",
        "response_length/mean",
    ),
    "grad_norm": ("grad_norm", "actor/grad_norm"),
    "reward_std": ("reward_std",),
}
"""Side signals, and the names that trainers log them by."""

_PROXY = "training reward"
_KNOWN = {
    "kl": "KL from the start",
    "entropy": "entropy",
    "length": "response length",
    "mean_length": "response length",
    "grad_norm": "gradient norm",
    "reward_std": "spread of rewards",
}
_MEANING = {
    (_PROXY, True): "a score that falls meanwhile is what over-optimisation looks like",
    ("KL from the start", True): "the policy moves away from where it began",
    ("entropy", False): "answers become alike",
    ("response length", True): "longer answers please many judges without being better",
    ("gradient norm", True): "updates grow",
    ("spread of rewards", False): "rewards no longer tell answers apart",
}


_LARGEST = 1e100  # as reports over HTTP; NaN is not below it, a whole number of any length can be


def trainer_signals(logged: Mapping[str, object]) -> dict[str, float]:
    """Return the side signals in one line of a log of transformers, TRL, OpenRLHF or verl."""
    found: dict[str, float] = {}
    for name, spellings in _SPELLINGS.items():
        for spelling in spellings:
            value = logged.get(spelling)
            if isinstance(value, int | float) and abs(value) <= _LARGEST:
                found.setdefault(name, float(value))
    return found


def signals_of(given: Mapping[str, float] | None) -> Signals:
    """Return named numbers as an evaluation carries them, without those that are not finite."""
    if not given:
        return ()
    return tuple(sorted((name, float(x)) for name, x in given.items() if math.isfinite(x)))


def remarks(series: Sequence[EvalPoint]) -> tuple[str, ...]:
    """Return a sentence for each side signal that has moved since the best score.

    Args:
        series: the curve that a rule has seen: finite scores, in order.
    """
    if not series:
        return ()
    best = max(range(len(series)), key=lambda index: series[index].score)
    tables = [dict(point.signals) for point in series]
    columns = {_PROXY: [point.proxy for point in series]}
    for name in sorted({name for table in tables for name in table}):
        columns[name] = [table.get(name) for table in tables]
    told = (_told(name, column, best, series[best].step) for name, column in columns.items())
    return tuple(filter(None, told))


def _wobble(values: Sequence[float]) -> float:
    """Return the noise of a series by its second differences, to which trends are no noise."""
    bends = [abs(a - 2.0 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return sum(bends) / len(bends) / _SECOND_DIFFERENCE if bends else 0.0


def _told(name: str, column: Sequence[float | None], best: int, step: int) -> str:
    before = _known(column[: best + 1])[-_MEAN_OF:]
    after = _known(column[best + 1 :])[-_MEAN_OF:]
    values = _known(column)
    if not before or not after or len(values) < _MEAN_OF:
        return ""
    was, now = sum(before) / len(before), sum(after) / len(after)
    error = _wobble(values) * math.sqrt(1.0 / len(before) + 1.0 / len(after))
    if abs(now - was) <= max(_SIGNIFICANT * error, 1e-9 * abs(was)):
        return ""
    words = _KNOWN.get(name.rpartition("/")[2].lower(), name)
    rose = now > was
    meaning = _MEANING.get((words, rose), "")
    told = f"{words} {'rose' if rose else 'fell'} from {was:.4g} to {now:.4g} since the best score"
    return f"{told} at step {step}" + (f": {meaning}" if meaning else "")


def _known(column: Iterable[float | None]) -> list[float]:
    return [value for value in column if value is not None]
