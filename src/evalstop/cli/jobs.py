"""Commands about jobs: submit, jobs, report, explain, best."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from pathlib import Path  # noqa: TC003 -- Typer reads it at run time
from typing import Annotated, Any

import typer

from evalstop.cli.output import number, print_table, tell, write_json
from evalstop.cli.remote import DEFAULT_DIR, DEFAULT_URL, Dir, Json, Remote, Url, job_path
from evalstop.core.errors import EvalStopError, InputError, ReadError

__all__ = ["best", "explain", "jobs", "report", "submit"]

Job = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML or JSON: a job, or [[jobs]].")],
    *,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Hand in the job that FILE describes, or all of its [[jobs]].

    A job needs a command (a list of words) and a direction: max if higher scores are better, else
    min. See the reference for the other settings. Exit code 1 says that some of several jobs were
    refused; the others are handed in.
    """
    remote = Remote(url, folder)
    described = read_jobs(file)
    made, refused = [], []
    for place, one in enumerate(described, start=1):
        try:
            made.append(remote.post("/jobs", one))
        except InputError as error:
            name = one.get("id") if isinstance(one, dict) else None  # JSON may hold anything
            refused.append({"id": str(name or f"number {place}"), "message": str(error)})
            if len(refused) == len(described):  # of one job, or of several, all
                raise
    for one in made:
        for words in one["warnings"]:
            tell(f"{one['id']}: {words}")
    for bad in refused:
        tell(f"error: {bad['id']}: {bad['message']}")
    if as_json:
        told = [{"id": one["id"], "warnings": one["warnings"]} for one in made]
        write_json({"jobs": told} | ({"errors": refused} if refused else {}))
    else:
        for one in made:
            typer.echo(one["id"])
    if refused:
        raise typer.Exit(1)


def read_jobs(file: Path) -> list[dict[str, Any]]:
    """Return the jobs that a file describes.

    Raises:
        ReadError: if it cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ReadError(str(file), f"expected TOML, or JSON in a .json file: {error}") from error
    found = data.get("jobs", data) if isinstance(data, dict) else data
    return found if isinstance(found, list) else [found]


def jobs(
    *,
    phase: Annotated[
        str | None, typer.Option("--phase", help="Only jobs in this phase or with this outcome.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from urllib.parse import urlencode  # noqa: PLC0415 -- needed here alone

    asked = {"phase": phase, "tenant": tenant}
    words = urlencode({name: value for name, value in asked.items() if value is not None})
    found = Remote(url, folder).get(f"/jobs?{words}")
    if as_json:
        write_json(found)
        return
    print_table(
        "Jobs",
        ["job", "tenant", "type", "gpus", "state", "evals", "best", "at step", "verdict"],
        [job_row(job) for job in found["jobs"]],
        right="lllrlrrrl",
    )


def job_row(job: dict[str, Any]) -> list[str]:
    """Return a job as the cells of a table."""
    best_found = job["best"] or {}
    verdict = job["verdict"] or {}
    words = verdict.get("state", "")
    if verdict.get("threshold"):
        words += f" {number(verdict['statistic'], 3)}/{number(verdict['threshold'], 3)}"
    if job["advice"]:
        words = job["advice"]
    return [
        job["id"],
        job["tenant"],
        job["job_type"],
        str(job["gpus"]),
        job["outcome"] or job["phase"],
        str(job.get("evals_seen", 0)),
        number(best_found.get("score")),
        str(best_found.get("step", "-")),
        words,
    ]


def report(
    job: Job,
    *,
    step: Annotated[int, typer.Option("--step", help="Training step of the checkpoint.")],
    score: Annotated[
        str, typer.Option("--score", help="The metric, in the job's own direction; nan for none.")
    ],
    stderr: Annotated[float | None, typer.Option("--stderr", help="Its standard error.")] = None,
    n_items: Annotated[int | None, typer.Option("--n-items", help="Evaluated items.")] = None,
    proxy: Annotated[float | None, typer.Option("--proxy", help="Training reward.")] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Its name.")] = None,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Report one evaluation of a job."""
    value = _score_of(score)
    for name, given in (("--stderr", stderr), ("--proxy", proxy)):
        if given is not None and not math.isfinite(given):
            message = f"{name} must be a finite number, but got {given}: leave it out if unknown"
            raise InputError(message)
    fields = {
        "step": step,
        "score": value if math.isfinite(value) else None,
        "stderr": stderr,
        "n_items": n_items,
        "proxy": proxy,
        "checkpoint": checkpoint,
    }
    one = {name: value for name, value in fields.items() if value is not None or name == "score"}
    answer = Remote(url, folder).post(job_path(job, "/evals"), {"evals": [one]})
    if as_json:
        write_json(answer)
        return
    word = "repeat, ignored" if answer["duplicates"] else "taken in"
    tell(f"{word}; the job is {answer['state']}{', and told to stop' if answer['stop'] else ''}")


