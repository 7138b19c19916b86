"""The whole cluster: savings, doctor, watch."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalstop.cli.jobs import job_row
from evalstop.cli.output import number, print_table, tell, write_json
from evalstop.cli.remote import DEFAULT_DIR, DEFAULT_URL, Dir, Json, Remote, Url
from evalstop.core.errors import EvalStopError, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["doctor", "savings", "watch"]


def savings(*, url: Url = DEFAULT_URL, folder: Dir = DEFAULT_DIR, as_json: Json = False) -> None:
    """Show what was saved, by tenant and in all."""
    found = Remote(url, folder).get("/savings")
    if as_json:
        write_json(found)
        return
    print_table(
        "Savings",
        ["tenant", "jobs", "stops", "GPU-hours used", "saved", "advised", "money"],
        [_savings_row(row) for row in (*found["tenants"], found["total"] | {"tenant": "all"})],
        right="lrrrrrr",
    )
    unknown = found["total"]["without_estimate"]
    if unknown:
        tell(f"{unknown} stopped jobs gave no estimate of their length: not counted as saved")


def _savings_row(row: dict[str, Any]) -> list[str]:
    return [
        row["tenant"] or "-",
        str(row["jobs"]),
        str(row["stops"]),
        number(row["gpu_hours_used"]),
        number(row["gpu_hours_saved"]),
        number(row["gpu_hours_advised"]),
        number(row["money_saved"]),
    ]


def doctor(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings to check; ./evalstop.toml if there.")
    ] = None,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Check everything that can be checked, and say what to fix. Exit code 1 if anything is."""
    checks = [_check("settings", lambda: _settings(config)), *_checks_of_state(folder)]
    checks += _checks_of_store(config)
    checks.append(_check("server", lambda: _server(Remote(url, folder))))
    bad = [one for one in checks if not one["ok"]]
    if as_json:
        write_json({"ok": not bad, "checks": checks})
    else:
        for one in checks:
            typer.echo(f"{'ok  ' if one['ok'] else 'FIX '} {one['name']}: {one['words']}")
    if bad:
        raise typer.Exit(1)


def _check(name: str, run: Any) -> dict[str, Any]:  # noqa: ANN401 -- a function that returns words
    try:
        return {"name": name, "ok": True, "words": run()}
    except (EvalStopError, OSError) as error:
        return {"name": name, "ok": False, "words": str(error)}


def _settings(config: Path | None) -> str:
    from evalstop.config.settings import read_settings  # noqa: PLC0415 -- needed here alone

    path = _path_of(config)
    settings = read_settings(path)
    source = "the defaults" if path is None else str(path)
    return f"{source}: {settings.policy.mode.value} mode, rule {settings.policy.rule}"


def _path_of(config: Path | None) -> Path | None:
    beside = Path("evalstop.toml")
    return config if config is not None else (beside if beside.exists() else None)


def _checks_of_store(config: Path | None) -> list[dict[str, Any]]:
    """Try the object store of checkpoints, where the settings name one."""
    from evalstop.config.object_store import probe_object_store  # noqa: PLC0415 -- as above
    from evalstop.config.settings import read_settings  # noqa: PLC0415 -- as above

    try:
        custody = read_settings(_path_of(config)).custody
    except (EvalStopError, OSError):  # told by the check of the settings
        return []
    if not custody.store:
        return []
    return [_check("checkpoints", lambda: probe_object_store(custody))]


def _checks_of_state(folder: Path) -> list[dict[str, Any]]:
    if not folder.exists():
        words = f"{folder} is not there yet: `evalstop up` makes it"
        return [{"name": "state", "ok": True, "words": words}]
    return [_check("disk", lambda: _disk(folder)), _check("log", lambda: _log(folder))]


def _disk(folder: Path) -> str:
    import shutil  # noqa: PLC0415 -- needed here alone

    usage = shutil.disk_usage(folder)
    share = usage.free / usage.total
    words = f"{usage.free / 1e9:.1f} GB free ({100 * share:.0f} %) under {folder}"
    if usage.free < 1e9:  # noqa: PLR2004 -- a gigabyte
        message = f"{words}: free some space, a full disk makes evalstop refuse reports"
        raise EvalStopError(message)
    return words


