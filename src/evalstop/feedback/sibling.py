"""Standard errors that a logger writes as a metric of their own: ``NAME_stderr`` beside ``NAME``.

The two may be seen at different polls. A score that was told without its error and then with it
would count as two evaluations, so the newest scores wait for their errors: until the next poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.traces.siblings import usable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.traces.siblings import Place

__all__ = ["Siblings"]


class Siblings:
    """The errors of the watched metrics of one run, and which scores wait for theirs."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}

    def matched(
        self, metric: str, reports: Sequence[Place], errors: Mapping[Place, float]
    ) -> list[float | None]:
        """Return the error of each report, in order, as far as the reports are complete.

        Args:
            metric: whose reports they are.
            reports: all of them so far, in the order in which they were made.
            errors: errors by place; empty where the run has no such metric.
        """
        complete = len(reports)
        if errors:
            newest = max(errors)
            while complete and reports[complete - 1] > newest:
                complete -= 1
        if self._waiting.get(metric) == len(reports):
            complete = len(reports)  # they have waited for a whole poll: there is no error
        self._waiting[metric] = len(reports)
        return [usable(errors.get(place)) for place in reports[:complete]]