def _score_of(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        message = f"--score must be a number, or nan where there is none, but got {text!r}"
        raise InputError(message) from error


def explain(
    job: Job,
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the log in --dir, without a running evalstop.")
    ] = False,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Say why a job was stopped, or would have been: the whole record of every decision."""
    record = explain_offline(folder, job) if offline else None
    if record is None:
        record = Remote(url, folder).call("GET", job_path(job, "/explain"))
    if as_json:
        sys.stdout.write(record.decode() + "\n")
        return
    decisions = json.loads(record)["decisions"]
    if not decisions:
        typer.echo(f"{job}: nothing was decided on it")
    for decision in decisions:
        typer.echo("\n  ".join(decision_words(job, decision)))


def decision_words(job: str, decision: dict[str, Any]) -> list[str]:
    """Return the record of a decision as lines for people."""
    chosen = decision["best"]
    used, saved = decision["gpu_hours_used"], decision["gpu_hours_saved"]
    lines = [
        f"{job}: {decision['kind']} by {decision['author']}, rule {decision['rule']}",
        decision["note"],
        decision["reason"],
        f"false alarms of this rule: {decision['false_alarms'] or 'unknown'}",
        f"best: {number(chosen['score'])} at step {chosen['step']}, checkpoint "
        + (chosen["checkpoint"] or "none saved"),
        f"{len(decision['series'])} evaluations count, {len(decision['left_out'])} left out",
        f"GPU-hours used {number(used)}, saved by its own estimate {number(saved)}",
    ]
    return [line for line in lines if line]


def explain_offline(folder: Path, job: str) -> bytes:
    """Fold the log in ``folder`` and return the same bytes that a server would.

    Raises:
        EvalStopError: if there is no log.
        InputError: if the job is not in it.
    """
    from evalstop.config.rules import RULES  # noqa: PLC0415 -- needed here alone
    from evalstop.core.events import OperatorCommanded  # noqa: PLC0415 -- same
    from evalstop.service.explain import encode_record  # noqa: PLC0415 -- same
    from evalstop.service.explain import explain as fold  # noqa: PLC0415 -- same
    from evalstop.store.sqlite import SqliteStore  # noqa: PLC0415 -- same

    path = folder / "evalstop.sqlite"
    if not path.exists():
        message = f"no log at {path}: name the state folder by --dir"
        raise EvalStopError(message)
    store = SqliteStore(path)
    policies = [
        (entry.sequence, entry.event.note)
        for entry in store.read()
        if isinstance(entry.event, OperatorCommanded) and entry.event.command == "configure"
    ]
    story = list(store.read_job(job))
    if not story:
        message = f"no job {job!r} was ever submitted to the log at {path}: check its id"
        raise InputError(message)
    alarms = {name: entry.false_alarms for name, entry in RULES.items()}
    return encode_record(fold(story, job, false_alarms=alarms, policies=policies))


def best(
    job: Job, *, url: Url = DEFAULT_URL, folder: Dir = DEFAULT_DIR, as_json: Json = False
) -> None:
    """Print the path or URL of a job's best checkpoint, verified now."""
    found = Remote(url, folder).get(job_path(job, "/best"))
    if as_json:
        write_json(found)
    elif found["unverified"]:
        tell(found["unverified"])
    if found["path"] is None:
        message = f"{job} has no whole checkpoint that was evaluated"
        raise EvalStopError(message)
    if as_json:
        return
    if not found["backed"]:
        tell(
            f"the best score, {number(found['best']['score'])} at step {found['best']['step']}, "
            "was never saved; this is the best that was"
        )
    typer.echo(found["path"])
