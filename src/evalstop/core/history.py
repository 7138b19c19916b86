"""One job's curve: the only place that knows about order, repeats, rewinds and epochs.

A detector sees a clean series: finite scores, one a step, in order of step, of one comparison
epoch. The reports that make it are not clean, so:

* **Order (R11).** The verdict is a function of the *set* of reports. A report that is newer than
  all others steps the detector; any other one re-folds the curve.
* **Repeats (R15).** The same report twice counts once. Two different reports of one step are
  replicates: they are pooled (weighted by items where all are known, else equally).
* **Rewinds (R11).** A higher ``attempt`` that starts at step s abandons earlier attempts' points
  at s and beyond: they leave the series, but stay candidates for the best checkpoint (R03).
* **Epochs (R14).** A changed ``epoch_key`` along the series starts the detector afresh; best is
  the best of the current epoch.
* **Non-finite (R12).** NaN and infinite scores never reach the detector and are never best;
  three steps of them in a row make the verdict ``diverged`` until a finite score arrives.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from evalstop.core.kinds import CurveSigns
from evalstop.core.points import EvalPoint, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.core.detector import Detector
    from evalstop.core.signals import Signals

__all__ = ["DIVERGED_AFTER", "History", "pool"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_DIVERGED = State.DIVERGED
_OK = State.OK

_CHECKPOINT = attrgetter("checkpoint")
_SCORE = attrgetter("score")

S = TypeVar("S")
_T = TypeVar("_T", str | None, float | None, "tuple[float, ...] | None")

_QUIET = Verdict()

DIVERGED_AFTER = 3
"""Non-finite evaluations in a row that make a job ``diverged``."""


class History(Generic[S]):
    """The curve of one job under one detector.

    Its whole state is the reports it was given: a snapshot is `reports`, a restart adds them
    again, in any order.
    """

    __slots__ = (
        "_attempt",
        "_best",
        "_detector",
        "_epoch",
        "_folded",
        "_last_score",
        "_last_step",
        "_looked_at",
        "_nonfinite",
        "_quick",
        "_reports",
        "_seen",
        "_series",
        "_signs",
        "_state",
        "_verdict",
    )

    def __init__(self, detector: Detector[S], reports: Iterable[EvalPoint] = ()) -> None:
        self._detector = detector
        self._reports: list[EvalPoint] = []
        # Identities of the reports, built when the first one comes out of line: most jobs never
        # need it, and this runs for every eval of every simulated job. Until then the clean
        # series is the reports themselves.
        self._seen: set[_Identity] | None = None
        self._series = self._reports
        self._state = detector.start()
        self._last_step = -1
        self._attempt = 0
        self._epoch: str | None = None
        self._nonfinite = 0
        self._best: EvalPoint | None = None
        self._looked_at = 0  # points of the series among which best is known
        self._signs: CurveSigns | None = None
        # Whether the detector can tell at a glance, and all reports so far are in line. By
        # attribute: an isinstance against a Protocol costs as much as ten evaluations.
        self._quick = hasattr(detector, "quiet")
        self._folded = 0  # points of the series that the state and the verdict rest on
        self._last_score = -math.inf  # of the series, while it is quick
        self._verdict = _QUIET
        for point in reports:
            self.add(point)

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the curve as it stands."""
        if self._folded < len(self._series):
            self._catch_up()
        return self._verdict

    @property
    def detector(self) -> Detector[S]:
        """The rule that judges the curve."""
        return self._detector

    @property
    def reports(self) -> Sequence[EvalPoint]:
        """Every report taken in, in order of arrival, exact repeats left out."""
        return tuple(self._reports)

    @property
    def series(self) -> Sequence[EvalPoint]:
        """The clean series the detector has seen in the current epoch."""
        return tuple(self._series)

    @property
    def newest(self) -> EvalPoint | None:
        """The last point of the clean series."""
        return self._series[-1] if self._series else None

    @property
    def best(self) -> EvalPoint | None:
        """The highest score of the current epoch (ties: the earliest step), saved or not."""
        fresh = self._series[self._looked_at :]
        if fresh:
            self._looked_at += len(fresh)
            highest = max(fresh, key=_SCORE)
            if self._best is None or highest.score > self._best.score:
                self._best = highest
        return self._best

    @property
    def best_saved(self) -> EvalPoint | None:
        """The highest score of the current epoch whose checkpoint was saved (R04)."""
        best = self.best
        if best is None or best.checkpoint is not None:
            return best
        if list(map(_CHECKPOINT, self._reports)).count(None) == len(self._reports):
            return None  # told apart without a loop: many drivers save nothing
        return _highest(
            point
            for point in (self._reports if self._seen is None else pool(self._reports))
            if point.checkpoint is not None and point.epoch_key == self._epoch
        )

    def add(self, point: EvalPoint) -> Verdict:
        """Take in one report and return the verdict on the curve as it now stands."""
        score = point.score
        if (
            point.step > self._last_step
            and score - score == 0.0  # finite, without a call
            and point.attempt == self._attempt
            and point.epoch_key == self._epoch
        ):
            self._append(point)
            self._catch_up()
            return self._verdict
        return self._add_out_of_line(point)

    def hear(self, point: EvalPoint) -> bool:
        """Take in one report, as `add` does; return whether the alarm is on.

        Where the detector can tell at a glance that it is not, nothing is folded before someone
        asks for the verdict: this runs for every evaluation of every simulated job.
        """
        step, score = point.step, point.score
        if (
            self._quick
            and step > self._last_step
            and score - score == 0.0  # finite, without a call
            and point.attempt == self._attempt
            and point.epoch_key == self._epoch
        ):
            last_score = self._last_score
            self._last_step = step
            self._last_score = score
            self._reports.append(point)
            if score >= last_score or self._detector.quiet(self._reports):  # type: ignore[attr-defined]  # it is quick
                return False
            return self.verdict.alarm
        return self.add(point).alarm

    def absorb(self, point: EvalPoint) -> None:
        """Take in one report whose verdict nobody asks for; the next `add` is as ever.

        Cheaper than `add` where the detector can go on without judging (its own ``absorb``): for
        replaying what is known to raise no alarm. `verdict` stays the one of the last `add`.
        """
        go_on = getattr(self._detector, "absorb", None)
        if (
            go_on is None
            or point.step <= self._last_step
            or not math.isfinite(point.score)
            or point.attempt != self._attempt
            or point.epoch_key != self._epoch
        ):
            self.add(point)
            return
        self._catch_up()
        self._append(point)
        self._state = go_on(self._state, point)
        self._folded += 1

    def _append(self, point: EvalPoint) -> None:
        """Put a report that is in line to those before it."""
        self._last_step = point.step
        self._last_score = point.score
        self._nonfinite = 0
        self._reports.append(point)
        if self._seen is not None:
            self._seen.add(_identity(point))
            self._series.append(point)

    def _catch_up(self) -> None:
        """Fold what lies in the series and is not in the state yet."""
        fresh = self._series[self._folded :]
        if not fresh:
            return
        state, verdict = self._state, self._verdict
        if len(fresh) > 1 and hasattr(self._detector, "fold"):
            state, verdict = self._detector.fold(state, fresh)
        else:
            for point in fresh:
                state, verdict = self._detector.step(state, point)
        self._state = state
        self._folded += len(fresh)
        self._verdict = verdict if verdict.state is _OK else self._with_kind(verdict)

    def _add_out_of_line(self, point: EvalPoint) -> Verdict:
        if self._seen is None:
            self._seen = {_identity(known) for known in self._reports}
            self._series = list(self._reports)
            self._quick = False
        identity = _identity(point)
        if identity in self._seen:
            return self._add_repeat(identity, point)
        self._seen.add(identity)
        self._reports.append(point)
        if (
            point.step > self._last_step
            and point.attempt == self._attempt
            and not math.isfinite(point.score)
            and self._series
        ):
            self._last_step = point.step
            self._nonfinite += 1
            self._verdict = _unless_diverged(self.verdict, self._nonfinite)
        else:
            self._refold()
        return self.verdict

    def _add_repeat(self, identity: _Identity, repeat: EvalPoint) -> Verdict:
        """Take from a repeat what the first report did not say; it never counts again.

        Of two names or values the smaller is kept, so that the order of arrival plays no part.
        """
        index = next(i for i, known in enumerate(self._reports) if _identity(known) == identity)
        known = self._reports[index]
        merged = msgspec.structs.replace(
            known,
            checkpoint=_smaller(known.checkpoint, repeat.checkpoint),
            proxy=_smaller(known.proxy, repeat.proxy),
            items=_smaller(known.items, repeat.items),
            signals=_smaller_each(known.signals, repeat.signals),
        )
        said = (merged.checkpoint, merged.proxy, merged.items, merged.signals)
        if said != (known.checkpoint, known.proxy, known.items, known.signals):
            self._reports[index] = merged
            self._refold()
        return self.verdict

    def _refold(self) -> None:
        points = pool(self._reports)
        current = _current_branch(points)
        self._last_step = current[-1].step
        self._attempt = current[-1].attempt
        self._nonfinite = _trailing_nonfinite(current)
        finite = [point for point in current if math.isfinite(point.score)]
        self._epoch = (finite or current)[-1].epoch_key
        self._series = _last_epoch(finite)
        self._best = _highest(point for point in points if point.epoch_key == self._epoch)
        self._looked_at = len(self._series)
        self._signs = None
        self._state = self._detector.start()
        self._folded = 0
        self._verdict = _QUIET
        self._catch_up()
        self._verdict = _unless_diverged(self._verdict, self._nonfinite)

    def _with_kind(self, verdict: Verdict) -> Verdict:
        if self._signs is None:
            self._signs = CurveSigns()
        return self._signs.with_kind(verdict, self._series)


