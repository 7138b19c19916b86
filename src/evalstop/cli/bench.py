"""``evalstop bench``: open benchmarks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from evalstop.cli.output import number, print_table, progress, tell, version, write_json
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.experiments.detection.bench import Report

__all__ = ["app", "detectors"]

app = typer.Typer(no_args_is_help=True, help="Open benchmarks.")

_REPORTS = ("true", "understated", "unknown")


@app.callback()
def bench() -> None:
    """Open benchmarks."""


@app.command()
def detectors(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A minute: few worlds and rules.")] = False,
    world: Annotated[list[str] | None, typer.Option(help="Worlds; repeatable.")] = None,
    evals: Annotated[str, typer.Option(help="Evaluations a run, a list.")] = "5,10,20,40,100",
    sigma: Annotated[str, typer.Option(help="Noise, a list.")] = "0.005,0.01,0.02,0.05,0.12",
    rho: Annotated[str, typer.Option(help="Autocorrelation of the noise, a list.")] = "0",
    base_rate: Annotated[str, typer.Option(help="Share of declining runs, a list.")] = "0.6",
    stderr: Annotated[
        str, typer.Option(help="What is reported of the error: true,understated,unknown.")
    ] = "true",
    rule: Annotated[list[str] | None, typer.Option(help="Rules; repeatable.")] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Rules of other libraries, LIBRARY:RULE[:key=value,...]; repeatable. "
            "`installed`: all that are here."
        ),
    ] = None,
    peer_runs: Annotated[
        int, typer.Option(min=10, help="Curves of each kind that those judge: they are slow.")
    ] = 100,
    runs: Annotated[int, typer.Option(min=10, help="Curves of each kind in a cell.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="The Bayes reference beside them.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write the JSON there as well.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """Which rule finds what, and what does it stop by mistake?

    Every rule judges the same simulated curves, whose labels and peaks are hidden from it.
    """
    from evalstop.experiments.detection.bench import (  # noqa: PLC0415 -- heavy
        QUICK,
        RULES,
        Grid,
        run,
        summarise,
    )
    from evalstop.experiments.detection.worlds import WORLDS  # noqa: PLC0415 -- same
    from evalstop.experiments.peers.registry import installed  # noqa: PLC0415 -- same

    here = installed()
    peers = here if peer == ["installed"] else tuple(peer or ())
    grid = (
        msgspec.structs.replace(QUICK, seed=seed, peers=peers, peer_runs=peer_runs)
        if quick
        else Grid(
            worlds=tuple(world or WORLDS),
            evals=tuple(int(number) for number in _numbers("--evals", evals)),
            sigmas=_numbers("--sigma", sigma),
            rhos=_numbers("--rho", rho),
            base_rates=_numbers("--base-rate", base_rate),
            reports=_reports(stderr),
            rules=tuple(rule or RULES),
            peers=peers,
            peer_runs=peer_runs,
            runs=runs,
            seed=seed,
            reference=reference,
        )
    )
    with progress() as bar:
        task = bar.add_task("judging", total=None)
        cells = run(grid, progress=lambda done, of: bar.update(task, completed=done, total=of))
    summary = summarise(cells)
    document: dict[str, Any] = {
        "cells": msgspec.to_builtins(cells),
        "summary": summary,
        "grid": msgspec.to_builtins(grid),
        "libraries": sorted({cell.library for cell in cells if cell.library}),
        "version": version(),
    }
    if out is not None:
        out.write_bytes(msgspec.json.encode(document))
        tell(f"wrote {out}")
    if as_json:
        write_json(document)
    else:
        _print(summary)
        if document["libraries"]:
            tell(f"libraries: {', '.join(document['libraries'])}")
        elif here:
            tell(f"installed here, and not run: --peer {' --peer '.join(here)}")


def _print(summary: Sequence[dict[str, Any]]) -> None:
    names = list(summary[0]) if summary else ["rule"]
    rows = [
        [line[name] if name == "rule" else number(line[name], 3) for name in names]
        for line in summary
    ]
    heads = [name.replace("_", " ") for name in names]
    print_table("Rules over all cells", heads, rows, right="l" + "r" * (len(names) - 1))


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        msg = f"{option} must be numbers with commas between them, but it is {text!r}"
        raise InputError(msg) from error


def _reports(text: str) -> tuple[Report, ...]:
    parts = tuple(text.split(","))
    unknown = [part for part in parts if part not in _REPORTS]
    if unknown:
        msg = f"--stderr must be of {', '.join(_REPORTS)}, but it has {unknown[0]!r}"
        raise InputError(msg)
    return cast("tuple[Report, ...]", parts)
