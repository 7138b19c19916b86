"""Whose a Slurm job is: its account's, or what the configuration lets its owner say.

A comment is written by the job's owner, so what it says of a tenant is a claim. It holds if the
settings allow it to the job's account or user:

    [cluster.tenants]
    nlp = ["nlp", "nlp-evaluation"]     # a Slurm account, and the tenants its jobs may be of
    "user:ann" = ["speech"]             # a user, whatever the account

The first one named is the job's tenant where the comment says none. Without an entry a job is of
its account, or of its user where the site has no accounts, and can claim no other. Jobs of the
user that evalstop runs as were handed in through evalstop, which knew by token whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from evalstop.backends.slurm.records import JobRecord

__all__ = ["Tenants"]

_USER = "user:"


class Tenants(Struct, frozen=True, kw_only=True):
    """Which tenants the jobs of an account or user may be of.

    Attributes:
        allowed: tenants by Slurm account, or by ``user:NAME``.
        own_user: the user that evalstop itself hands jobs in as.
    """

    allowed: Mapping[str, tuple[str, ...]] = {}
    own_user: str = ""

    def of(self, job: JobRecord, claimed: str) -> tuple[str, str]:
        """Return the job's tenant, and why the claimed one is not it; "" where it is."""
        by_user = self.allowed.get(f"{_USER}{job.user}", ())
        has_entry = job.account and not job.account.startswith(_USER)
        by_account = self.allowed.get(job.account, ()) if has_entry else ()
        may = (*by_user, *by_account) or tuple(filter(None, (job.account or job.user,)))
        own = may[0] if may else ""
        if not claimed or claimed in may:
            return claimed or own, ""
        if self.own_user and job.user == self.own_user:
            return claimed, ""
        who = f"user {job.user!r}" + (f" of account {job.account!r}" if job.account else "")
        known = ", ".join(may) or "none"
        return own, (
            f"tenant={claimed} is not allowed to {who} (allowed: {known}); see cluster.tenants"
        )
