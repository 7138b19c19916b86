"""Rules by name: the table behind ``--rule``, ``evalstop rules`` and ``parse_rule``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.config.spelling import Entry, build, parameters_of, require_text, unknown_name
from evalstop.core.errors import SpecError
from evalstop.detectors.bayes import Bayes
from evalstop.detectors.bocpd import Bocpd
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.cusum import Cusum
from evalstop.detectors.drop import Drop
from evalstop.detectors.e_detector import EDetector
from evalstop.detectors.glr_cusum import GlrCusum
from evalstop.detectors.local_trend import LocalTrend
from evalstop.detectors.never import Never
from evalstop.detectors.order_restricted import OrderRestricted
from evalstop.detectors.page_hinkley import PageHinkley
from evalstop.detectors.paired import Paired
from evalstop.detectors.patience import Patience
from evalstop.detectors.scan import Scan
from evalstop.policies.baselines import LossPlateau, StopAt
from evalstop.policies.rules import EVERY_OTHER, NamedRule, Rules, by_job_type

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT", "PAPER", "RULES", "parse_rule"]

DEFAULT = "scan"
"""The rule that ``default`` stands for."""

PAPER = "rlhf=consecutive:k=2;dpo=consecutive:k=3;*=none"
"""The paper's map, which ``paper`` stands for."""

_ENTRIES = (
    Entry(
        name="default",
        make=Scan,
        summary="the rule we recommend: scan",
        parameters=parameters_of(
            Scan, {"alpha": "chance per job over its life", "horizon": "evaluations, 0 if unknown"}
        ),
        false_alarms="held at alpha for healthy jobs with independent noise",
    ),
    Entry(
        name="scan",
        make=Scan,
        summary="a bank of decline shapes against every curve that does not fall",
        parameters=parameters_of(
            Scan, {"alpha": "chance per job over its life", "horizon": "evaluations, 0 if unknown"}
        ),
        false_alarms="held at alpha for healthy jobs with independent noise",
    ),
    Entry(
        name="consecutive",
        make=ConsecutiveDecline,
        summary="the paper's rule: k declines in a row",
        parameters=parameters_of(ConsecutiveDecline, {"k": "evaluations"}),
        false_alarms="k = 2 stops 78 % of flat runs in 10 evals, 97 % in 20, at any noise",
    ),
    Entry(
        name="patience",
        make=Patience,
        summary="no new best for k evaluations",
        parameters=parameters_of(Patience, {"k": "evaluations", "min_delta": "metric units"}),
        false_alarms="stops every plateau in the end",
    ),
    Entry(
        name="drop",
        make=Drop,
        summary="g units below the best, k evaluations in a row",
        parameters=parameters_of(
            Drop, {"g": "units", "k": "evaluations", "unit": "se, percent or absolute"}
        ),
        false_alarms="about 3 % at g = 5, k = 1 in 30 evals of a plateau; grows slowly",
    ),
    Entry(
        name="cusum",
        make=Cusum,
        summary="cumulative drop below the running peak, in standard errors",
        parameters=parameters_of(
            Cusum, {"threshold": "standard errors", "drift": "standard errors per evaluation"}
        ),
        false_alarms="a few percent on a plateau of 20 evals; grows with their number",
    ),
    Entry(
        name="page-hinkley",
        make=PageHinkley,
        summary="a fall below the running mean",
        parameters=parameters_of(
            PageHinkley,
            {"threshold": "metric units", "delta": "metric units", "warmup": "evaluations"},
        ),
        false_alarms="not held: depends on noise and rise",
    ),
    Entry(
        name="order-restricted",
        make=OrderRestricted,
        summary="rise-then-fall against never-falling, by likelihood ratio",
        parameters=parameters_of(
            OrderRestricted, {"threshold": "squared standard errors", "window": "evaluations"}
        ),
        false_alarms="1 % of flat runs of 40 evals, 9 % of 100; grows with their number",
    ),
    Entry(
        name="e-detector",
        make=EDetector,
        summary="forecasts against every curve that never falls: a proof, at a price in power",
        parameters=parameters_of(EDetector, {"alpha": "chance per job over its life"}),
        false_alarms="at most alpha for life, proven, with errors as reported",
    ),
    Entry(
        name="bayes",
        make=Bayes,
        summary="the odds that the peak is past, under a prior that you state or calibrate fits",
        parameters=parameters_of(
            Bayes,
            {
                "alpha": "chance per healthy run of the prior",
                "odds": "odds to ask for, 0: as alpha says",
                "horizon": "evaluations, 0 if unknown",
                "base": "metric units",
                "base_sd": "metric units",
                "gain": "metric units",
                "gain_sd": "metric units",
                "peak_low": "share of the run",
                "peak_high": "share of the run",
                "healthy_low": "share of the run",
                "healthy_high": "share of the run",
                "drop_low": "share of the gain",
                "drop_high": "share of the gain",
                "power_low": "of time in KL",
                "power_high": "of time in KL",
                "shape": "linear, cliff, gao or any",
                "declining": "share of runs",
                "misfit": "share of the gain",
                "stderr": "metric units, 0: estimated",
            },
        ),
        false_alarms="at most alpha for life if the prior is right; not held if it is not",
    ),
    Entry(
        name="glr-cusum",
        make=GlrCusum,
        summary="one fall of level at the likeliest time; slow after a rise",
        parameters=parameters_of(GlrCusum, {"threshold": "standard errors"}),
        false_alarms="0.2 % of flat runs of 40 evals, 1 % of 100",
    ),
    Entry(
        name="bocpd",
        make=Bocpd,
        summary="odds that the present trend is below its best; for explaining a curve",
        parameters=parameters_of(
            Bocpd,
            {
                "hazard": "new pieces per evaluation",
                "threshold": "log odds",
                "runs": "run lengths kept",
            },
        ),
        false_alarms="not held: about 1 % of flat runs of 40 to 100 evals",
    ),
    Entry(
        name="local-trend",
        make=LocalTrend,
        summary="a drifting level and slope, filtered, against its highest level",
        parameters=parameters_of(
            LocalTrend,
            {
                "threshold": "standard deviations",
                "level_drift": "standard errors per evaluation",
                "slope_drift": "standard errors per evaluation",
            },
        ),
        false_alarms="not held: 0.2 % of flat runs of 40 evals, 2 % of 100",
    ),
    Entry(
        name="paired",
        make=Paired,
        summary="item by item against the best checkpoint; needs per-item scores",
        parameters=parameters_of(Paired, {"alpha": "chance per job over its life"}),
        false_alarms="at most alpha for life, by summing over all pairs",
    ),
    Entry(
        name="stop-at",
        make=StopAt,
        summary="stop every job at a share of its estimated service",
        parameters=parameters_of(StopAt, {"fraction": "share of the estimated service"}),
        false_alarms="every job that has an estimate",
    ),
    Entry(
        name="loss-plateau",
        make=LossPlateau,
        summary="training loss no longer falls",
        parameters=parameters_of(
            LossPlateau, {"patience": "reports of the loss", "min_delta": "share of the loss"}
        ),
        false_alarms="every job whose loss flattens; blind to over-optimisation",
    ),
    Entry(name="none", make=Never, summary="stop nothing", false_alarms="none"),
)

