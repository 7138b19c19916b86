"""``evalstop calibrate``: the recommended rule on your own healthy history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
import typer

from evalstop.cli.output import print_table, tell, version, write_json
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from evalstop.experiments.detection.prior_fit import FittedPrior

__all__ = ["calibrate"]


def calibrate(
    paths: Annotated[
        list[str], typer.Argument(help="Runs that were healthy, in any form replay reads.")
    ],
    *,
    declined: Annotated[
        list[str] | None,
        typer.Option(help="Runs that declined, for a prior of rule bayes; repeatable."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Share of healthy runs that may be stopped.")] = 0.01,
    metric: Annotated[str | None, typer.Option(help="Metric to watch.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="max or min; required unless the file states it.", metavar="max|min"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """What false-stop rate do my own healthy runs get, and which rule should I set?"""
    from evalstop.experiments.detection.calibrate import (  # noqa: PLC0415 -- heavy
        calibrate as judge,
    )
    from evalstop.experiments.detection.prior_fit import fit_prior  # noqa: PLC0415 -- heavy

    if direction not in {None, "max", "min"}:
        msg = f"--direction must be max or min, but it is {direction!r}"
        raise InputError(msg)
    if not 0.0 < alpha < 1.0:
        msg = f"--alpha must lie between 0 and 1, but it is {alpha}"
        raise InputError(msg)
    sense = cast("Literal['max', 'min'] | None", direction)
    found = judge(paths, target=alpha, metric=metric, direction=sense)
    prior = fit_prior(
        [path for path in paths if not found.failed(path)],
        declined or [],
        alpha=alpha,
        metric=metric,
        direction=sense,
    )
    for error in found.errors:
        tell(f"error: {error}")
    if as_json:
        write_json(
            {
                **msgspec.to_builtins(found),
                "prior": msgspec.to_builtins(prior),
                "version": version(),
            }
        )
    else:
        rows = [
            [
                f"{level.alpha:g}",
                f"{level.stopped} of {found.runs}",
                f"{level.interval[0]:.1%} - {level.interval[1]:.1%}",
            ]
            for level in found.levels
        ]
        print_table(
            "Healthy runs stopped", ["alpha", "stopped", "95 % interval"], rows, right="rrr"
        )
        tell(f"use {found.spec}" + (f" ({found.note})" if found.note else ""))
        tell(_about(prior))
    if found.errors:
        raise typer.Exit(1)


def _about(prior: FittedPrior) -> str:
    """Return what there is to say about the rule that trusts a prior, in a sentence."""
    if not prior.spec:
        return f"no prior for rule bayes: {prior.note}"
    words = f"or, if you trust that runs stay as these were: {prior.spec} (stops {prior.stopped} "
    words += f"of these {prior.healthy}"
    if prior.declined:
        words += f", finds {prior.found} of {prior.declined} declined"
    return f"{words}; {prior.note})"
