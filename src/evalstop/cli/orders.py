"""People's orders: undo, snooze, approve, stop, freeze, unfreeze."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evalstop.cli.output import tell, write_json
from evalstop.cli.remote import DEFAULT_DIR, DEFAULT_URL, Dir, Json, Remote, Url, job_path
from evalstop.core.errors import InputError

__all__ = ["approve", "freeze", "snooze", "stop", "undo", "unfreeze"]

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Note = Annotated[str, typer.Option("--note", help="Why; kept in the log.")]


def _show(answer: Any, words: str, *, as_json: bool) -> None:  # noqa: ANN401 -- JSON
    if as_json:
        write_json(answer)
    else:
        tell(words)


def undo(
    job: Job,
    *,
    start: Annotated[
        str, typer.Option("--from", help="best or last: the checkpoint it goes on from.")
    ] = "best",
    note: Note = "",
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Reopen a stopped job: it waits again, to go on from its best checkpoint, or its last."""
    if start not in {"best", "last"}:
        message = f"--from must be best or last, but got {start!r}"
        raise InputError(message)
    answer = Remote(url, folder).post(job_path(job, "/undo"), {"note": note, "start": start})
    place = answer["resume_from"] or "the beginning: no checkpoint is kept"
    _show(answer, f"{job} is {answer['phase']} again, from {place}", as_json=as_json)


def snooze(
    job: Job,
    *,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.0, help="How long; until it ends by default.")
    ] = None,
    note: Note = "",
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Hold a job's stops for a while."""
    body: dict[str, object] = {"note": note}
    if hours is not None:
        body["for_s"] = hours * 3600.0
    answer = Remote(url, folder).post(job_path(job, "/snooze"), body)
    span = "until it ends" if hours is None else f"for {hours:g} hours"
    _show(answer, f"{job} is not stopped by policy {span}", as_json=as_json)


def approve(
    job: Job,
    *,
    note: Note = "",
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Let an advised or announced stop happen now."""
    answer = Remote(url, folder).post(job_path(job, "/approve"), {"note": note})
    if not answer["actions"]:
        message = f"{job} has no stop to approve: `evalstop stop {job}` stops it by your decision"
        raise InputError(message)
    _show(answer, f"{job} is being stopped", as_json=as_json)


def stop(
    job: Job,
    *,
    note: Note = "",
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Stop a job now; its best checkpoint is kept."""
    answer = Remote(url, folder).post(job_path(job, "/stop"), {"note": note})
    _show(answer, f"{job} is being stopped", as_json=as_json)


def freeze(
    *, note: Note = "", url: Url = DEFAULT_URL, folder: Dir = DEFAULT_DIR, as_json: Json = False
) -> None:
    """Let no policy stop anything until `evalstop unfreeze`."""
    answer = Remote(url, folder).post("/freeze", {"note": note})
    _show(answer, "frozen: nothing is stopped by policy", as_json=as_json)


def unfreeze(
    *, note: Note = "", url: Url = DEFAULT_URL, folder: Dir = DEFAULT_DIR, as_json: Json = False
) -> None:
    """End a freeze."""
    answer = Remote(url, folder).post("/unfreeze", {"note": note})
    _show(answer, "policies may stop jobs again", as_json=as_json)
