"""The table of commands, and the application made from it."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evalstop.cli.output import version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "application"]


class Entry(NamedTuple):
    """One command.

    Attributes:
        target: ``module:attribute`` of its function, or of a ``typer.Typer`` for a group.
        help: its line in the list of commands.
        panel: heading it stands under in that list.
    """

    target: str
    help: str
    panel: str


_ASK = "Ask what a rule does"
_RUN = "Run and guard jobs"
_ORDER = "Give orders"

COMMANDS: dict[str, Entry] = {
    "replay": Entry(
        "evalstop.cli.replay:replay", "What would a rule have done to runs I already have?", _ASK
    ),
    "simulate": Entry(
        "evalstop.cli.simulate:simulate", "What would a rule do to a whole cluster?", _ASK
    ),
    "scenario": Entry(
        "evalstop.cli.scenario:scenario", "Look at a workload before simulating it.", _ASK
    ),
    "lab": Entry("evalstop.cli.lab:app", "Real small RLHF runs that over-optimise.", _ASK),
    "reproduce": Entry(
        "evalstop.cli.reproduce:reproduce", "The paper's tables and figures beside ours.", _ASK
    ),
    "bench": Entry("evalstop.cli.bench:app", "Open benchmarks of stop rules.", _ASK),
    "power": Entry("evalstop.cli.power:power", "Can this eval see this drop?", _ASK),
    "calibrate": Entry(
        "evalstop.cli.calibrate:calibrate", "Which alpha do my own healthy runs need?", _ASK
    ),
    "rules": Entry("evalstop.cli.rules:rules", "List the stop rules and their parameters.", _ASK),
    "up": Entry("evalstop.cli.up:up", "Run the platform: controller and API.", _RUN),
    "submit": Entry("evalstop.cli.jobs:submit", "Hand in the job that a file describes.", _RUN),
    "jobs": Entry("evalstop.cli.jobs:jobs", "List jobs.", _RUN),
    "watch": Entry("evalstop.cli.oversee:watch", "Show the cluster in the terminal.", _RUN),
    "report": Entry("evalstop.cli.jobs:report", "Report one evaluation of a job.", _RUN),
    "explain": Entry("evalstop.cli.jobs:explain", "Why was this job stopped?", _RUN),
    "best": Entry("evalstop.cli.jobs:best", "Print the path of the best checkpoint.", _RUN),
    "savings": Entry("evalstop.cli.oversee:savings", "What was saved, by tenant.", _RUN),
    "token": Entry("evalstop.cli.token:app", "Who may do what: make and revoke tokens.", _RUN),
    "doctor": Entry("evalstop.cli.oversee:doctor", "Check everything; say what to fix.", _RUN),
    "stop": Entry("evalstop.cli.orders:stop", "Stop a job now.", _ORDER),
    "approve": Entry("evalstop.cli.orders:approve", "Let an announced stop happen now.", _ORDER),
    "snooze": Entry("evalstop.cli.orders:snooze", "Hold a job's stops for a while.", _ORDER),
    "undo": Entry("evalstop.cli.orders:undo", "Reopen a stopped job.", _ORDER),
    "freeze": Entry("evalstop.cli.orders:freeze", "Let no policy stop anything.", _ORDER),
    "unfreeze": Entry("evalstop.cli.orders:unfreeze", "End a freeze.", _ORDER),
}
"""Every command in the order of the help."""


def application(words: Sequence[str]) -> typer.Typer:
    """Return the application with the command that ``words`` name loaded, the others listed."""
    app = typer.Typer(
        name="evalstop",
        help="Stop fine-tuning runs whose held-out quality is falling, keep their best "
        "checkpoint, free their GPUs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    chosen = next((word for word in words if not word.startswith("-")), None)
    load_all = "_EVALSTOP_COMPLETE" in os.environ
    for name, entry in COMMANDS.items():
        target = _load(entry) if load_all or name == chosen else _unloaded
        if isinstance(target, typer.Typer):
            app.add_typer(
                target,
                name=name,
                help=entry.help,
                rich_help_panel=entry.panel,
                no_args_is_help=True,
            )
        else:
            app.command(
                name, help=_flowing(target), short_help=entry.help, rich_help_panel=entry.panel
            )(target)
    return app


def _flowing(command: Callable[..., None]) -> str:
    """Return a command's text with a line a paragraph: a terminal has a width of its own."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _load(entry: Entry) -> Callable[..., None] | typer.Typer:
    module, attribute = entry.target.split(":")
    loaded: Callable[..., None] | typer.Typer = getattr(import_module(module), attribute)
    return loaded


def _unloaded() -> None:
    """Stand for a command in the list of commands; never called."""


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- Typer's callback form
    if wanted:
        typer.echo(f"evalstop {version()}")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
