"""``evalstop calibrate``: the recommended rule on your own healthy history."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec
import typer

from evalstop.cli.output import print_table, tell, version, write_json
from evalstop.core.errors import InputError

__all__ = ["calibrate"]


def calibrate(
    paths: Annotated[
        list[str], typer.Argument(help="Runs that were healthy, in any form replay reads.")
    ],
    *,
    alpha: Annotated[float, typer.Option(help="Share of healthy runs that may be stopped.")] = 0.01,
    metric: Annotated[str | None, typer.Option(help="Metric to watch.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="max or min; required unless the file states it.", metavar="max|min"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """What false-stop rate do my own healthy runs get, and which alpha should I set?"""
    from evalstop.experiments.detection.calibrate import (  # noqa: PLC0415 -- heavy
        calibrate as judge,
    )

    if direction not in {None, "max", "min"}:
        msg = f"--direction must be max or min, but it is {direction!r}"
        raise InputError(msg)
    if not 0.0 < alpha < 1.0:
        msg = f"--alpha must lie between 0 and 1, but it is {alpha}"
        raise InputError(msg)
    sense = cast("Literal['max', 'min'] | None", direction)
    found = judge(paths, target=alpha, metric=metric, direction=sense)
    for error in found.errors:
        tell(f"error: {error}")
    if as_json:
        write_json({**msgspec.to_builtins(found), "version": version()})
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
    if found.errors:
        raise typer.Exit(1)
