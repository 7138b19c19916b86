"""Which checkpoints evalstop's own evaluator should score: those in custody, and repeats.

Pinned copies are evaluated, not the trainer's: its rotation may delete one in the middle of an
evaluation. A policy's `RequestEval` asks for one more evaluation, with another seed, of a step; the
ledger counts them, so that a restart forgets none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evalstop.core.errors import CustodyError
from evalstop.feedback.evaluator import Candidate
from evalstop.service.sources import watch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evalstop.ports import CheckpointStore
    from evalstop.service.controller import Controller

__all__ = ["Candidates"]


class Candidates:
    """The complete checkpoints of running jobs, and how often each is to be evaluated.

    Args:
        controller: whose jobs.
        store: custody of their checkpoints.
    """

    def __init__(self, controller: Controller, store: CheckpointStore) -> None:
        self._controller = controller
        self._store = store

    def __call__(self) -> Iterator[Candidate]:
        """Yield what should have a score."""
        for name, job in list(self._controller.kernel.state.view.jobs.items()):
            record = self._controller.ledger.jobs.get(name)
            watch = None if record is None else watch_of(record.spec)
            if record is None or watch is None or not job.held_gpus:
                continue
            # Of a step that was gone through again, the checkpoint of the last time.
            try:
                pins = {(pin.step, pin.name): pin for pin in self._store.pins(name)}
            except CustodyError:  # told by custody itself; other jobs' evaluations go on
                continue
            for pin in pins.values():
                for repeat in range(1 + record.repeats.get(pin.step, 0)):
                    yield Candidate(
                        watch=watch,
                        step=pin.step,
                        path=pin.path,
                        name=pin.name,
                        repeat=repeat,
                    )
