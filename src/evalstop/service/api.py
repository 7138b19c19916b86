"""HTTP under ``/api/v1``: parse, ask the platform, answer.

Bodies are read with a limit and decoded by the same structs that describe them in OpenAPI. Who
may do what is one table, `evalstop.service.access`. Errors are ``{"error": sentence}``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from evalstop.core.errors import EvalStopError, InputError, StoreError
from evalstop.service.access import AccessError, Gate, Right
from evalstop.service.bodies import (
    CheckpointIn,
    EndIn,
    EvalBatch,
    LossBatch,
    OrderIn,
    TooLargeError,
    body_of,
    read_body,
)
from evalstop.service.controller import BusyError
from evalstop.service.event_stream import event_stream
from evalstop.service.platform import ConflictError, Platform, UnknownJobError
from evalstop.service.requests import Submission
from evalstop.service.token_routes import token_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from evalstop.service.requests import EvalIn
    from evalstop.service.tokens import Tokens

__all__ = ["create_app"]

_REMEMBERED_KEYS = 10_000
_UNFIT = 422

Job = Annotated[str, Path(max_length=128)]


def create_app(platform: Platform, tokens: Tokens) -> FastAPI:
    """Return the application; routes of others (dashboard, metrics) may be added to it."""
    app = FastAPI(title="evalstop", version="1", docs_url=None, redoc_url=None)
    app.state.platform = platform
    app.state.tokens = tokens
    gate = Gate(tokens, platform)
    app.state.gate = gate
    app.include_router(_health(platform))
    app.include_router(_jobs(platform, gate), prefix="/api/v1")
    app.include_router(_reports(platform, gate), prefix="/api/v1")
    app.include_router(_orders(platform, gate), prefix="/api/v1")
    app.include_router(_cluster(platform, gate), prefix="/api/v1")
    app.include_router(token_routes(platform, gate, tokens), prefix="/api/v1")
    for error, status in _STATUS.items():
        app.add_exception_handler(error, _answer_with(status))
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(HTTPException, _refused)
    return app


_STATUS: dict[type[Exception], int] = {
    UnknownJobError: 404,
    ConflictError: 409,
    TooLargeError: 413,
    InputError: 422,
    BusyError: 503,
    StoreError: 503,
    EvalStopError: 500,
}


def _answer_with(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_request: Request, error: Exception) -> Response:
        headers = {}
        if isinstance(error, AccessError):
            return JSONResponse({"error": str(error)}, error.status, error.headers)
        if isinstance(error, BusyError | StoreError):
            headers["Retry-After"] = "1"
        return JSONResponse({"error": str(error)}, status, headers)

    return answer


async def _unfit(_request: Request, error: Exception) -> Response:
    """Say of a path or query, as of a body, what does not fit."""
    assert isinstance(error, RequestValidationError)
    words = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return JSONResponse({"error": f"the request does not fit: {words}"}, _UNFIT)


async def _refused(request: Request, error: Exception) -> Response:
    """Say that there is no such page, or that it is not asked in this way."""
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": words}, error.status_code, error.headers)


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _health(platform: Platform) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process lives."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> Response:
        """Say whether reports are taken in."""
        ready = platform.ready()
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    return router


def _jobs(platform: Platform, gate: Gate) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post("/jobs", status_code=201, openapi_extra=body_of(Submission))
    async def submit(request: Request) -> Response:
        """Hand in a job."""
        principal = gate.admit(request, Right.SUBMIT)
        submission = await read_body(request, Submission)
        if principal.tenant:
            submission = msgspec.structs.replace(submission, tenant=principal.tenant)
        job = await asyncio.to_thread(platform.submit, submission)
        warnings = await asyncio.to_thread(platform.warnings, job)
        answer = {"id": job, "token": platform.job_token(job), "warnings": warnings}
        return _json(answer, 201)

    @router.get("/jobs")
    async def jobs(
        request: Request,
        *,
        phase: Annotated[str | None, Query(max_length=50)] = None,
        tenant: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        series: Annotated[bool, Query()] = False,
    ) -> Response:
        """List jobs, newest first; ``phase`` also takes an outcome."""
        principal = gate.admit(request, Right.READ)
        own = principal.tenant or tenant
        found = await asyncio.to_thread(
            platform.jobs,
            tenant=own,
            job=principal.job or None,
            phase=phase,
            limit=limit,
            series=series,
        )
        return _json({"jobs": found})

    @router.get("/jobs/{job}")
    async def job_(request: Request, job: Job) -> Response:
        """Return one job with its curve."""
        gate.admit(request, Right.READ, job)
        return _json(await asyncio.to_thread(platform.job, job))

    @router.get("/jobs/{job}/explain")
    async def explain(request: Request, job: Job) -> Response:
        """Return the record of every decision on a job."""
        gate.admit(request, Right.READ, job)
        record = await asyncio.to_thread(platform.explain, job)
        return Response(record, media_type="application/json")

    @router.get("/jobs/{job}/best")
    async def best(request: Request, job: Job) -> Response:
        """Return the best checkpoint, verified now."""
        gate.admit(request, Right.READ, job)
        return _json(await asyncio.to_thread(platform.best, job))

    @router.get("/jobs/{job}/output")
    async def output(request: Request, job: Job) -> Response:
        """Return the end of what a job printed."""
        gate.admit(request, Right.READ, job)
        text = await asyncio.to_thread(platform.log_tail, job)
        return Response(text, media_type="text/plain; charset=utf-8")

    return router


class _Answers:
    """Answers by idempotency key, the newest few thousand: a batch sent again is answered alike.

    After a restart the reports themselves are known again, so that a repeat still has no effect.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Response] = OrderedDict()

    def get(self, job: str, key: str) -> Response | None:
        return self._kept.get((job, key)) if key else None

    def put(self, job: str, key: str, response: Response) -> None:
        if key:
            self._kept[job, key] = response
            while len(self._kept) > _REMEMBERED_KEYS:
                self._kept.popitem(last=False)


