"""``evalstop scenario``: look at a workload before simulating it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalstop.cli.output import number, print_table, tell, version, write_json
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from evalstop.reports.figure_bytes import Form
    from evalstop.workloads.facts import Quartiles, WorkloadFacts
    from evalstop.workloads.job import Workload
    from evalstop.workloads.scenario import Scenario

__all__ = ["open_scenario", "scenario"]

_HOUR = 3600.0


def scenario(
    name: Annotated[
        str, typer.Argument(help="paper, gao, hard, or a TOML file.", metavar="NAME|FILE.toml")
    ],
    *,
    seed: Annotated[int, typer.Option(min=0, help="Which workload of the scenario.")] = 0,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Write the whole scenario as TOML, to start one's own.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the workload: FILE.svg, .png or .pdf.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """Show what a scenario gives: jobs, labels, durations, load, curves and errors.

    The hidden truth is in it: what no rule gets to see.
    """
    from evalstop.workloads.facts import describe  # noqa: PLC0415 -- after the options are read
    from evalstop.workloads.generate import generate  # noqa: PLC0415 -- same
    from evalstop.workloads.scenario_text import scenario_toml, write_scenario  # noqa: PLC0415

    form = None if figure is None else _form(figure)
    setting = open_scenario(name)
    if as_toml:
        sys.stdout.write(scenario_toml(setting))
        return
    workload = generate(setting, seed)
    facts = describe(workload, gpus=setting.gpus)
    if figure is not None and form is not None:
        figure.write_bytes(_draw(workload, setting, seed, form))
        tell(f"drawn: {figure}")
    if as_json:
        write_json(
            {
                "scenario": write_scenario(setting),
                "seed": seed,
                "facts": facts,
                "version": version(),
            }
        )
    else:
        _print(setting, seed, facts)


def open_scenario(name: str) -> Scenario:
    """Return the scenario of this name, or the one written in this file.

    Raises:
        InputError: there is none, or it is not written as it should be.
    """
    from evalstop.workloads.scenario_text import read_scenario  # noqa: PLC0415 -- not for --help
    from evalstop.workloads.scenarios import named  # noqa: PLC0415 -- same

    path = Path(name)
    if path.suffix != ".toml":
        return named(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{name}: not a text file in UTF-8, as TOML is: {error}"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror}"
        raise InputError(msg) from error
    if not text.strip():
        msg = f'{name}: the file is empty: expected a base = "paper", and what differs from it'
        raise InputError(msg)
    return read_scenario(text, source=name)


def _form(path: Path) -> Form:
    """Return what a figure's file name asks for."""
    from evalstop.reports.figure_bytes import FORMS  # noqa: PLC0415 -- matplotlib

    for form in FORMS:
        if path.suffix == f".{form}":
            return form
    msg = f"--figure writes .{', .'.join(FORMS)}, but it is {str(path)!r}"
    raise InputError(msg)


def _draw(workload: Workload, setting: Scenario, seed: int, form: Form) -> bytes:
    from evalstop.reports.figure_bytes import figure_bytes  # noqa: PLC0415 -- matplotlib
    from evalstop.reports.workload_figure import workload_figure  # noqa: PLC0415 -- same

    title = f"Scenario {setting.name}, seed {seed}: {len(workload)} jobs"
    return figure_bytes(workload_figure(workload, gpus=setting.gpus, title=title), form=form)


def _print(setting: Scenario, seed: int, facts: WorkloadFacts) -> None:
    title = (
        f"Scenario {setting.name}, seed {seed}: {facts.jobs} jobs on {setting.gpus} GPUs, "
        f"{facts.evals} evaluations"
    )
    kinds = [
        (kind, str(count), str(facts.hacking[kind]), _share(facts.hacking[kind], count))
        for kind, count in facts.types.items()
    ]
    print_table(title, ("type", "jobs", "hacking", "share"), kinds, right="lrrr")
    spreads = [
        _spread("GPUs of a job", facts.gpus),
        _spread("duration, h", facts.duration_s, unit=_HOUR),
        _spread("evaluations of a job", facts.evals_per_job),
        _spread("estimate / duration", facts.estimate_ratio),
        _spread("progress at the peak, hacking", facts.peak),
        _spread("decline at the end, hacking", facts.decline),
    ]
    header = ("", "least", "25 %", "median", "75 %", "greatest")
    print_table("Spread over jobs", header, spreads, right="lrrrrr")
    whole = [
        ("load offered", number(facts.load)),
        ("last submission, h", number(facts.span_s / _HOUR)),
        ("error of a score, standard deviation", number(facts.sigma)),
        ("reports lost", _percent(facts.reports_lost)),
        ("reports repeated", _percent(facts.reports_repeated)),
    ]
    print_table("Over the whole workload", ("", "value"), whole, right="lr")


def _spread(name: str, values: Quartiles, *, unit: float = 1.0) -> tuple[str, ...]:
    return (name, *(number(getattr(values, f) / unit) for f in values.__struct_fields__))


def _share(part: int, whole: int) -> str:
    return _percent(part / whole if whole else math.nan)


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"
