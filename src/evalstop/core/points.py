"""One evaluation of one checkpoint, and what a rule says about the curve so far.

Higher scores are better, always: the direction of a metric is normalised once, at the edge.
A score that is not a finite number is the float ``NOT_FINITE`` and absent on the wire, so that
JSON never holds NaN.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

__all__ = [
    "LARGEST",
    "NOT_FINITE",
    "EvalPoint",
    "Kind",
    "State",
    "Verdict",
    "binomial_stderr",
    "score_of",
    "stderr_of_share",
]

NOT_FINITE = float("nan")
"""The score of an evaluation that gave no finite number. Compare with ``math.isfinite``."""

LARGEST = 1e100
"""Numbers beyond this, either way, count as not finite: rules square and add them."""


class EvalPoint(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One evaluation result.

    Attributes:
        step: training step of the evaluated checkpoint, >= 0.
        score: the metric, higher is better; ``NOT_FINITE`` if it was NaN or infinite.
        stderr: standard error of ``score`` in the metric's units, if the reporter knows it.
        n_items: number of evaluated items, if known.
        attempt: restart counter of the job; a rewind to an earlier step opens a new attempt.
        epoch_key: identity of the eval suite, judge, prompt and hardware. Scores compare only
            within one key.
        eval_id: tells replicates of one step apart.
        checkpoint: name of the checkpoint that was evaluated, if one was saved.
        proxy: training reward (the proxy) at this step, higher is better.
        items: per-item scores, in a fixed order of items, for paired comparisons.
        replicates: independent evaluations of this step pooled into the point.
        signals: what training says beside the score (KL, entropy, length ...), by name and in
            order of name. No rule reads them: see `evalstop.core.signals`.
    """

    step: int
    score: float = NOT_FINITE
    stderr: float | None = None
    n_items: int | None = None
    attempt: int = 0
    epoch_key: str | None = None
    eval_id: str | None = None
    checkpoint: str | None = None
    proxy: float | None = None
    items: tuple[float, ...] | None = None
    replicates: int = 1
    signals: tuple[tuple[str, float], ...] = ()


class State(StrEnum):
    """What a rule thinks of a curve."""

    OK = "ok"
    SUSPECT = "suspect"
    ALARM = "alarm"
    BLIND = "blind"
    DIVERGED = "diverged"


# Bound once: looking up a member of an Enum costs 0.25 us on CPython 3.11.
_ALARM = State.ALARM


class Kind(StrEnum):
    """Which way a declining job went wrong (R17): read off the proxy beside the score."""

    NONE = ""
    OVEROPTIMISED = "overoptimised"
    DEGRADED = "degraded"
    DECLINING = "declining"
    COLLAPSED = "collapsed"


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a rule says after an evaluation. Every rule explains itself in these terms.

    Attributes:
        state: ok, suspect, alarm, blind or diverged.
        statistic: the rule's evidence for a decline, in the rule's own units; larger is worse.
        threshold: the alarm is raised when ``statistic >= threshold``.
        best_step: step of the highest score of the current epoch (ties: the earliest).
        best_score: that score.
        kind: which kind of decline, once one is suspected.
        note: one sentence for people, only where the numbers do not say it.
    """

    state: State = State.OK
    statistic: float = 0.0
    threshold: float = 0.0
    best_step: int = -1
    best_score: float = NOT_FINITE
    kind: Kind = Kind.NONE
    note: str = ""

    @property
    def alarm(self) -> bool:
        """Whether the rule asks for the job to be stopped."""
        return self.state is _ALARM

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        relation = ">=" if self.statistic >= self.threshold else "<"
        words = self.state.value
        if self.statistic or self.threshold:  # else nothing was measured
            words += f": statistic {self.statistic:.4g} {relation} {self.threshold:.4g}"
        if self.best_step >= 0:
            words += f", best {self.best_score:.6g} at step {self.best_step}"
        if self.kind:
            words += f", {self.kind.value}"
        return f"{words} ({self.note})" if self.note else words


def score_of(value: float) -> float:
    """Return a number as a score: ``NOT_FINITE`` where no rule can reckon with it.

    A perplexity of exp(loss) goes to 1e300 before it goes to infinity, and means the same.
    """
    return value if -LARGEST <= value <= LARGEST else NOT_FINITE


def binomial_stderr(share: float, items: int) -> float:
    """Return the standard error of a share of ``items`` right answers, never 0.

    Add-one smoothed (Laplace): with p = (share * n + 1) / (n + 2), sqrt(p (1 - p) / n); without
    it a score of 0 or 1 would claim to be exact.
    """
    smoothed = (share * items + 1.0) / (items + 2.0)
    return math.sqrt(smoothed * (1.0 - smoothed) / items)


def stderr_of_share(score: float, items: int | None) -> float | None:
    """Return the binomial error of a lone score, None unless it can be a share (0 to 1).

    One report does not tell percent from other scales: there the reporter gives ``stderr``.
    """
    return binomial_stderr(score, items) if items and 0.0 <= score <= 1.0 else None
