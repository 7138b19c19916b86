"""``evalstop replay``: what would a rule have done to runs I already have?"""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from evalstop.cli.output import fit, number, print_table, tell, version, write_json
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.traces.results import Replay, Replayed

__all__ = ["replay"]

_MOST_ROWS = 40


def replay(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="trainer_state.json, a folder of runs, CSV / Parquet / JSONL in long form, "
            "TensorBoard events, lm-evaluation-harness results, verl's JSONL log, or mlflow:URI.",
            show_default=False,
        ),
    ] = None,
    *,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="NAME[:key=value,...] or TYPE=SPEC;...; repeatable. See evalstop rules."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric to watch, in any of its spellings.")
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="max or min; required unless the file states it.", metavar="max|min"),
    ] = None,
    job_type: Annotated[
        str | None, typer.Option(help="rlhf, dpo, lora, other: overrides what the files say.")
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="Replay the public runs that evalstop ships.",
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with every run's curve, for offline use.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every run, not the first 40.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """What would a rule have done to runs I already have?

    Every run is replayed under every rule: where it would have been stopped, what that saves and
    what it costs. Exit code 1 says that some of the files could not be read.
    """
    from evalstop.config.rules import parse_rule  # noqa: PLC0415 -- after the options are read
    from evalstop.traces.replay import replay as run_replay  # noqa: PLC0415 -- same

    if direction not in {None, "max", "min"}:
        msg = f"--direction must be max or min, but it is {direction!r}"
        raise InputError(msg)
    sources: list[str | Path] = [*(paths or [])]
    if example:
        sources.append("example:")
    if not sources:
        msg = "no run to replay: name files, folders or mlflow:URI, or use --example"
        raise InputError(msg)
    rules = [parse_rule(spec) for spec in rule or ["default"]]
    sense = cast("Literal['max', 'min'] | None", direction)
    report = run_replay(sources, rules, metric=metric, direction=sense, job_type=job_type)
    for warning in report.warnings:
        tell(f"warning: {warning}")
    for error in report.errors:
        tell(f"error: {error.source}: {error.message}")
    if html is not None:
        from evalstop.reports.replay_page import write_page  # noqa: PLC0415 -- only if wanted

        write_page(html, report)
        tell(f"wrote {html}")
    if as_json:
        write_json({**report.as_json(), "version": version()})
    else:
        _print(report, limit=None if every else _MOST_ROWS)
    if report.errors:
        raise typer.Exit(1)


def _print(report: Replay, limit: int | None) -> None:
    for spec, summary in report.summary.items():
        results = sorted(
            (result for result in report.results if result.rule == spec),
            key=lambda result: -result.saved_fraction,
        )
        fired = [result for result in results if result.fired]
        shown = fired[:limit]
        if shown:
            _print_stops(f"Rule {spec}: runs it would have stopped", shown)
        if len(shown) < len(fired):
            tell(f"{len(fired) - len(shown)} more stopped runs: --all lists them, --json has all")
        print_table(
            f"Rule {spec}: summary{_of_units(results)}",
            ["runs", "stopped", "steps saved, mean", "regret, mean", "regret, largest"],
            [
                [
                    str(summary.runs),
                    str(summary.fired),
                    f"{summary.saved_fraction_mean:.1%}",
                    number(summary.regret_mean),
                    number(summary.regret_max),
                ]
            ],
            right="rrrrr",
        )


def _of_units(results: Sequence[Replayed]) -> str:
    """Return what to know of regrets that are summed over several metrics."""
    metrics = len({result.metric for result in results})
    return f" ({metrics} metrics: its regrets mix their units)" if metrics > 1 else ""


def _print_stops(title: str, shown: Sequence[Replayed]) -> None:
    """Print a line a stopped run; the metric has no column if every run's name tells it."""
    named = all(result.trace_id.endswith(result.metric) for result in shown)
    left_out = {"metric"} if named else set()
    kept = [(name, side) for name, side in _COLUMNS.items() if name not in left_out]
    rows = [[cell for name, cell in _row(one).items() if name not in left_out] for one in shown]
    print_table(title, [n for n, _ in kept], rows, right="".join(side for _, side in kept))


_COLUMNS = {
    "run": "l", "metric": "l", "evals": "r", "stop at": "r", "best by then": "r",
    "best of run": "r", "at step": "r", "final": "r", "saved": "r", "regret": "r", "why": "l",
}  # fmt: skip


def _row(result: Replayed) -> dict[str, str]:
    on_screen = sys.stdout.isatty()  # what another program reads is never cut
    cells = (
        fit(result.trace_id) if on_screen else result.trace_id,
        fit(result.metric, 24) if on_screen else result.metric,
        str(result.n_evals),
        str(result.stop_step),
        number(result.best_score_at_stop),
        number(result.best_score),
        str(result.best_step),
        number(result.final_score),
        f"{result.saved_fraction:.0%}",
        number(result.regret),
        f"{number(result.statistic, 3)} >= {number(result.threshold, 3)}",
    )
    return dict(zip(_COLUMNS, cells, strict=True))