def _reports(platform: Platform, gate: Gate) -> APIRouter:
    router = APIRouter(tags=["reports"])
    answers = _Answers()

    @router.post("/jobs/{job}/evals", openapi_extra=body_of(EvalBatch))
    async def evals(request: Request, job: Job) -> Response:
        """Report evaluations; answered when they are durable."""
        gate.admit(request, Right.REPORT, job)
        key = request.headers.get("idempotency-key", "")[:200]
        known = answers.get(job, key)
        if known is not None:
            return known
        batch = await read_body(request, EvalBatch)
        reports: Sequence[EvalIn] = batch.evals
        if platform.needs_securing(job, reports):
            reports = await asyncio.to_thread(platform.secure, job, reports)
        entries = await asyncio.wrap_future(platform.report(job, reports))
        response = _json(platform.answer(job, len(batch.evals), entries))
        answers.put(job, key, response)
        return response

    @router.post("/jobs/{job}/losses", openapi_extra=body_of(LossBatch))
    async def losses(request: Request, job: Job) -> Response:
        """Report training losses."""
        gate.admit(request, Right.REPORT, job)
        batch = await read_body(request, LossBatch)
        entries = await asyncio.wrap_future(platform.report_losses(job, batch.losses))
        return _json({"accepted": len(entries)})

    @router.post("/jobs/{job}/checkpoints", openapi_extra=body_of(CheckpointIn))
    async def checkpoints(request: Request, job: Job) -> Response:
        """Report that a complete checkpoint exists."""
        gate.admit(request, Right.REPORT, job)
        one = await read_body(request, CheckpointIn)
        await asyncio.to_thread(platform.report_checkpoint, job, one.step, one.checkpoint)
        return _json({"accepted": 1})

    @router.post("/jobs/{job}/ended", openapi_extra=body_of(EndIn))
    async def ended(request: Request, job: Job) -> Response:
        """Report that a job is over which another scheduler runs (the command backend)."""
        gate.admit(request, Right.REPORT, job)
        one = await read_body(request, EndIn)
        await asyncio.to_thread(platform.ended, job, one.exit_code)
        return _json({"accepted": 1})

    return router


def _orders(platform: Platform, gate: Gate) -> APIRouter:
    router = APIRouter(tags=["orders"])

    def route(command: str, *, of_job: bool) -> None:
        async def order(request: Request, job: str = "") -> Response:
            principal = gate.admit(request, Right.ORDER, job)
            one = await read_body(request, OrderIn)
            if command == "undo":
                done = await asyncio.to_thread(
                    platform.undo, job, actor=principal.name, note=one.note, start=one.start
                )
            else:
                done = await asyncio.to_thread(
                    platform.command,
                    command,
                    actor=principal.name,
                    job=job,
                    for_s=one.for_s,
                    note=one.note,
                )
            return _json(done)

        async def of_one(request: Request, job: Job) -> Response:
            return await order(request, job)

        async def of_all(request: Request) -> Response:
            return await order(request)

        path = f"/jobs/{{job}}/{command}" if of_job else f"/{command}"
        router.add_api_route(
            path,
            of_one if of_job else of_all,
            methods=["POST"],
            name=command,
            description=_ORDERS[command],
            openapi_extra=body_of(OrderIn),
        )

    for command in _ORDERS:
        route(command, of_job=command not in {"freeze", "unfreeze"})
    return router


_ORDERS = {
    "stop": "Stop a job now; its best checkpoint is kept.",
    "approve": "Let an advised or announced stop happen now.",
    "snooze": "Hold a job's stops for a while (for_s), or until it ends.",
    "undo": "Reopen a stopped job from its best checkpoint, or its last.",
    "freeze": "Let no policy stop anything until unfrozen.",
    "unfreeze": "End a freeze.",
}


def _cluster(platform: Platform, gate: Gate) -> APIRouter:
    router = APIRouter(tags=["cluster"])

    @router.get("/cluster")
    async def cluster(request: Request) -> Response:
        """Return GPUs by state and jobs by phase."""
        gate.admit(request, Right.OVERSEE)
        return _json(await asyncio.to_thread(platform.cluster))

    @router.get("/savings")
    async def savings(request: Request) -> Response:
        """Return what was saved, by tenant and in all."""
        gate.admit(request, Right.OVERSEE)
        return _json(await asyncio.to_thread(platform.savings))

    @router.get("/troubles")
    async def troubles(request: Request) -> Response:
        """Return what is wrong now, in sentences."""
        gate.admit(request, Right.OVERSEE)
        return _json({"troubles": await asyncio.to_thread(platform.troubles)})

    @router.get("/events")
    async def events(request: Request) -> StreamingResponse:
        """Stream the log as server-sent events, from now on."""
        gate.admit(request, Right.OVERSEE)
        return StreamingResponse(event_stream(platform), media_type="text/event-stream")

    return router
