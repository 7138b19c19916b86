"""Tokens for tenants and operators: made, listed and revoked by an admin, each time in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from evalstop.core.errors import InputError
from evalstop.core.events import OperatorCommanded
from evalstop.service.access import Gate, Right
from evalstop.service.bodies import body_of, read_body
from evalstop.service.facts import ConflictError
from evalstop.service.tokens import Principal, Scope, Tokens

if TYPE_CHECKING:
    from evalstop.service.platform import Platform

__all__ = ["COMMAND", "TokenIn", "token_routes"]

COMMAND = "token"
"""The operator command under which what happens to tokens is logged."""

Text = Annotated[str, msgspec.Meta(max_length=200)]


class TokenIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whom a new token stands for; ``tenant`` is whose jobs, for a tenant's token alone."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    scope: Literal["tenant", "operator", "admin"]
    tenant: Text = ""

    def principal(self) -> Principal:
        """Return who that is.

        Raises:
            InputError: a tenant's token names no tenant, or another's does.
        """
        if (self.scope == Scope.TENANT.value) != bool(self.tenant):
            message = (
                "a token of scope tenant names its tenant, and no other does, but got scope "
                f"{self.scope!r} and tenant {self.tenant!r}"
            )
            raise InputError(message)
        return Principal(name=self.name, scope=Scope(self.scope), tenant=self.tenant)


def token_routes(platform: Platform, gate: Gate, tokens: Tokens) -> APIRouter:
    """Return the routes under ``/tokens``."""
    router = APIRouter(tags=["tokens"])

    async def log(actor: str, note: str) -> None:
        asked = platform.controller.ask(
            lambda situation: [
                OperatorCommanded(time=situation.now, command=COMMAND, actor=actor, note=note)
            ]
        )
        await asyncio.wrap_future(asked)

    @router.post("/tokens", status_code=201, openapi_extra=body_of(TokenIn))
    async def make(request: Request) -> Response:
        """Make a token; it is told this once, and only its hash is kept."""
        asker = gate.admit(request, Right.ADMINISTER)
        principal = (await read_body(request, TokenIn)).principal()
        token = tokens.draw()
        await log(asker.name, f"made {tokens.id_of(token)} for {_words(principal)}")
        await asyncio.to_thread(tokens.bind, token, principal)
        return _answer({"token": token} | _shown(tokens.id_of(token), principal), 201)

    @router.get("/tokens")
    async def listed(request: Request) -> Response:
        """List whom tokens stand for; the tokens themselves are not known here."""
        gate.admit(request, Right.ADMINISTER)
        found = await asyncio.to_thread(tokens.principals)
        return _answer({"tokens": [_shown(id_, principal) for id_, principal in found]})

    @router.delete("/tokens/{id_}")
    async def revoke(request: Request, id_: Annotated[str, Path(max_length=64)]) -> Response:
        """Make a token worthless."""
        asker = gate.admit(request, Right.ADMINISTER)
        known = dict(await asyncio.to_thread(tokens.principals))
        if id_ not in known:
            message = f"there is no token {id_!r}: GET /api/v1/tokens lists them"
            raise InputError(message)
        admins = [one for one, who in known.items() if who.scope is Scope.ADMIN]
        if admins == [id_]:
            message = "this is the last admin's token: make another before it is revoked"
            raise ConflictError(message)
        await asyncio.to_thread(tokens.revoke_id, id_)
        await log(asker.name, f"revoked {id_} of {_words(known[id_])}")
        return _answer({"revoked": id_})

    return router


def _shown(id_: str, principal: Principal) -> dict[str, str]:
    return {
        "id": id_,
        "name": principal.name,
        "scope": principal.scope.value,
        "tenant": principal.tenant,
    }


def _words(principal: Principal) -> str:
    whose = f" {principal.tenant}" if principal.tenant else ""
    return f"{principal.name} ({principal.scope.value}{whose})"


def _answer(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
