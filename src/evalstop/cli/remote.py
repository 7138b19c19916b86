"""How commands reach a running evalstop: its address, a token, and its answers."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

import typer

from evalstop.core.errors import EvalStopError, InputError

__all__ = ["DEFAULT_DIR", "Dir", "Json", "Remote", "Url"]

DEFAULT_URL = "http://127.0.0.1:8787"
DEFAULT_DIR = Path("evalstop-state")
TIMEOUT_S = 60.0
_CLIENT_ERROR = range(400, 500)

Url: TypeAlias = Annotated[
    str, typer.Option("--url", envvar="EVALSTOP_URL", help="Address of the running evalstop.")
]
Dir: TypeAlias = Annotated[
    Path,
    typer.Option("--dir", envvar="EVALSTOP_DIR", help="Its state: the admin token lies there."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Machine output on stdout.")]


class Remote:
    """A running evalstop, over HTTP.

    Args:
        url: its address.
        folder: where its admin token lies, used where EVALSTOP_TOKEN is not set.
    """

    def __init__(self, url: str, folder: Path) -> None:
        if not url.startswith(("http://", "https://")):
            message = f"expected an address like {DEFAULT_URL}, but got {url!r}"
            raise InputError(message)
        self._url = url.rstrip("/")
        self._folder = folder

    def _token(self) -> str:
        token = os.environ.get("EVALSTOP_TOKEN", "")
        if token:
            return token
        path = self._folder / "admin-token"
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError as error:
            message = (
                f"no token: set EVALSTOP_TOKEN, or name the state folder of `evalstop up` by --dir "
                f"({path}: {error.strerror})"
            )
            raise InputError(message) from error

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """Send one request and return the answer's body.

        Raises:
            InputError: if the request was refused: what is told is what to do.
            EvalStopError: if nobody answers, or the server failed.
        """
        request = urllib.request.Request(  # noqa: S310 -- the scheme is checked above
            f"{self._url}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body, allow_nan=False).encode(),
            headers={
                "Authorization": f"Bearer {self._token()}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 -- as above
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, http.client.HTTPException) as error:  # the latter where it broke off
            message = f"nobody answers at {self._url} ({error}): is `evalstop up` running there?"
            raise EvalStopError(message) from error

    def get(self, path: str) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON found at ``path``."""
        return json.loads(self.call("GET", path))

    def post(self, path: str, body: object) -> Any:  # noqa: ANN401 -- JSON
        """Send JSON to ``path`` and return the JSON that comes back."""
        return json.loads(self.call("POST", path, body))

    def delete(self, path: str) -> Any:  # noqa: ANN401 -- JSON
        """Have what is at ``path`` deleted and return the JSON that comes back."""
        return json.loads(self.call("DELETE", path))


def job_path(job: str, rest: str = "") -> str:
    """Return the path of a job, or of what is below it."""
    return f"/jobs/{quote(job, safe='')}{rest}"


def _refusal(error: urllib.error.HTTPError) -> EvalStopError:
    try:
        words = json.loads(error.read())["error"]
    except (ValueError, KeyError, TypeError):
        words = f"{error.code} {error.reason}"
    return InputError(words) if error.code in _CLIENT_ERROR else EvalStopError(words)
