"""What the policy makes of each job, for the threads that answer while another one decides.

A curve is folded when somebody asks for its verdict, so that a look changes what the policy has:
two threads at it at once would fold an evaluation twice, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from evalstop.policies.evalstop import EvalStop

if TYPE_CHECKING:
    import threading

    from evalstop.core.points import EvalPoint, Verdict
    from evalstop.policies.evalstop import Watch
    from evalstop.service.controller import Controller

__all__ = ["LiveWatches", "WatchView", "Watched"]


class Watched(Protocol):
    """One job under its rule, to look at."""

    @property
    def spec(self) -> str:
        """The rule, in the words that name it."""
        ...

    @property
    def unwatched(self) -> str:
        """Why the job is not watched any more; "" while it is."""
        ...

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the job."""
        ...

    @property
    def series(self) -> Sequence[EvalPoint]:
        """The evaluations that count, in order."""
        ...


class WatchView:
    """One job under its rule, as any thread may look at it: nothing is decided meanwhile.

    Args:
        watch: what the policy has.
        deciding: what the controller holds while it decides.
    """

    def __init__(self, watch: Watch, deciding: threading.RLock) -> None:
        self._watch = watch
        self._deciding = deciding

    @property
    def spec(self) -> str:
        """The rule, in the words that name it."""
        return self._watch.spec

    @property
    def unwatched(self) -> str:
        """Why the job is not watched any more; "" while it is."""
        return self._watch.unwatched

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the job."""
        with self._deciding:
            return self._watch.verdict

    @property
    def series(self) -> Sequence[EvalPoint]:
        """The evaluations that count, in order."""
        with self._deciding:
            return self._watch.series


class LiveWatches(Mapping[str, WatchView]):
    """The watches of whichever policy decides now."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def _now(self) -> Mapping[str, Watch]:
        policy = self._controller.kernel.policy
        return policy.watches if isinstance(policy, EvalStop) else {}

    def __getitem__(self, job: str) -> WatchView:
        """Return the watch of a job."""
        return WatchView(self._now()[job], self._controller.deciding)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the jobs watched, as of now."""
        return iter(list(self._now()))

    def __len__(self) -> int:
        """Return how many jobs are watched."""
        return len(self._now())
