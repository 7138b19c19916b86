"""What every rule would have done to the recorded runs, against what was true of them.

Pure figures, no printing: `judge_rules` replays rules on the laboratory's runs through the very
code of ``evalstop replay``, and scores the stops with panels that no rule has seen.

- *false stop*: a stop of a run that is healthy by measurement (or, separately, by construction);
  of a run that dips by two standard errors or more and recovers, counted by itself;
- *found*: a stop of a run that is declined by measurement (drop of at least 5 standard errors);
- *early*: a stop before the true peak of a declined run;
- *delay*: evaluations from the true peak to the stop;
- *reclaimed*: share of the steps after the true peak that the stop saves, over all declined runs,
  those not found included (they save nothing);
- *regret*: true score at the peak minus true score at the checkpoint the rule would keep, both
  smoothed, in standard errors of one evaluation; over all declined runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from evalstop.config.rules import parse_rule
from evalstop.lab.arms import PANELS
from evalstop.lab.labels import smoothed
from evalstop.metrics.stats import t_interval, wilson_interval
from evalstop.traces.replay import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.lab.series import LabRun

__all__ = ["Judged", "RuleProof", "Share", "judge_rule", "judge_rules", "prove"]


class Share(Struct, frozen=True, kw_only=True):
    """A count out of a count, with its Wilson interval at 95 %."""

    count: int
    of: int
    low: float
    high: float

    @classmethod
    def counted(cls, flags: Sequence[bool]) -> Share:
        """Count the true ones. The interval takes them for independent."""
        count = sum(flags)
        low, high = wilson_interval(count, len(flags)) if flags else (0.0, 1.0)
        return cls(count=count, of=len(flags), low=low, high=high)

    @property
    def value(self) -> float | None:
        """The share; None of nothing."""
        return self.count / self.of if self.of else None


class Judged(Struct, frozen=True, kw_only=True):
    """One rule on one panel of one run.

    Attributes:
        trace_id, arm, panel, construction, measured: which, and its two labels.
        drop: true drop from peak to end, in standard errors of one evaluation.
        stop_index: evaluation at which the rule fires; None if it does not.
        peak_index: evaluation of the true peak.
        reclaimed: share of the steps after the true peak that are saved; 0 without a stop.
        regret: see the module.
    """

    trace_id: str
    arm: str
    panel: int
    construction: str
    measured: str
    drop: float
    stop_index: int | None
    peak_index: int
    reclaimed: float
    regret: float


class RuleProof(Struct, frozen=True, kw_only=True):
    """One rule's figures over one set of judgements.

    Attributes:
        rule: its SPEC.
        panels: panels of each run that were judged: 1, or 8 for as many noise replicates.
        false_stops_measured: of runs healthy by measurement.
        false_stops_constructed: of runs of arms built to be healthy.
        dips_stopped: of runs that dipped and recovered, by measurement.
        found: of runs declined by measurement.
        early: stops before the true peak, of runs declined by measurement.
        delay_mean: evaluations from the true peak to the stop, over found runs.
        reclaimed_mean, reclaimed_interval: over all declined runs.
        regret_mean, regret_max: over all declined runs, in standard errors.
    """

    rule: str
    panels: int
    false_stops_measured: Share
    false_stops_constructed: Share
    dips_stopped: Share
    found: Share
    early: Share
    delay_mean: float | None
    reclaimed_mean: float | None
    reclaimed_interval: tuple[float, float] | None
    regret_mean: float | None
    regret_max: float | None


def judge_rule(run: LabRun, spec: str, panel: int) -> Judged:
    """Replay one rule on one panel of a run, and hold it against the other panels."""
    rules = parse_rule(spec)
    series = run.series(panel)
    replayed = judge(series, rules.named(series.job_type), spec)
    measured = run.measured(panel)
    stop = replayed.stop_index
    last = len(run.steps) - 1
    after_peak = last - measured.peak_index
    saved = 0 if stop is None else last - max(stop, measured.peak_index)
    curve = smoothed(run.true_scores(panel))
    seen = run.scores[panel, : last + 1 if stop is None else stop + 1]
    kept = int(np.argmax(seen))
    return Judged(
        trace_id=run.trace_id,
        arm=run.arm,
        panel=panel,
        construction=run.construction,
        measured=measured.label,
        drop=measured.drop,
        stop_index=stop,
        peak_index=measured.peak_index,
        reclaimed=saved / after_peak if after_peak else 0.0,
        regret=float(curve[measured.peak_index] - curve[kept]) / float(np.median(run.stderrs)),
    )


def judge_rules(
    runs: Iterable[LabRun], specs: Iterable[str], *, panels: int = PANELS
) -> dict[str, list[Judged]]:
    """Return every judgement by rule, over the first ``panels`` panels of each run."""
    listed = list(runs)
    return {
        spec: [judge_rule(run, spec, panel) for run in listed for panel in range(panels)]
        for spec in specs
    }


def prove(spec: str, judged: Sequence[Judged]) -> RuleProof:
    """Sum up one rule's judgements."""
    declined = [one for one in judged if one.measured == "declined"]
    delays = [one.stop_index - one.peak_index for one in declined if one.stop_index is not None]
    reclaimed = [one.reclaimed for one in declined]
    regrets = [one.regret for one in declined]
    interval = t_interval(reclaimed) if len(reclaimed) > 1 else None
    return RuleProof(
        rule=spec,
        panels=len({one.panel for one in judged}),
        false_stops_measured=_stops(one for one in judged if one.measured == "healthy"),
        false_stops_constructed=_stops(one for one in judged if one.construction == "healthy"),
        dips_stopped=_stops(one for one in judged if one.measured == "dipped"),
        found=_stops(declined),
        early=Share.counted(
            [one.stop_index is not None and one.stop_index < one.peak_index for one in declined]
        ),
        delay_mean=float(np.mean(delays)) if delays else None,
        reclaimed_mean=float(np.mean(reclaimed)) if reclaimed else None,
        reclaimed_interval=interval,
        regret_mean=float(np.mean(regrets)) if regrets else None,
        regret_max=max(regrets, default=None),
    )


def _stops(judged: Iterable[Judged]) -> Share:
    return Share.counted([one.stop_index is not None for one in judged])
