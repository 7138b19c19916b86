"""The routes of the console: log in, look, order."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalstop.core.errors import EvalStopError
from evalstop.service.access import AccessError, Right
from evalstop.service.dashboard import views
from evalstop.service.dashboard.sessions import COOKIE, LASTS_S, Session, Sessions, check_form
from evalstop.service.platform import UnknownJobError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from evalstop.ports import Entry
    from evalstop.service.access import Gate
    from evalstop.service.platform import Platform
    from evalstop.service.tokens import Tokens

__all__ = ["add_dashboard"]

_HERE = Path(__file__).parent
_MOST_FORM_BYTES = 64 * 1024
_TELL_EVERY_S = 0.5
_KEEP_ALIVE_S = 15.0
_MESSAGE_CHARS = 300

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def add_dashboard(app: FastAPI, platform: Platform, tokens: Tokens, gate: Gate) -> None:
    """Add the console under ``/ui``; ``/`` leads there."""
    sessions = Sessions(tokens, time.monotonic)
    console = _Console(platform, sessions, gate)
    app.mount("/ui/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(_doors(console), include_in_schema=False)
    app.include_router(_pages(console), include_in_schema=False)
    app.include_router(_orders(console), include_in_schema=False)


class _Console:
    """What all routes share."""

    def __init__(self, platform: Platform, sessions: Sessions, gate: Gate) -> None:
        self.platform = platform
        self.sessions = sessions
        self.gate = gate
        self._templates = Environment(
            loader=PackageLoader("evalstop.service.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"hours": _hours, "number": _number, "when": _when}
        self._templates.filters["safe_svg"] = Markup

    def page(self, request: Request, name: str, **data: Any) -> Response:  # noqa: ANN401 -- for a template
        """Render a page, or its live part alone for the script that refreshes it."""
        template = self._templates.get_template(f"{name}.html")
        data |= {"path": request.url.path, "message": request.query_params.get("message", "")}
        data["message"] = data["message"][:_MESSAGE_CHARS]
        if request.headers.get("x-fragment") == "live":
            html = "".join(template.blocks["live"](template.new_context(data)))
        else:
            html = template.render(data)
        return HTMLResponse(html, headers=_HEADERS)

    def show(
        self, request: Request, name: str, build: Callable[[Session], dict[str, Any]], right: Right
    ) -> Response:
        """Render a page for who may see it; send others to the door."""
        try:
            session = self.sessions.of(request)
        except AccessError:
            return RedirectResponse(f"/ui/login?next={quote(request.url.path)}", 303)
        try:
            self.gate.permit(session.principal, right)
            data = build(session)
        except (AccessError, UnknownJobError) as error:
            status = error.status if isinstance(error, AccessError) else 404
            response = self.page(request, "refused", session=session, why=str(error))
            response.status_code = status
            return response
        return self.page(request, name, session=session, now=self.platform.controller.now(), **data)


def _doors(console: _Console) -> APIRouter:
    router = APIRouter()

    @router.get("/")
    def root() -> Response:
        return RedirectResponse("/ui/", 303)

    @router.get("/ui/login")
    def door(request: Request) -> Response:
        return console.page(request, "login", session=None, wrong=False)

    @router.post("/ui/login")
    async def log_in(request: Request) -> Response:
        form = await _form(request)
        key = console.sessions.begin(form.get("token", ""))
        if key is None:
            response = console.page(request, "login", session=None, wrong=True)
            response.status_code = 401
            return response
        wanted = request.query_params.get("next", "/ui/")
        # Only a path of ours: "//elsewhere" would leave the site.
        path = wanted if wanted.startswith("/ui/") else "/ui/"
        response = RedirectResponse(path, 303)
        response.set_cookie(
            COOKIE,
            key,
            max_age=int(LASTS_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    @router.post("/ui/logout")
    async def log_out(request: Request) -> Response:
        check_form(console.sessions.of(request), (await _form(request)).get("form_key", ""))
        console.sessions.end(request)
        response = RedirectResponse("/ui/login", 303)
        response.delete_cookie(COOKIE)
        return response

    return router


def _pages(console: _Console) -> APIRouter:
    router = APIRouter()
    platform = console.platform

    @router.get("/ui/")
    def cluster(request: Request) -> Response:
        return console.show(
            request,
            "cluster",
            lambda session: views.cluster_page(platform, session.principal.tenant or None),
            Right.READ,
        )

    @router.get("/ui/jobs")
    def jobs(request: Request) -> Response:
        return console.show(
            request,
            "jobs",
            lambda session: views.jobs_page(
                platform, session.principal.tenant or None, request.query_params
            ),
            Right.READ,
        )

    @router.get("/ui/jobs/{job}")
    def job(request: Request, job: str) -> Response:
        def build(session: Session) -> dict[str, Any]:
            console.gate.permit(session.principal, Right.READ, job)
            return views.job_page(platform, job)

        return console.show(request, "job", build, Right.READ)

    @router.get("/ui/jobs/{job}/record")
    def record(request: Request, job: str) -> Response:
        console.gate.permit(console.sessions.of(request).principal, Right.READ, job)
        return Response(platform.explain(job), media_type="application/json", headers=_HEADERS)

    @router.get("/ui/savings")
    def savings(request: Request) -> Response:
        return console.show(
            request, "savings", lambda _: views.savings_page(platform), Right.OVERSEE
        )

    @router.get("/ui/policies")
    def policies(request: Request) -> Response:
        return console.show(
            request, "policies", lambda _: views.policies_page(platform), Right.OVERSEE
        )

    @router.get("/ui/audit")
    def audit(request: Request) -> Response:
        return console.show(request, "audit", lambda _: views.audit_page(platform), Right.OVERSEE)

    @router.get("/ui/stream")
    async def stream(request: Request) -> Response:
        console.gate.permit(console.sessions.of(request).principal, Right.READ)
        return StreamingResponse(_changes(platform), media_type="text/event-stream")

    return router


def _orders(console: _Console) -> APIRouter:
    router = APIRouter()
    platform = console.platform

    async def order(request: Request, command: str, job: str) -> Response:
        session = console.sessions.of(request)
        form = await _form(request)
        check_form(session, form.get("form_key", ""))
        console.gate.permit(session.principal, Right.ORDER, job)
        back = f"/ui/jobs/{quote(job)}" if job else "/ui/"
        try:
            await asyncio.to_thread(_carry_out, platform, command, job, session, form)
            message = f"{command}: done"
        except EvalStopError as error:
            message = str(error)
        return RedirectResponse(f"{back}?message={quote(message)}", 303)

    @router.post("/ui/jobs/{job}/{command}")
    async def of_job(request: Request, job: str, command: str) -> Response:
        if command not in {"snooze", "approve", "stop", "undo"}:
            return Response(status_code=404)
        return await order(request, command, job)

    @router.post("/ui/{command}")
    async def of_all(request: Request, command: str) -> Response:
        if command not in {"freeze", "unfreeze"}:
            return Response(status_code=404)
        return await order(request, command, "")

    return router


def _carry_out(
    platform: Platform, command: str, job: str, session: Session, form: dict[str, str]
) -> None:
    actor, note = session.principal.name, form.get("note", "")[:1000]
    if command == "undo":
        platform.undo(job, actor=actor, note=note)
        return
    hours = form.get("hours", "")
    for_s = float(hours) * 3600.0 if command == "snooze" and hours.isdigit() else None
    platform.command(command, actor=actor, job=job, for_s=for_s, note=note)


async def _form(request: Request) -> dict[str, str]:
    """Return the first value of each field of a form, within bounds."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_FORM_BYTES:
            return {}
    try:
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=50)
    except ValueError:  # too many fields
        return {}
    return {name: values[0] for name, values in fields.items()}


async def _changes(platform: Platform) -> AsyncIterator[bytes]:
    """Say that something has changed, at most twice a second; what, the page asks for itself.

    Nothing of the log is in it, so that it tells a tenant nothing of others' jobs.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def heard(_: Entry) -> None:
        loop.call_soon_threadsafe(changed.set)

    end = platform.controller.listen(heard)
    try:
        yield b"retry: 2000\n\n"
        while True:
            try:
                await asyncio.wait_for(changed.wait(), _KEEP_ALIVE_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            changed.clear()
            yield b"event: changed\ndata: 1\n\n"
            await asyncio.sleep(_TELL_EVERY_S)
    finally:
        end()


def _hours(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _when(value: float | None) -> str:
    """Return a log time in the server's zone; the log's clock counts seconds since 1970."""
    if value is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
