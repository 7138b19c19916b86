"""Who is asking: bearer tokens, hashed at rest, and tokens that a job carries by itself.

A job's token is computed, not stored: an HMAC over its name under this installation's secret. It
may report on that job and read it, nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from evalstop.ports import SnapshotStore

__all__ = ["Principal", "Scope", "Tokens"]

_TOKEN = "token"  # noqa: S105 -- a kind of document
_SECRET = "secret"  # noqa: S105 -- a kind of document
_BYTES = 32
_ID_DIGITS = 12


class Scope(StrEnum):
    """What a token may do: each may do what those before it may, within its tenant or job."""

    JOB = "job"
    TENANT = "tenant"
    OPERATOR = "operator"
    ADMIN = "admin"


class Principal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a token stands for.

    Attributes:
        name: what the log calls them.
        scope: what they may do.
        tenant: whose jobs, for a tenant's token.
        job: which job, for a job's own token.
    """

    name: str
    scope: Scope
    tenant: str = ""
    job: str = ""


class Tokens:
    """Makes tokens and finds out whom they stand for."""

    def __init__(self, documents: SnapshotStore) -> None:
        self._documents = documents
        secret = documents.get(_SECRET, "job-tokens")
        if secret is None:
            secret = secrets.token_bytes(_BYTES)
            documents.put(_SECRET, "job-tokens", secret)
        self._secret = secret

    def make(self, principal: Principal) -> str:
        """Return a new token; only its hash is kept."""
        token = self.draw()
        self.bind(token, principal)
        return token

    def draw(self) -> str:
        """Return a token that stands for nobody yet."""
        return f"es_{secrets.token_urlsafe(_BYTES)}"

    def bind(self, token: str, principal: Principal) -> None:
        """Say whom a token stands for from now on; only its hash is kept."""
        self._documents.put(_TOKEN, _hash(token), msgspec.json.encode(principal))

    def revoke(self, token: str) -> None:
        """Make a token worthless."""
        self._documents.delete(_TOKEN, _hash(token))

    def holds(self, digest: str) -> bool:
        """Return whether the token of this whole hash is still worth something."""
        return self._documents.get(_TOKEN, digest) is not None

    @staticmethod
    def digest(token: str) -> str:
        """Return a token's whole hash, by which it is kept."""
        return _hash(token)

    @staticmethod
    def id_of(token: str) -> str:
        """Return the first digits of a token's hash, by which people tell tokens apart."""
        return _hash(token)[:_ID_DIGITS]

    def revoke_id(self, id_: str) -> None:
        """Make the token of this id worthless, if there is one."""
        for key, _ in list(self._documents.documents(_TOKEN)):
            if key[:_ID_DIGITS] == id_:
                self._documents.delete(_TOKEN, key)

    def principals(self) -> list[tuple[str, Principal]]:
        """Return (id, principal) of every stored token."""
        return [
            (key[:_ID_DIGITS], msgspec.json.decode(data, type=Principal))
            for key, data in self._documents.documents(_TOKEN)
        ]

    def of_job(self, job: str) -> str:
        """Return the token that a job's run carries."""
        digest = hmac.new(self._secret, job.encode(), hashlib.sha256).hexdigest()
        return f"esj_{job.encode().hex()}_{digest}"

    def find(self, token: str) -> Principal | None:
        """Return whom a token stands for, None for nobody."""
        if token.startswith("esj_"):
            return self._find_job(token)
        data = self._documents.get(_TOKEN, _hash(token))
        return None if data is None else msgspec.json.decode(data, type=Principal)

    def _find_job(self, token: str) -> Principal | None:
        try:
            job = bytes.fromhex(token.split("_")[1]).decode()
        except (ValueError, UnicodeDecodeError):
            return None
        if not hmac.compare_digest(self.of_job(job).encode(), token.encode()):
            return None
        return Principal(name=f"job {job}", scope=Scope.JOB, job=job)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
