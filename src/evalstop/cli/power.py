"""``evalstop power``: can this eval see this drop?"""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
import typer

from evalstop.cli.output import number, print_table, version, write_json

__all__ = ["power"]


def power(
    *,
    evals: Annotated[int, typer.Option(help="Evaluations of the whole run.")],
    drop: Annotated[
        float, typer.Option(help="Loss from the peak to the end, in the metric's units.")
    ],
    items: Annotated[int | None, typer.Option(help="Items an evaluation.")] = None,
    stderr: Annotated[float | None, typer.Option(help="Or the error of an evaluation.")] = None,
    score: Annotated[float, typer.Option(help="Where scores lie, for the error of items.")] = 0.5,
    alpha: Annotated[float, typer.Option(help="Lifetime false-stop rate of the rule.")] = 0.01,
    shape: Annotated[str, typer.Option(help="linear, cliff or gao.")] = "linear",
    peak: Annotated[
        int | None, typer.Option(help="Evaluation of the peak; the middle by default.")
    ] = None,
    runs: Annotated[int, typer.Option(min=100, help="Simulated runs.")] = 4000,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """Can this eval see this drop? Chance of detection, delay, and the items for 90 %."""
    from evalstop.experiments.detection.power import Shape  # noqa: PLC0415 -- heavy
    from evalstop.experiments.detection.power import power as simulate  # noqa: PLC0415 -- same

    found = simulate(
        evals=evals,
        drop=drop,
        items=items,
        stderr=stderr,
        score=score,
        alpha=alpha,
        shape=cast("Shape", shape),
        peak=peak,
        runs=runs,
        seed=seed,
    )
    if as_json:
        write_json({**msgspec.to_builtins(found), "version": version()})
        return
    low, high = found.interval
    needed = "-" if found.items_for_90 is None else f"{found.items_for_90:,}"
    print_table(
        "Can this eval see this drop?",
        ["error of an eval", "chance", "95 % interval", "delay, evals", "error for 90 %", "items"],
        [
            [
                number(found.stderr),
                f"{found.chance:.1%}",
                f"{low:.1%} - {high:.1%}",
                number(found.delay_evals_mean, 3),
                number(found.stderr_for_90),
                needed,
            ]
        ],
        right="rrrrrr",
    )
