"""Checkpoints that jobs name by URL: which may be touched, and which are not in custody yet.

A URL that may be touched is written down before its report is answered, and stays so until it is
in custody or gone: a store that is down, or a restart, delays a pin and loses none.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from evalstop.custody import Allowed, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from evalstop.ports import SnapshotStore
    from evalstop.service.ledger import JobRecord

__all__ = ["NamedUrls", "Wanted"]

KIND = "checkpoint-urls"
"""Kind of the documents that name the URLs of a job, one document a job."""

_REMEMBERED = 100
_LOOKS_AT_WHAT_IS_GONE = 3
_CLOCKS_MAY_DIFFER_S = 60.0

K = TypeVar("K", bound=tuple[int, int])


class Wanted(Struct, frozen=True):
    """A URL to be taken into custody: as the checkpoint of which step and attempt.

    ``reported_at`` is our own time, in seconds since 1970.
    """

    step: int
    attempt: int
    reported_at: float = 0.0

    def is_before(self, changed_at: float) -> bool:
        """Whether what lies there was written after the report, and not by a clock that differs.

        Where a later attempt has reported since, that is another checkpoint: a store that was down
        was asked too late. Else it is an upload that ended after its report.
        """
        return changed_at > self.reported_at + _CLOCKS_MAY_DIFFER_S


class NamedUrls:
    """What jobs named by URL.

    Args:
        documents: where it is written down.
        allowed: what the operator allows.
    """

    def __init__(self, documents: SnapshotStore, allowed: Allowed | None = None) -> None:
        self._documents = documents
        self._allowed = allowed or Allowed()
        self._lock = threading.Lock()
        self._wanted: dict[str, dict[str, Wanted]] = {}
        self._missed: dict[tuple[str, str], int] = {}
        self._kept: dict[str, deque[tuple[str, int]]] = {}
        for job, data in documents.documents(KIND):
            self._wanted[job] = msgspec.json.decode(data, type=dict[str, Wanted])

    def why_not(self, record: JobRecord, url: str) -> str:
        """Return why a URL may not be touched for a job, in a sentence; "" if it may."""
        return self._allowed.why_not(url, tenant=record.spec.tenant, job=record.spec.id)

    def has(self, job: str) -> bool:
        """Return whether a job ever named a URL that may be touched."""
        return job in self._wanted

    def waiting(self) -> list[str]:
        """Return the jobs of which something is not in custody yet."""
        with self._lock:
            return [job for job, wanted in self._wanted.items() if wanted]

    def wanted(self, job: str) -> dict[str, Wanted]:
        """Return what of a job is not in custody yet, by URL."""
        with self._lock:
            return dict(self._wanted.get(job, {}))

    def without_waiting(self, job: str, scored: Mapping[K, float]) -> dict[K, float]:
        """Return the scores by (attempt, step) but those whose own checkpoint is not there yet.

        They are not of the one that an earlier attempt left at their step.
        """
        waiting = {(one.attempt, one.step) for one in self.wanted(job).values()}
        now = dict(scored).items()  # the deciding thread goes on meanwhile
        return {key: score for key, score in now if key not in waiting}

    def is_kept(self, job: str, url: str, attempt: int) -> bool:
        """Return whether what an attempt wrote at a URL was taken into custody a while ago.

        Only the newest few are remembered: to take one again costs time and changes nothing.
        """
        return (url, attempt) in self._kept.get(job, ())

    def open(self, job: str) -> None:
        """Remember that a job has its checkpoints under a URL that may be touched."""
        self._change(job, lambda _: None)

    def note(self, job: str, url: str, wanted: Wanted) -> None:
        """Write down, durably, that a URL is to be taken into custody."""
        self._change(job, lambda urls: urls.__setitem__(url, wanted))

    def done(self, job: str, url: str, *, kept: bool) -> None:
        """Forget a URL: it is in custody, or there is nothing to keep."""
        wanted = self.wanted(job).get(url)
        if kept and wanted is not None:
            newest = self._kept.setdefault(job, deque(maxlen=_REMEMBERED))
            newest.append((url, wanted.attempt))
        self._change(job, lambda urls: urls.pop(url, None))

    def missed(self, job: str, url: str, *, torn: bool) -> None:
        """Hear that an ended job's checkpoint was looked for: one that stays torn is given up."""
        count = self._missed[job, url] = self._missed.get((job, url), 0) + torn
        if count >= _LOOKS_AT_WHAT_IS_GONE:
            del self._missed[job, url]
            self.done(job, url, kept=False)

    def _change(self, job: str, change: Callable[[dict[str, Wanted]], object]) -> None:
        with self._lock:
            before = self._wanted.get(job)
            after = dict(before or {})
            change(after)
            if after != before:
                self._documents.put(KIND, job, msgspec.json.encode(after))
                self._wanted[job] = after

    def doubts(self, record: JobRecord, more: Iterable[str] = ()) -> list[str]:
        """Return what of a job's URLs is not verified, and why, in sentences."""
        urls = {name for name in list(record.saved.values()) if is_url(name)} | set(more)
        best = record.best
        if best is not None and best.checkpoint is not None and is_url(best.checkpoint):
            urls.add(best.checkpoint)
        refused = [why for url in sorted(urls) if (why := self.why_not(record, url))]
        found = [f"unverified, kept as a name only: {why}" for why in refused[-1:]]
        waiting = self.wanted(record.spec.id)
        if waiting:
            found.append(f"not in custody yet: {', '.join(sorted(waiting)[:3])}")
        return found
