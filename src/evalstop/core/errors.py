"""Every error evalstop raises on purpose.

    EvalStopError
    ├── InputError          what a person or a file gave us cannot be used (exit code 2)
    │   ├── SpecError       a rule, scheduler or scenario is not written as it should be
    │   └── ReadError       a file or a tracker cannot be read
    ├── MissingExtraError   a command needs an optional dependency (exit code 2)
    ├── StoreError          the log cannot be written or read now (disk full, database gone)
    │   ├── StoreConflictError  another controller writes this log
    │   └── SchemaError     the store was written by a newer or unknown evalstop
    ├── BackendError        a backend refused a command or did not answer
    ├── TornCheckpointError a folder is not a complete checkpoint
    ├── CustodyError        the store of checkpoints refused or did not answer
    ├── IllegalEventError   a driver sent a fact that cannot follow the ones before: a bug, loudly
    └── IllegalActionError  a policy answered with something impossible: a bug, loudly

A message says what was expected, what came, and what to do. Callers that act alike get one class.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "CustodyError",
    "EvalStopError",
    "IllegalActionError",
    "IllegalEventError",
    "InputError",
    "MissingExtraError",
    "ReadError",
    "SchemaError",
    "SpecError",
    "StoreConflictError",
    "StoreError",
    "TornCheckpointError",
]


class EvalStopError(Exception):
    """Root of all errors that evalstop raises on purpose."""


class InputError(EvalStopError, ValueError):
    """What a person or a file gave us cannot be used."""


class SpecError(InputError):
    """A rule, scheduler or scenario is not written as it should be."""


class ReadError(InputError):
    """A file or a tracker cannot be read; carries the source it was about."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source
        self.message = message


class MissingExtraError(EvalStopError, ImportError):
    """A command needs an optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed: "
            f"run `pip install 'evalstop[{extra}]'`"
        )
        self.extra = extra


class StoreError(EvalStopError):
    """The log cannot be written or read now; nothing was written."""


class StoreConflictError(StoreError):
    """A sequence is taken already: another controller writes this log."""


class SchemaError(StoreError):
    """The store was written by a newer evalstop, or is none of ours."""


class BackendError(EvalStopError):
    """A backend refused a command or did not answer in time; it may be tried again."""


class TornCheckpointError(EvalStopError):
    """A folder is not a complete checkpoint; carries its path and what is missing."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: not a complete checkpoint: {problem}")
        self.path = path
        self.problem = problem


class CustodyError(EvalStopError):
    """The object store of checkpoints refused or did not answer in time; it may be tried again."""


class IllegalEventError(EvalStopError):
    """A driver sent a fact that cannot follow the facts before it."""


class IllegalActionError(EvalStopError):
    """A policy answered with an action that the picture of the cluster does not allow."""
