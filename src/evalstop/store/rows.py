"""Log entries as rows: what SQLite and PostgreSQL have in common."""

from __future__ import annotations

from importlib import resources

import msgspec

from evalstop.core.actions import Action, WakeAt
from evalstop.core.codec import Unknown, decode_action, decode_event, encode
from evalstop.core.errors import SchemaError
from evalstop.core.events import CapacityChanged, JobSubmitted, TimerFired
from evalstop.ports import Entry

__all__ = ["entry_of", "jobs_of", "migrations", "newer_schema", "row_of"]

_NONE = b"[]"
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


def row_of(entry: Entry) -> tuple[int, float, bytes, bytes]:
    """Return (sequence, time, event, actions) as they are stored."""
    actions = b"[" + b",".join(map(encode, entry.actions)) + b"]" if entry.actions else _NONE
    return entry.sequence, entry.event.time, encode(entry.event), actions


def entry_of(sequence: int, event: bytes, actions: bytes) -> Entry:
    """Return the entry that a row holds.

    Raises:
        SchemaError: if a newer evalstop wrote a fact that this one does not know.
    """
    fact = decode_event(event)
    if isinstance(fact, Unknown):
        raise _newer(sequence, fact)
    if actions == _NONE:
        return Entry(sequence=sequence, event=fact)
    intents: list[Action] = []
    for raw in _raw_list.decode(actions):
        action = decode_action(bytes(raw))
        if isinstance(action, Unknown):
            raise _newer(sequence, action)
        intents.append(action)
    return Entry(sequence=sequence, event=fact, actions=tuple(intents))


def _newer(sequence: int, item: Unknown) -> SchemaError:
    return SchemaError(
        f"entry {sequence} of the log is a {item.type!r} of version {item.version}, which this "
        "evalstop does not know: a newer one wrote it; install that version or a later one"
    )


def newer_schema(where: str, version: int, known: int) -> SchemaError:
    """Return what to say of a store whose schema is newer than this program."""
    return SchemaError(
        f"{where} has schema version {version}, this evalstop knows up to {known}: a newer "
        "evalstop wrote it; install that version or a later one, or restore a backup from before "
        "the upgrade"
    )


def jobs_of(entry: Entry) -> frozenset[str]:
    """Return the jobs that an entry concerns: the fact's own and those of the actions."""
    event = entry.event
    jobs = {action.job for action in entry.actions if not isinstance(action, WakeAt)}
    if isinstance(event, JobSubmitted):
        jobs.add(event.job.id)
    elif not isinstance(event, (CapacityChanged, TimerFired)) and event.job:
        jobs.add(event.job)
    return frozenset(jobs)


def migrations(dialect: str) -> list[list[str]]:
    """Return what leads from an empty store to today's schema: statements, by version."""
    folder = resources.files("evalstop.store") / "migrations" / dialect
    scripts = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name
    )
    return [_statements(script.read_text(encoding="utf-8")) for script in scripts]


def _statements(script: str) -> list[str]:
    lines = (line for line in script.splitlines() if not line.startswith("--"))
    return [text for text in "\n".join(lines).split(";") if text.strip()]
