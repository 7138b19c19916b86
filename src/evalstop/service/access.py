"""Who may do what: one table, asked by every route."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from evalstop.core.errors import InputError
from evalstop.service.platform import UnknownJobError
from evalstop.service.tokens import Principal, Scope, Tokens

if TYPE_CHECKING:
    from fastapi import Request

    from evalstop.service.platform import Platform

__all__ = ["AccessError", "Gate", "Right"]


class Right(StrEnum):
    """What can be asked for."""

    REPORT = "report"
    READ = "read"
    SUBMIT = "submit"
    ORDER = "order"
    OVERSEE = "oversee"
    ADMINISTER = "administer"


RIGHTS = {
    Scope.JOB: {Right.REPORT, Right.READ},
    Scope.TENANT: {Right.REPORT, Right.READ, Right.SUBMIT},
    Scope.OPERATOR: {Right.REPORT, Right.READ, Right.SUBMIT, Right.ORDER, Right.OVERSEE},
    Scope.ADMIN: set(Right),
}


class AccessError(InputError):
    """The asker is unknown (401) or may not do this (403)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"WWW-Authenticate": "Bearer"} if status == _UNKNOWN else {}


_UNKNOWN = 401
_FORBIDDEN = 403


class Gate:
    """Admits requests by their bearer token."""

    def __init__(self, tokens: Tokens, platform: Platform) -> None:
        self._tokens = tokens
        self._platform = platform

    def principal(self, request: Request) -> Principal:
        """Return who is asking.

        Raises:
            AccessError: nobody we know.
        """
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        found = self._tokens.find(token.strip()) if kind.lower() == "bearer" else None
        if found is None:
            message = "send a token we know: Authorization: Bearer TOKEN (see `evalstop up`)"
            raise AccessError(message, _UNKNOWN)
        return found

    def admit(self, request: Request, right: Right, job: str = "") -> Principal:
        """Return who is asking if they may.

        Raises:
            AccessError: they may not.
            UnknownJobError: the job is none of theirs: told as if it did not exist.
        """
        principal = self.principal(request)
        self.permit(principal, right, job)
        return principal

    def permit(self, principal: Principal, right: Right, job: str = "") -> None:
        """Check that somebody may do something.

        Raises:
            AccessError: they may not.
            UnknownJobError: the job is none of theirs: told as if it did not exist.
        """
        if right not in RIGHTS[principal.scope]:
            message = f"a {principal.scope.value}'s token may not {right.value}"
            raise AccessError(message, _FORBIDDEN)
        if job:
            self._check_job(principal, job)

    def _check_job(self, principal: Principal, job: str) -> None:
        other_job = principal.job and principal.job != job
        record = self._platform.controller.ledger.jobs.get(job)
        other_tenant = principal.tenant and (
            record is None or record.spec.tenant != principal.tenant
        )
        if other_job or other_tenant:
            message = f"no job {job!r} was ever submitted here: submit it first, or check its id"
            raise UnknownJobError(message)
