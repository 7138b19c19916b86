"""Detectors made of detectors."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from evalstop.core.detector import Detector
from evalstop.core.errors import SpecError
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.settings import has_methods, is_whole

__all__ = ["After", "AfterState", "AllOf", "AnyOf", "Confirm", "ConfirmState"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM
_BLIND = State.BLIND
_DIVERGED = State.DIVERGED
_OK = State.OK
_SUSPECT = State.SUSPECT


class AnyOf(Struct, frozen=True):
    """Alarm when any part does; the verdict is that of the part nearest to its threshold."""

    parts: tuple[Detector[Any], ...]

    def __post_init__(self) -> None:
        _require_parts(self.parts)

    def start(self) -> tuple[Any, ...]:
        """Return the states of all parts."""
        return tuple(part.start() for part in self.parts)

    def step(self, state: tuple[Any, ...], point: EvalPoint) -> tuple[tuple[Any, ...], Verdict]:
        """Step all parts."""
        states, verdicts = _step_all(self.parts, state, point)
        return states, max(verdicts, key=_nearness)


class AllOf(Struct, frozen=True):
    """Alarm when all parts do at once; the verdict is that of the part farthest from its own."""

    parts: tuple[Detector[Any], ...]

    def __post_init__(self) -> None:
        _require_parts(self.parts)

    def start(self) -> tuple[Any, ...]:
        """Return the states of all parts."""
        return tuple(part.start() for part in self.parts)

    def step(self, state: tuple[Any, ...], point: EvalPoint) -> tuple[tuple[Any, ...], Verdict]:
        """Step all parts."""
        states, verdicts = _step_all(self.parts, state, point)
        return states, min(verdicts, key=_nearness)


class AfterState(Struct, frozen=True):
    """Evaluations seen, and the state of the rule that warms up."""

    seen: int
    inner: Any


class After(Struct, frozen=True, kw_only=True):
    """Let a rule warm up: it sees all, but raises nothing in the first ``evals`` evaluations.

    Args:
        evals: evaluations without an alarm, >= 0.
        rule: the rule that warms up.
    """

    evals: int
    rule: Detector[Any]

    def __post_init__(self) -> None:
        _require_evals("After", self.evals, least=0)
        _require_detector(self.rule)

    def start(self) -> AfterState:
        """Return the state before the first evaluation."""
        return AfterState(0, self.rule.start())

    def step(self, state: AfterState, point: EvalPoint) -> tuple[AfterState, Verdict]:
        """Step the rule; hold its alarm back during the warm-up."""
        inner, verdict = self.rule.step(state.inner, point)
        seen = state.seen + 1
        if seen <= self.evals and verdict.alarm:
            note = f"held back: evaluation {seen} of {self.evals} of the warm-up"
            verdict = msgspec.structs.replace(verdict, state=_SUSPECT, note=note)
        return AfterState(seen, inner), verdict


class ConfirmState(Struct, frozen=True):
    """Evaluations in a row under an alarm of the inner rule, and its state."""

    alarms: int
    inner: Any


class Confirm(Struct, frozen=True, kw_only=True):
    """Ask for ``evals`` more evaluations that keep the alarm before passing it on (R28).

    Until then the verdict is ``suspect``: the policy around it may ask the trainer for an extra
    evaluation. A confirming evaluation counts whether it comes as a new step or as a replicate,
    which is pooled with the others of its step and judged again.

    Args:
        evals: confirming evaluations, >= 1.
        rule: the rule to confirm.
    """

    rule: Detector[Any]
    evals: int = 1

    def __post_init__(self) -> None:
        _require_evals("Confirm", self.evals, least=1)
        _require_detector(self.rule)

    def start(self) -> ConfirmState:
        """Return the state before the first evaluation."""
        return ConfirmState(0, self.rule.start())

    def step(self, state: ConfirmState, point: EvalPoint) -> tuple[ConfirmState, Verdict]:
        """Step the rule; pass its alarm on once it has lasted."""
        inner, verdict = self.rule.step(state.inner, point)
        alarms = state.alarms + point.replicates if verdict.alarm else 0
        if 0 < alarms <= self.evals:
            note = f"waits for {self.evals - alarms + 1} confirming evaluation(s)"
            verdict = msgspec.structs.replace(verdict, state=_SUSPECT, note=note)
        return ConfirmState(alarms, inner), verdict


def _require_parts(parts: object) -> None:
    if not isinstance(parts, tuple | list):
        msg = f"expected the rules to combine in brackets, such as AnyOf((a, b)), but got {parts!r}"
        raise SpecError(msg)
    if not parts:
        msg = "expected at least one rule to combine, but got none"
        raise SpecError(msg)
    for part in parts:
        _require_detector(part)


def _require_detector(rule: object) -> None:
    if not has_methods(rule, "start", "step"):
        msg = (
            f"expected a rule that judges a curve of scores, such as Scan(), but got {rule!r}: "
            "stop-at, loss-plateau and rule maps cannot be combined"
        )
        raise SpecError(msg)


def _require_evals(what: str, evals: object, *, least: int) -> None:
    if not is_whole(evals) or evals < least:
        msg = f"{what}: evals must be a whole number >= {least}, but got {evals!r}"
        raise SpecError(msg)


def _step_all(
    parts: tuple[Detector[Any], ...], state: tuple[Any, ...], point: EvalPoint
) -> tuple[tuple[Any, ...], tuple[Verdict, ...]]:
    pairs = [part.step(own, point) for part, own in zip(parts, state, strict=True)]
    return tuple(own for own, _ in pairs), tuple(verdict for _, verdict in pairs)


_RANK = {_BLIND: 0, _OK: 1, _DIVERGED: 1, _SUSPECT: 2, _ALARM: 3}


def _nearness(verdict: Verdict) -> tuple[int, float]:
    scale = verdict.threshold if verdict.threshold > 0 else 1.0
    return _RANK[verdict.state], verdict.statistic / scale
