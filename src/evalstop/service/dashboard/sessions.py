"""Who looks at a page: a cookie that stands for a token, for a while."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.service.access import AccessError
from evalstop.service.tokens import Principal, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import Request

    from evalstop.service.tokens import Tokens

__all__ = ["COOKIE", "LASTS_S", "Session", "Sessions"]

COOKIE = "evalstop_session"
LASTS_S = 12 * 3600.0
_MOST = 10_000
_UNKNOWN = 401
_FORBIDDEN = 403


class Session(Struct, frozen=True, kw_only=True):
    """One person's browser; ``form_key`` proves that a form came from our page.

    Whose token is revoked is logged out: ``token_digest`` tells which it was.
    """

    principal: Principal
    token_digest: str
    form_key: str
    ends_at: float


class Sessions:
    """Sessions in memory: a restart asks people for their token again.

    Args:
        tokens: whom a token stands for.
        now: seconds on any clock that only goes forward.
    """

    def __init__(self, tokens: Tokens, now: Callable[[], float]) -> None:
        self._tokens = tokens
        self._now = now
        self._open: dict[str, Session] = {}

    def begin(self, token: str) -> str | None:
        """Return the cookie of a new session; None for a token we do not know, or a job's own."""
        principal = self._tokens.find(token.strip())
        if principal is None or principal.scope is Scope.JOB:
            return None
        now = self._now()
        self._open = {key: one for key, one in self._open.items() if one.ends_at > now}
        while len(self._open) >= _MOST:
            self._open.pop(next(iter(self._open)))
        key = secrets.token_urlsafe(32)
        self._open[key] = Session(
            principal=principal,
            token_digest=self._tokens.digest(token.strip()),
            form_key=secrets.token_urlsafe(24),
            ends_at=now + LASTS_S,
        )
        return key

    def of(self, request: Request) -> Session:
        """Return whose page this is.

        Raises:
            AccessError: nobody is logged in.
        """
        session = self._open.get(request.cookies.get(COOKIE, ""))
        if (
            session is None
            or session.ends_at <= self._now()
            or not self._tokens.holds(session.token_digest)  # revoked meanwhile
        ):
            message = "log in first"
            raise AccessError(message, _UNKNOWN)
        return session

    def end(self, request: Request) -> None:
        """Log out."""
        self._open.pop(request.cookies.get(COOKIE, ""), None)


def check_form(session: Session, key: str) -> None:
    """Refuse a form that did not come from one of our pages.

    Raises:
        AccessError: it did not.
    """
    if not hmac.compare_digest(session.form_key.encode(), key.encode()):
        message = "this form is from an older page: load the page again"
        raise AccessError(message, _FORBIDDEN)