_Identity: TypeAlias = tuple[
    int, int, str | None, str | None, float | None, float | None, int | None
]


def _identity(point: EvalPoint) -> _Identity:
    """Return what makes two reports the same one. NaN is no equal of itself, None is."""
    score = point.score if math.isfinite(point.score) else None
    return (
        point.step,
        point.attempt,
        point.eval_id,
        point.epoch_key,
        score,
        point.stderr,
        point.n_items,
    )


def _smaller(one: _T, other: _T) -> _T:
    """Return the smaller of two values, either of which may be None (which says nothing)."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _smaller_each(one: Signals, other: Signals) -> Signals:
    """Return all named values of both, the smaller where both name one."""
    if not one or not other:
        return one or other
    values = dict(one)
    for name, value in other:
        values[name] = min(value, values.get(name, value))
    return tuple(sorted(values.items()))


def _unless_diverged(verdict: Verdict, nonfinite: int) -> Verdict:
    if nonfinite < DIVERGED_AFTER:
        return verdict
    note = f"{nonfinite} evaluations in a row gave no finite score"
    return msgspec.structs.replace(verdict, state=_DIVERGED, note=note)


def pool(reports: Iterable[EvalPoint]) -> list[EvalPoint]:
    """Merge replicates: one point per (attempt, step, epoch), in that order.

    With items known for all replicates the mean is weighted by them, else plain. The standard
    error of a mean of independent replicates is sqrt(sum w^2 se^2), unknown if one is unknown.
    """
    groups: dict[tuple[int, int, str], list[EvalPoint]] = {}
    for point in reports:
        groups.setdefault((point.attempt, point.step, point.epoch_key or ""), []).append(point)
    return [_merge(groups[key]) for key in sorted(groups)]


def _merge(replicates: list[EvalPoint]) -> EvalPoint:
    if len(replicates) == 1:
        return replicates[0]
    # Sorted, so that floating sums do not depend on the order of arrival.
    replicates = sorted(replicates, key=_sort_key)
    finite = [point for point in replicates if math.isfinite(point.score)]
    if not finite:
        return replicates[0]
    items = [point.n_items for point in finite]
    known_items = [count for count in items if count is not None and count > 0]
    weights = known_items if len(known_items) == len(finite) else [1] * len(finite)
    total = sum(weights)
    known_errors = [point.stderr for point in finite if point.stderr is not None]
    stderr = (
        math.hypot(*(w / total * se for w, se in zip(weights, known_errors, strict=True)))
        if len(known_errors) == len(finite)
        else None
    )
    proxies = [point.proxy for point in finite if point.proxy is not None]
    return msgspec.structs.replace(
        finite[0],
        score=sum(w * point.score for w, point in zip(weights, finite, strict=True)) / total,
        stderr=stderr,
        n_items=sum(known_items) if len(known_items) == len(finite) else None,
        eval_id=None,
        checkpoint=min((p.checkpoint for p in finite if p.checkpoint is not None), default=None),
        proxy=sum(proxies) / len(proxies) if proxies else None,
        items=None,
        signals=_means(finite),
        replicates=sum(point.replicates for point in finite),
    )


def _means(points: Sequence[EvalPoint]) -> Signals:
    """Return the mean of each side signal over the points that have it."""
    values: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.signals:
            values.setdefault(name, []).append(value)
    return tuple((name, sum(known) / len(known)) for name, known in sorted(values.items()))


def _sort_key(point: EvalPoint) -> tuple[str, float, float, int, str]:
    return (
        point.eval_id or "",
        point.score if math.isfinite(point.score) else -math.inf,
        point.stderr if point.stderr is not None else -1.0,
        point.n_items if point.n_items is not None else -1,
        point.checkpoint or "",
    )


def _current_branch(points: Sequence[EvalPoint]) -> list[EvalPoint]:
    """Drop what later attempts rewound; order the rest by step, then by epoch as it lasted."""
    kept: list[EvalPoint] = []
    horizon = math.inf
    for point in sorted(points, key=lambda point: (-point.attempt, point.step)):
        if kept and point.attempt != kept[-1].attempt:
            horizon = min(horizon, *(p.step for p in kept))
        if point.step < horizon:
            kept.append(point)
    return sorted(kept, key=lambda point: (point.step, point.attempt, point.epoch_key or ""))


def _trailing_nonfinite(points: Sequence[EvalPoint]) -> int:
    count = 0
    for point in reversed(points):
        if math.isfinite(point.score):
            break
        count += 1
    return count


def _last_epoch(points: Sequence[EvalPoint]) -> list[EvalPoint]:
    last: list[EvalPoint] = []
    for point in reversed(points):
        if last and point.epoch_key != last[-1].epoch_key:
            break
        last.append(point)
    return last[::-1]


def _highest(points: Iterable[EvalPoint]) -> EvalPoint | None:
    """Return the highest finite score, ties to the earliest step, then the earliest attempt."""
    finite = (point for point in points if math.isfinite(point.score))
    return max(finite, key=lambda point: (point.score, -point.step, -point.attempt), default=None)
