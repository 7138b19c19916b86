"""Follow a run's TensorBoard events (extra ``tensorboard``).

TensorBoard's accumulator reads on where it stopped, over new files too, and leaves half a record
for the next time. A resumed run writes a step a second time into a new file: from there on it is
a new attempt. So nothing is purged from what was read; the history decides what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError
from evalstop.core.points import EvalPoint
from evalstop.traces.tensorboard import accumulator, is_event_file, scalar_tags, scalars_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from evalstop.feedback.scores import Watch
    from evalstop.ports import Reading

__all__ = ["TensorBoardTail"]


class TensorBoardTail:
    """Readings of one run.

    Args:
        folder: its log folder; it may appear later.
        watch: what of its scalars counts.

    Raises:
        MissingExtraError: at the first poll, if TensorBoard is not installed.

    Attributes:
        names: tags seen so far, watched or not.
    """

    def __init__(self, folder: Path, watch: Watch) -> None:
        self._folder = folder
        self._watch = watch
        self._events: Any = None
        self._read: dict[str, int] = {}
        self._last_step: dict[str, int] = {}
        self._attempt = watch.attempt
        self.names: set[str] = set()

    def readings(self) -> list[Reading]:
        """Return the events added since the last call.

        Raises:
            ReadError: the events cannot be read.
        """
        if self._events is None:
            if not self._folder.is_dir() or not any(map(is_event_file, self._folder.iterdir())):
                return []
            self._events = accumulator(self._folder, purge=False)
        try:
            self._events.Reload()
        except Exception as error:  # TensorBoard raises what its parser raises
            message = f"not readable TensorBoard events: {error}"
            raise ReadError(str(self._folder), message) from error
        tags = dict.fromkeys(scalar_tags(self._events))
        self.names |= tags.keys()
        found: list[Reading] = []
        for name, tag in self._watch.wanted(tags):
            found += self._news(name, tag)
        return found

    def _news(self, name: str, tag: str) -> list[Reading]:
        events = scalars_of(self._events, tag)
        start = self._read.get(tag, 0)
        self._read[tag] = len(events)
        news = []
        for step, value, wall_time in events[start:]:
            if step <= self._last_step.get(tag, -1):
                self._attempt += 1
                self._last_step.clear()
            self._last_step[tag] = step
            if step >= 0:
                point = EvalPoint(step=step, score=value, attempt=self._attempt)
                news.append(self._watch.reading(name, point, wall_time))
        return news
