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
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from evalstop.core.ahead import Foreseen, run_ahead
from evalstop.core.errors import IllegalEventError
from evalstop.core.kinds import CurveSigns
from evalstop.core.points import EvalPoint, State, Verdict
from evalstop.core.series import (
    current_branch,
    highest,
    identity,
    last_epoch,
    pool,
    trailing_nonfinite,
    with_repeat,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.core.ahead import Ahead
    from evalstop.core.detector import Detector
    from evalstop.core.series import Identity

__all__ = ["DIVERGED_AFTER", "FARTHEST", "History"]

# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_DIVERGED = State.DIVERGED
_OK = State.OK

_CHECKPOINT = attrgetter("checkpoint")
_SCORE = attrgetter("score")

S = TypeVar("S")

_QUIET = Verdict()

DIVERGED_AFTER = 3
"""Non-finite evaluations in a row that make a job ``diverged``."""

FARTHEST = 512
"""Most evaluations that are foreseen at a time: states are kept for all of them."""


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
        "_foreseen",
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
        self._seen: set[Identity] | None = None
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
        self._foreseen: Foreseen | None = None
        for point in reports:
            self.add(point)

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the curve as it stands."""
        if self._foreseen is not None:
            self._note()
        if self._folded < len(self._series):
            self._catch_up()
        return self._verdict

    @property
    def alarmed(self) -> bool:
        """Whether the verdict is an alarm; asked this, nothing is folded."""
        foreseen = self._foreseen
        if self._folded < len(self._series) or (foreseen and foreseen.told > foreseen.first):
            return False  # it was quiet, and is not folded yet
        return self._verdict.alarm

    @property
    def detector(self) -> Detector[S]:
        """The rule that judges the curve."""
        return self._detector

    @property
    def reports(self) -> Sequence[EvalPoint]:
        """Every report taken in, in order of arrival, exact repeats left out."""
        self._note()
        return tuple(self._reports)

    @property
    def series(self) -> Sequence[EvalPoint]:
        """The clean series the detector has seen in the current epoch."""
        self._note()
        return tuple(self._series)

    @property
    def newest(self) -> EvalPoint | None:
        """The last point of the clean series."""
        self._note()
        return self._series[-1] if self._series else None

    @property
    def best(self) -> EvalPoint | None:
        """The highest score of the current epoch (ties: the earliest step), saved or not."""
        self._note()
        fresh = self._series[self._looked_at :]
        if fresh:
            self._looked_at += len(fresh)
            top = max(fresh, key=_SCORE)
            best = self._best  # perhaps of a later step, in an attempt that was rewound
            if best is None or (top.score, -top.step) > (best.score, -best.step):
                self._best = top
        return self._best

    @property
    def best_saved(self) -> EvalPoint | None:
        """The highest score of the current epoch whose checkpoint was saved (R04)."""
        best = self.best
        if best is None or best.checkpoint is not None:
            return best
        if list(map(_CHECKPOINT, self._reports)).count(None) == len(self._reports):
            return None  # told apart without a loop: many drivers save nothing
        return highest(
            point
            for point in (self._reports if self._seen is None else pool(self._reports))
            if point.checkpoint is not None and point.epoch_key == self._epoch
        )

    def add(self, point: EvalPoint) -> Verdict:
        """Take in one report and return the verdict on the curve as it now stands."""
        self._end_foresight()
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
        foreseen, loud = self._foreseen, False
        if foreseen is not None:
            loud = foreseen.told == foreseen.stop  # this is the one that was not foreseen
            self._end_foresight()
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
            if not loud and (score >= last_score or self._detector.quiet(self._reports)):  # type: ignore[attr-defined]  # it is quick
                return False
            return self.verdict.alarm
        return self.add(point).alarm

    def absorb(self, point: EvalPoint) -> None:
        """Take in one report whose verdict nobody asks for; the next `add` is as ever.

        Cheaper than `add` where the detector can go on without judging (its own ``absorb``): for
        replaying what is known to raise no alarm. `verdict` stays the one of the last `add`.
        """
        self._end_foresight()
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

    def foresee(self, ahead: Ahead, start: int, stop: int) -> int:
        """Return up to where evaluations ``start`` to ``stop - 1`` of a job are in line and quiet.

        Quiet: `hear` would return False to each, told one after the other from now on. Nothing
        changes, but `take_in` may be given them. Any other report ends that.
        """
        self._end_foresight()
        if self._attempt or self._epoch is not None or ahead.steps[start] <= self._last_step:
            return start
        stop = ahead.in_line(start, min(stop, start + FARTHEST))
        line = None
        if self._quick and hasattr(self._detector, "quiet_for"):
            scores = ahead.scores if stop - start == len(ahead) else ahead.scores[start:stop]
            stop = start + self._detector.quiet_for(self._reports, scores)
        else:
            self._catch_up()
            line = run_ahead(self._detector, self._state, ahead.points(start, stop))
            stop = start + len(line)
        self._foreseen = Foreseen(ahead, start, stop, line)
        return stop

    def take_in(self, ahead: Ahead, start: int, stop: int) -> None:
        """Take in evaluations ``start`` to ``stop - 1`` of those that were foreseen, in order.

        Raises:
            IllegalEventError: if they were not foreseen to be quiet, as the curve stands.
        """
        foreseen = self._foreseen
        if (
            foreseen is None
            or foreseen.ahead is not ahead
            or foreseen.told != start
            or not start <= stop <= foreseen.stop
        ):
            msg = f"evaluations {start} to {stop - 1} of a job were not foreseen to be quiet"
            raise IllegalEventError(msg)
        foreseen.told = stop

    def _note(self) -> None:
        """Put to the curve what was told of the evaluations foreseen."""
        foreseen = self._foreseen
        if foreseen is None or foreseen.noted == foreseen.told:
            return
        start, stop, line = foreseen.noted, foreseen.told, foreseen.line
        foreseen.noted = stop
        if line is None:
            points = foreseen.ahead.points(start, stop)
            self._reports.extend(points)
            self._last_step, self._last_score = points[-1].step, points[-1].score
            return
        taken = line[start - foreseen.first : stop - foreseen.first]
        for point, _, _ in taken:
            self._append(point)
        _, self._state, verdict = taken[-1]
        self._folded += len(taken)
        self._verdict = verdict if verdict.state is _OK else self._with_kind(verdict)

    def _end_foresight(self) -> None:
        """Forget what was foreseen: the curve goes another way, or a step further."""
        if self._foreseen is not None:
            self._note()
            self._foreseen = None

    def _append(self, point: EvalPoint) -> None:
        """Put a report that is in line to those before it."""
        self._last_step = point.step
        self._last_score = point.score
        self._nonfinite = 0
        self._reports.append(point)
        if self._seen is not None:
            self._seen.add(identity(point))
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
            self._seen = {identity(known) for known in self._reports}
            self._series = list(self._reports)
            self._quick = False
        itself = identity(point)
        if itself in self._seen:
            return self._add_repeat(itself, point)
        self._seen.add(itself)
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

    def _add_repeat(self, itself: Identity, repeat: EvalPoint) -> Verdict:
        """Take from a repeat what the first report did not say; it never counts again."""
        index = next(i for i, known in enumerate(self._reports) if identity(known) == itself)
        known = self._reports[index]
        merged = with_repeat(known, repeat)
        if merged is not known:
            self._reports[index] = merged
            self._refold()
        return self.verdict

    def _refold(self) -> None:
        points = pool(self._reports)
        current = current_branch(points)
        self._last_step = current[-1].step
        self._attempt = current[-1].attempt
        self._nonfinite = trailing_nonfinite(current)
        finite = [point for point in current if math.isfinite(point.score)]
        self._epoch = (finite or current)[-1].epoch_key
        self._series = last_epoch(finite)
        self._best = highest(point for point in points if point.epoch_key == self._epoch)
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


def _unless_diverged(verdict: Verdict, nonfinite: int) -> Verdict:
    if nonfinite < DIVERGED_AFTER:
        return verdict
    note = f"{nonfinite} evaluations in a row gave no finite score"
    return msgspec.structs.replace(verdict, state=_DIVERGED, note=note)
