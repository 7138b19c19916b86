"""``evalstop token``: who may do what on a running evalstop."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from evalstop.cli.output import print_table, tell, write_json
from evalstop.cli.remote import DEFAULT_DIR, DEFAULT_URL, Dir, Json, Remote, Url

__all__ = ["app"]

app = typer.Typer()


@app.command("make")
def make(
    name: Annotated[str, typer.Argument(help="What the log calls who has it.")],
    *,
    scope: Annotated[str, typer.Option("--scope", help="tenant, operator or admin.")] = "tenant",
    tenant: Annotated[
        str, typer.Option("--tenant", help="Whose jobs, for a token of scope tenant.")
    ] = "",
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    A tenant submits, reports on and reads its own jobs; an operator gives orders and sees all; an
    admin makes tokens.
    """
    body = {"name": name, "scope": scope} | ({"tenant": tenant} if tenant else {})
    made = Remote(url, folder).post("/tokens", body)
    if as_json:
        write_json(made)
        return
    tell(f"token {made['id']} of {made['name']} ({made['scope']} {made['tenant']})".rstrip())
    typer.echo(made["token"])


@app.command("list")
def listed(*, url: Url = DEFAULT_URL, folder: Dir = DEFAULT_DIR, as_json: Json = False) -> None:
    """List whom tokens stand for. Those that jobs carry are made from the job's name."""
    found = Remote(url, folder).get("/tokens")
    if as_json:
        write_json(found)
        return
    rows = [[one["id"], one["name"], one["scope"], one["tenant"]] for one in found["tokens"]]
    print_table("Tokens", ["id", "name", "scope", "tenant"], rows)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `evalstop token list` shows it.")],
    *,
    url: Url = DEFAULT_URL,
    folder: Dir = DEFAULT_DIR,
    as_json: Json = False,
) -> None:
    """Make a token worthless."""
    done = Remote(url, folder).delete(f"/tokens/{quote(token, safe='')}")
    if as_json:
        write_json(done)
    else:
        tell(f"token {token} is worth nothing any more")
