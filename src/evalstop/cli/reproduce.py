"""``evalstop reproduce``: the paper's tables and figures, side by side with ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from evalstop.cli.output import print_table, progress, tell, version, write_json
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from evalstop.experiments.runner import Spread

__all__ = ["reproduce"]


def reproduce(
    *,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Few seeds, about a minute; else 30 seeds.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for results; a broken run goes on there.", metavar="DIR")
    ] = Path("reproduction"),
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV of real arrivals (Philly, Acme, or plain) for the suite on them."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for each core.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Spread over a Ray cluster: auto, or its address.", metavar="ADDRESS"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """Run the paper's evaluation and ours; write verdicts, figures and every run.

    DIR gets results.json, runs.parquet, figures/, report.html and report.md. Runs that are done
    there already, with the same spec and version, are not run again.
    """
    from evalstop.experiments.reproduce import reproduce as run_all  # noqa: PLC0415 -- heavy
    from evalstop.experiments.suites.real_arrivals import JOBS, QUICK_JOBS  # noqa: PLC0415 -- same
    from evalstop.traces.arrivals import read_arrivals  # noqa: PLC0415 -- same

    arrived = None
    if trace is not None:
        arrived = read_arrivals(trace, jobs=QUICK_JOBS if quick else JOBS).arrived
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--out {out}: the folder cannot be made: {error}"
        raise InputError(msg) from error
    with progress() as bar:
        task = bar.add_task("simulating", total=None)
        found = run_all(
            out,
            quick=quick,
            arrived=arrived,
            spread=_spread(workers, ray),
            progress=lambda done, of: bar.update(task, completed=done, total=of),
            commit=_commit(),
        )
    tell(f"written to {out}: results.json, runs.parquet, figures/, report.html, report.md")
    plain: dict[str, Any] = msgspec.to_builtins(found)
    if as_json:
        write_json({**plain, "version": version()})
    else:
        _print(plain["claims"])


def _spread(workers: int | None, ray: str | None) -> Spread:
    if ray is not None:
        from evalstop.experiments.ray import over_ray  # noqa: PLC0415 -- an extra

        return over_ray(ray)
    from evalstop.experiments.runner import cores  # noqa: PLC0415 -- heavy

    return cores(workers)


def _commit() -> str | None:
    """Return the commit of the source this runs from; None outside of a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 -- a fixed command
        [git, "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def _print(claims: list[dict[str, Any]]) -> None:
    from evalstop.reports.experiments_page import verdict_rows  # noqa: PLC0415 -- heavy

    rows = [row[:5] for row in verdict_rows(claims)]
    print_table(
        "The paper's claims beside ours",
        ("claim", "paper", "ours (95 %)", "verdict", "seeds"),
        rows,
        right="llllr",
    )
