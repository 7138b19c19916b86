"""Follow a run's TensorBoard events (extra ``tensorboard``).

TensorBoard's accumulator reads on where it stopped, over new files too, and leaves half a record
for the next time. A resumed run writes steps a second time into a new file: from there on it is
a new attempt. So nothing is purged from what was read; the history decides what counts. That a
step told before began an attempt may be known only from the next one: then it is told again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import ReadError
from evalstop.core.points import EvalPoint, stderr_of_share
from evalstop.feedback.sibling import Siblings
from evalstop.traces import openrlhf
from evalstop.traces.rewinds import attempts_of
from evalstop.traces.siblings import SUFFIX, by_place
from evalstop.traces.tensorboard import accumulator, is_event_file, scalar_tags, scalars_of

if TYPE_CHECKING:
    from collections.abc import Collection
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
        self._told: dict[str, list[int]] = {}
        self._siblings = Siblings()
        self.names: set[str] = set()

    def readings(self) -> list[Reading]:
        """Return the events added since the last call.

        Raises:
            ReadError: the events cannot be read.
        """
        if self._events is None:
            if not self._folder.is_dir() or not any(map(is_event_file, self._folder.iterdir())):
                return []
            self._events = accumulator(self._folder)
        try:
            self._events.Reload()
        except Exception as error:  # TensorBoard raises what its parser raises
            message = f"not readable TensorBoard events: {error}"
            raise ReadError(str(self._folder), message) from error
        tags = dict.fromkeys(scalar_tags(self._events))
        self.names |= tags.keys()
        found: list[Reading] = []
        for name, tag in self._watch.wanted(tags):
            found += self._news(name, tag, tags)
        return found

    def _news(self, name: str, tag: str, tags: Collection[str]) -> list[Reading]:
        events = scalars_of(self._events, tag)
        sizes = scalars_of(self._events, openrlhf.SAMPLES) if openrlhf.SAMPLES in tags else ()
        samples = {step: value for step, value, _ in sizes}
        told = self._told.get(tag, [])
        attempts = attempts_of([step for step, _, _ in events])
        sibling = f"{tag}{SUFFIX}"
        stated_at = scalars_of(self._events, sibling) if sibling in tags else ()
        errors = self._siblings.matched(
            tag,
            [(attempt, event[0]) for attempt, event in zip(attempts, events, strict=True)],
            by_place([event[:2] for event in stated_at]),
        )
        self._told[tag] = attempts[: len(errors)]
        news = []
        for place, stated in enumerate(errors):
            step, value, wall_time = events[place]
            if step >= 0 and attempts[place : place + 1] != told[place : place + 1]:
                items = openrlhf.prompts_evaluated(tag, tags, samples.get(step))
                point = EvalPoint(
                    step=step,
                    score=value,
                    attempt=self._watch.attempt + attempts[place],
                    n_items=items,
                    stderr=stderr_of_share(value, items) if stated is None else stated,
                )
                news.append(self._watch.reading(name, point, wall_time))
        return news
