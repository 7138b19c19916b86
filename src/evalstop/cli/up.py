"""``evalstop up``: run the platform."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalstop.cli.output import tell, write_json
from evalstop.cli.remote import DEFAULT_DIR, Json
from evalstop.core.errors import MissingExtraError

if TYPE_CHECKING:
    from evalstop.config.settings import Settings

__all__ = ["up"]


def up(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings; ./evalstop.toml if it is there.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen at.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65_535, help="Port; 0 for any free one.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", envvar="EVALSTOP_DIR", help="Where state lies.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, help="Run jobs on so many slots in place of GPUs."),
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="observe, advise or enforce.")] = None,
    as_json: Json = False,
) -> None:
    """Run the controller and its API; jobs and reports come in over HTTP.

    Starts in observe mode: it says what it would have stopped, and touches nothing. A change of
    rules, modes or guards in the settings takes effect without a restart. A second one on the
    same state waits, and takes over when the first one is gone.
    """
    try:
        from evalstop.service.serve import serve  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "server") from error
    from evalstop.config.settings import read_settings, with_options  # noqa: PLC0415 -- same

    beside = Path("evalstop.toml")
    path = config if config is not None else (beside if beside.exists() else None)

    def read() -> Settings:
        return with_options(read_settings(path), host=host, port=port, slots=slots, mode=mode)

    named = read().server.dir
    state = folder or (Path(named) if named else DEFAULT_DIR)
    listening = _write if as_json else _ignore
    serve(read, state.absolute(), config=path, tell=tell, listening=listening)


def _write(where: dict[str, str]) -> None:
    write_json(where)
    sys.stdout.flush()  # whoever started this in the background waits for it


def _ignore(where: dict[str, str]) -> None:
    """People are told on stderr."""
