"""What alpha do these jobs really get? The recommended rule on a user's own healthy history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.metrics.stats import wilson_interval
from evalstop.traces.replay import replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Calibration", "Level", "calibrate"]

ALPHAS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class Level(Struct, frozen=True, kw_only=True):
    """What one setting does to the runs: the share it stops, with its 95 % interval."""

    alpha: float
    stopped: int
    rate: float
    interval: tuple[float, float]


class Calibration(Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        target: the false-stop rate that is wanted.
        runs: healthy runs judged.
        levels: what each setting of alpha does to them.
        alpha: largest setting whose observed rate does not exceed the target; 0 if there is none.
        spec: the rule to use, "none" if there is none.
        certified: whether the interval of that rate lies below the target as well.
        runs_to_certify: runs without a single stop that would certify the target.
        errors: sources that could not be read.
    """

    target: float
    runs: int
    levels: list[Level]
    alpha: float
    spec: str
    certified: bool
    runs_to_certify: int
    note: str
    errors: list[str]

    def failed(self, source: str | Path) -> bool:
        """Return whether a source, or a file below it, could not be read."""
        return any(error.startswith(str(source)) for error in self.errors)


def calibrate(
    sources: Sequence[str | Path],
    *,
    target: float = 0.01,
    metric: str | None = None,
    direction: Literal["max", "min"] | None = None,
) -> Calibration:
    """Judge healthy runs under a ladder of alphas and choose the setting.

    Args:
        sources: as for `evalstop.replay`; every run counts as healthy.
        target: the share of healthy runs that may be stopped.
        metric: as for `evalstop.replay`.
        direction: as for `evalstop.replay`.

    Raises:
        InputError: if nothing can be read.
    """
    specs = {f"scan:alpha={alpha:g}": alpha for alpha in ALPHAS}
    report = replay(
        list(sources), [parse_rule(spec) for spec in specs], metric=metric, direction=direction
    )
    levels = []
    for spec, alpha in specs.items():
        # A run without an evaluation is no witness: it could not have been stopped.
        own = [one for one in report.results if one.rule == spec and one.n_evals]
        if not own:
            message = "none of the runs has an evaluation whose score is a finite number"
            raise InputError(message)
        stopped, runs = sum(result.fired for result in own), len(own)
        levels.append(
            Level(
                alpha=alpha,
                stopped=stopped,
                rate=stopped / runs,
                interval=wilson_interval(stopped, runs),
            )
        )
    runs = sum(1 for one in report.results if one.n_evals) // len(specs)
    fitting = [level for level in levels if level.rate <= target]
    chosen = fitting[-1] if fitting else None
    needed = _runs_to_certify(target)
    return Calibration(
        target=target,
        runs=runs,
        levels=levels,
        alpha=chosen.alpha if chosen else 0.0,
        spec=f"scan:alpha={chosen.alpha:g}" if chosen else "none",
        certified=chosen is not None and chosen.interval[1] <= target,
        runs_to_certify=needed,
        note=_note(runs, needed, chosen),
        errors=[f"{error.source}: {error.message}" for error in report.errors],
    )


def _runs_to_certify(target: float) -> int:
    """Return the fewest runs whose interval for no stop at all lies below the target."""
    z = 1.959964
    return math.ceil(z * z * (1.0 - target) / target)


def _note(runs: int, needed: int, chosen: Level | None) -> str:
    if chosen is None:
        return "every setting stops more of these runs than wanted: are they healthy?"
    if runs < needed:
        return (
            f"{runs} runs are too few to certify the target: it takes {needed} without a stop; "
            "until then the simulated thresholds are the better guide, unless they stop more "
            "runs here than they promise"
        )
    return ""
