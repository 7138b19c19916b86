"""The proof in Markdown: tables for docs/real-runs.md, made from figures alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.lab.law import LawFit
    from evalstop.lab.proof import Judged, RuleProof, Share
    from evalstop.lab.series import LabRun

__all__ = ["arms_table", "labels_table", "law_table", "per_arm_table", "rules_table"]

_LABELS = ("healthy", "dipped", "mild", "declined")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _share(share: Share) -> str:
    if not share.of:
        return "none"
    value = 100 * share.count / share.of
    return (
        f"{share.count}/{share.of} = {value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def rules_table(proofs: Sequence[RuleProof]) -> str:
    """Return one row a rule."""
    rows = [
        [
            f"`{proof.rule}`",
            _share(proof.false_stops_measured),
            _share(proof.false_stops_constructed),
            _share(proof.dips_stopped),
            _share(proof.found),
            _share(proof.early),
            _figure(proof.delay_mean, ".1f"),
            "-"
            if proof.reclaimed_mean is None or proof.reclaimed_interval is None
            else f"{100 * proof.reclaimed_mean:.0f} % [{100 * proof.reclaimed_interval[0]:.0f}, "
            f"{100 * proof.reclaimed_interval[1]:.0f}]",
            f"{_figure(proof.regret_mean, '.2f')} ({_figure(proof.regret_max, '.2f')})",
        ]
        for proof in proofs
    ]
    header = [
        "rule",
        "healthy (measured) stopped",
        "healthy (by construction) stopped",
        "dips stopped",
        "declined found",
        "of these before the true peak",
        "delay, evals",
        "post-peak steps reclaimed",
        "regret, SE: mean (max)",
    ]
    return _table(header, rows)


def labels_table(runs: Sequence[LabRun]) -> str:
    """Return construction against measurement, in runs."""
    counts = Counter((run.construction, run.label) for run in runs)
    rows = [
        [built, *(str(counts[built, label]) for label in _LABELS)]
        for built in ("healthy", "open", "over-optimised")
    ]
    return _table(["built to be", *(f"measured {label}" for label in _LABELS)], rows)


def arms_table(runs: Sequence[LabRun]) -> str:
    """Return what each arm's runs did."""
    arms: dict[str, list[LabRun]] = {}
    for run in sorted(runs, key=lambda run: (run.construction, run.arm)):
        arms.setdefault(run.arm, []).append(run)
    rows = []
    for name, members in arms.items():
        measured = [run.measured() for run in members]
        counts: Counter[str] = Counter(one.label for one in measured)
        agreement = np.mean([run.proxy_agreement for run in members])
        final_wins = [
            (run.wins[:, -1] + run.ties[:, -1] / 2).sum() / (64 * len(run.wins)) for run in members
        ]
        rows.append(
            [
                f"`{name}`",
                members[0].construction,
                str(len(members)),
                "-" if np.isnan(agreement) else f"{100 * agreement:.0f} %",
                f"{np.mean([one.gain for one in measured]):.1f}",
                f"{np.mean([one.drop for one in measured]):.1f}",
                f"{np.mean([one.peak_index for one in measured]):.0f}",
                f"{np.mean([run.kl[-1] for run in members]):.1f}",
                f"{100 * np.mean(final_wins):.0f} %",
                " / ".join(str(counts[label]) for label in _LABELS),
            ]
        )
    header = [
        "arm",
        "built to be",
        "runs",
        "proxy agrees with gold",
        "gain, SE",
        "drop, SE",
        "peak at eval (of 24)",
        "KL at the end, nats",
        "wins against the start at the end (ties half)",
        "measured healthy / dipped / mild / declined",
    ]
    return _table(header, rows)


def law_table(fits: Sequence[LawFit]) -> str:
    """Return one row a fitted arm."""
    rows = [
        [
            f"`{fit.arm}`",
            f"{fit.runs} / {fit.points}",
            f"{fit.alpha:.3f} [{fit.alpha_interval[0]:.3f}, {fit.alpha_interval[1]:.3f}]",
            f"{fit.beta:.3f} [{fit.beta_interval[0]:.3f}, {fit.beta_interval[1]:.3f}]",
            f"{fit.r_squared:.2f}",
            "none" if fit.peak_kl is None else f"{fit.peak_kl:.1f}",
            f"{fit.largest_kl:.1f}",
        ]
        for fit in fits
    ]
    return _table(
        ["arm", "runs / points", "alpha", "beta", "R²", "KL at the law's peak", "largest KL"], rows
    )


def per_arm_table(judged: Sequence[Judged]) -> str:
    """Return one rule's stops by arm."""
    arms: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: (one.construction, one.arm)):
        arms.setdefault(one.arm, []).append(one)
    rows = []
    for name, members in arms.items():
        cells = []
        for label in _LABELS:
            of = [one for one in members if one.measured == label]
            stops = sum(one.stop_index is not None for one in of)
            cells.append(f"{stops} / {len(of)}" if of else "-")
        rows.append([f"`{name}`", members[0].construction, *cells])
    header = [
        "arm",
        "built to be",
        "healthy stopped",
        "dips stopped",
        "mild stopped",
        "declined found",
    ]
    return _table(header, rows)
