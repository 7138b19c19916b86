"""``evalstop up``: serve a platform until interrupted."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import uvicorn

from evalstop.core.errors import EvalStopError
from evalstop.service.api import create_app
from evalstop.service.assemble import Running, start
from evalstop.service.dashboard import add_dashboard
from evalstop.service.pauses import keep_pauses_short, tcp_listener
from evalstop.service.prometheus import add_metrics
from evalstop.service.tokens import Principal, Scope, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from socket import socket

    from evalstop.config.settings import Settings

__all__ = ["serve"]

ADMIN_TOKEN_FILE = "admin-token"  # noqa: S105 -- the name of a file
STREAMS_MAY_LAST_S = 2
_BACKLOG = 2048


def admin_token_file(folder: Path, tokens: Tokens) -> Path:
    """Return the file that holds the first admin token, made on the first start."""
    path = folder / ADMIN_TOKEN_FILE
    if not path.exists() or not path.stat().st_size:
        token = tokens.make(Principal(name="admin", scope=Scope.ADMIN))
        aside = path.with_name(f".{path.name}.{os.getpid()}")  # a kill leaves no empty file behind
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    return path


def _bind(listener: socket, host: str, port: int) -> None:
    """Take an address, or say which could not be had.

    Raises:
        EvalStopError: somebody else has it, or it is none of this machine's.
    """
    try:
        listener.bind((host, port))
    except OSError as error:
        message = f"cannot listen at {host}:{port} ({error.strerror or error}): choose another "
        message += "address by --host and --port, or end who listens there"
        raise EvalStopError(message) from error


def serve(
    read: Callable[[], Settings],
    folder: Path,
    *,
    config: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
    listening: Callable[[dict[str, str]], None] = lambda _: None,
) -> None:
    """Serve until interrupted; jobs go on without us.

    Args:
        read: reads what the operator set; called again when ``config`` changes.
        folder: where state lies.
        config: the file of settings; None where there is none.
        tell: called with lines for the operator.
        listening: called once with url, mode, dir and admin_token_file when it takes reports.
    """
    settings = read()
    server = settings.server
    listener = tcp_listener()
    url = f"http://{server.host}:{server.port}"
    tell(f"evalstop is starting, state in {folder}")
    if server.port == 0:
        _bind(listener, server.host, 0)
        url = f"http://{server.host}:{listener.getsockname()[1]}"
    url = server.url or url
    running = start(settings, folder, url=url, config=config, read=read)
    try:
        if server.port:
            _bind(listener, server.host, server.port)
        listener.listen(_BACKLOG)  # whoever reads that we listen may connect at once
        token = admin_token_file(folder, running.tokens)
        app = create_app(running.platform, running.tokens)
        add_dashboard(app, running.platform, running.tokens, app.state.gate)
        add_metrics(app, running.platform)
        keep_pauses_short()
        tell(f"evalstop listens at {url} ({settings.policy.mode.value} mode)")
        tell(f"the admin token lies in {token}")
        where = {"dir": str(folder), "admin_token_file": str(token)}
        listening({"url": url, "mode": settings.policy.mode.value} | where)
        uvicorn_server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                # Streams of events never end by themselves: an open page must not keep us.
                timeout_graceful_shutdown=STREAMS_MAY_LAST_S,
            )
        )
        threading.Thread(
            target=_end_when_deposed, args=(running, uvicorn_server), daemon=True
        ).start()
        uvicorn_server.run(sockets=[listener])
    finally:
        running.close()
        listener.close()
    if running.platform.controller.failure:  # a service manager begins it anew
        raise EvalStopError(running.platform.controller.failure)


def _end_when_deposed(running: Running, server: uvicorn.Server) -> None:
    running.platform.controller.deposed.wait()
    server.should_exit = True
