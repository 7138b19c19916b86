"""What a training run is told, each kind of thing once."""

from __future__ import annotations

import logging

__all__ = ["Notices"]

_logger = logging.getLogger("evalstop.client")


class Notices:
    """Warnings of one watched run."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, kind: str, message: str) -> None:
        """Log a warning, unless one of its kind was given."""
        if kind not in self._given:
            self._given.add(kind)
            _logger.warning("evalstop: %s", message)

    def unwatched(self, error: Exception) -> None:
        """Say that training goes on unwatched, and why (R30)."""
        self.warn("unwatched", f"training goes on unwatched: {type(error).__name__}: {error}")