RULES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Every rule by name."""


def parse_rule(spec: str) -> Rules:
    """Read a rule, or a map from job type to rule.

    A plain SPEC is for every job type; ``rlhf=consecutive:k=2;*=none`` names one each; ``paper``
    is the paper's map. Job types are canonical or aliases (grpo, ppo, rloo, opd, sft).

    Args:
        spec: ``NAME[:key=value[,key=value...]]``, or ``TYPE=SPEC[;TYPE=SPEC...]``.

    Raises:
        SpecError: on an unknown name or setting, a bad value, or a type named twice.
    """
    require_text(spec, "rule")
    text = spec.strip()
    if text == "paper":
        return _parse_map(PAPER, text)
    if not text:
        msg = "rule"
        raise unknown_name(msg, text, RULES)
    head = text.partition(";")[0]
    if ";" in text or "=" in head.partition(":")[0]:
        return _parse_map(text, text)
    return Rules({EVERY_OTHER: NamedRule(build(text, RULES, "rule"), text)}, text)


def _parse_map(text: str, spec: str) -> Rules:
    if not text.strip("; "):
        msg = f"expected TYPE=SPEC[;TYPE=SPEC...], but got {text!r}"
        raise SpecError(msg)
    return Rules(by_job_type(_parts(text), f"{text!r} names"), spec)


def _parts(text: str) -> Iterator[tuple[str, NamedRule]]:
    for part in filter(None, (part.strip() for part in text.split(";"))):
        kind, equals, rule = part.partition("=")
        if not equals or not kind.strip() or not rule.strip():
            msg = f"expected TYPE=SPEC[;TYPE=SPEC...], but got {part!r} in {text!r}"
            raise SpecError(msg)
        yield kind, NamedRule(build(rule.strip(), RULES, "rule"), rule.strip())