def _log(folder: Path) -> str:
    from evalstop.store.sqlite import SqliteStore  # noqa: PLC0415 -- needed here alone

    path = folder / "evalstop.sqlite"
    if not path.exists():
        return f"{path} is not there yet"
    return f"{SqliteStore(path).last_sequence()} entries in {path}"


def _server(remote: Remote) -> str:
    troubles = remote.get("/troubles")["troubles"]
    if troubles:
        raise EvalStopError("; ".join(troubles))
    gpus = remote.get("/cluster")["gpus"]
    return f"answers; {gpus['free']} of {gpus['total']} GPUs free, no troubles"


_STATE = 4
_WIDEST_BAR = 64
_NEWEST = "/jobs?limit=100&series=true"


def watch(
    *,
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, help="Seconds between looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Show the cluster in the terminal, and keep it up to date; with --json show it once."""
    from rich.live import Live  # noqa: PLC0415 -- only terminals need it

    from evalstop.cli.output import console  # noqa: PLC0415 -- same

    remote = Remote(url, folder)
    if as_json:
        write_json({"cluster": remote.get("/cluster"), "jobs": remote.get(_NEWEST)["jobs"]})
        return
    if once:
        console().print(_picture(remote))
        return
    if not sys.stdout.isatty():  # a pipe or a file: one picture below the other
        while True:
            console().print(_picture(remote))
            sys.stdout.flush()
            time.sleep(every_s)
    with Live(_picture(remote), console=console(), screen=False) as live:
        while True:
            time.sleep(every_s)
            try:
                live.update(_picture(remote))
            except InputError:
                raise  # it answers, and refuses: a token that was revoked, say
            except EvalStopError as error:  # it may be restarting
                live.update(f"{error}\nlooking again every {every_s:g} s", refresh=True)


def _picture(remote: Remote) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 -- only terminals need it

    return Group(*cluster_picture(remote.get("/cluster"), remote.get(_NEWEST)["jobs"]))


def cluster_picture(cluster: dict[str, Any], jobs: list[dict[str, Any]]) -> list[RenderableType]:
    """Return the cluster as lines and a table for a terminal."""
    from rich.table import Table  # noqa: PLC0415 -- only terminals need it
    from rich.text import Text  # noqa: PLC0415 -- same

    gpus = cluster["gpus"]
    bar = Text("GPUs ")
    scale = min(1.0, _WIDEST_BAR / max(1, gpus["total"]))
    for phase, count in gpus["held"].items():
        bar.append("█" * math.ceil(scale * count), style=_STYLES.get(phase, ""))
    bar.append("·" * int(scale * max(0, gpus["free"])))
    bar.append(f"  {gpus['free']} of {gpus['total']} free")
    if gpus["quarantined"]:
        bar.append(f", {len(gpus['quarantined'])} in quarantine", style="red")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "job",
        "tenant",
        "type",
        "gpus",
        "state",
        "evals",
        "best",
        "at",
        "verdict",
        "curve",
    ):
        table.add_column(name)
    for job in sorted(jobs, key=lambda job: (job["outcome"] is not None, job["id"])):
        cells = job_row(job)
        # Text, not str: a tenant may be called "[red]".
        shown = [Text(cell) for cell in cells]
        shown[_STATE].stylize(_STYLES.get(job["outcome"] or job["phase"], ""))
        table.add_row(*shown, sparkline([p["score"] for p in job.get("series", [])]))
    return [bar, table]


_STYLES = {
    "running": "green",
    "starting": "cyan",
    "releasing": "yellow",
    "preempting": "yellow",
    "stopped_by_policy": "magenta",
    "failed": "red",
    "completed": "blue",
    "waiting": "dim",
}

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(scores: list[float | None], width: int = 24) -> str:
    """Return the newest scores as blocks; a gap where there was no finite one."""
    shown = scores[-width:]
    finite = [score for score in shown if score is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        " " if score is None else _BLOCKS[round((score - low) * scale)] for score in shown
    )
