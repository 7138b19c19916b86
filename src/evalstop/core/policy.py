"""What a policy may read, and what it must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evalstop.core.actions import Action
    from evalstop.core.ahead import Ahead
    from evalstop.core.events import Event
    from evalstop.core.job import JobView

__all__ = ["ClusterView", "FarSighted", "Policy", "PoolView", "foresight_of", "hears_evals"]


class PoolView(Protocol):
    """GPUs of one node type."""

    @property
    def name(self) -> str:
        """Name of the node type; empty in a homogeneous cluster."""
        ...

    @property
    def total(self) -> int:
        """GPUs there are."""
        ...

    @property
    def free(self) -> int:
        """GPUs in no allocation, promised starts counted as allocated."""
        ...


class ClusterView(Protocol):
    """What policies may read: a live, read-only picture."""

    @property
    def now(self) -> float:
        """Time of the event being decided on, in seconds."""
        ...

    @property
    def total_gpus(self) -> int:
        """GPUs there are, over all pools."""
        ...

    @property
    def free_gpus(self) -> int:
        """GPUs in no allocation, promised starts counted as allocated."""
        ...

    @property
    def jobs(self) -> Mapping[str, JobView]:
        """Every job that has not ended, by id, in order of submission."""
        ...

    @property
    def pools(self) -> Mapping[str, PoolView]:
        """GPUs by node type; one entry, named "", in a homogeneous cluster."""
        ...


class Policy(Protocol):
    """Decider. Base schedulers and EvalStop are both policies, so they nest.

    A policy's own state is a fold of the events it was given, so that replaying a log rebuilds
    it; it reads no clock and draws no random number.

    A scheduler that neither answers nor remembers an evaluation, nor reads ``evals_seen`` and
    ``last_eval_at`` of a job, may say so by a class attribute ``hears_evals = False`` (see
    `hears_evals`): most events are evaluations, and a wrapper then need not ask it. A policy that
    does hear them may still be told most of them in bulk: see `FarSighted`.
    """

    def decide(self, event: Event, view: ClusterView) -> Sequence[Action]:
        """Return what should happen now that ``event`` has."""
        ...


class FarSighted(Policy, Protocol):
    """Policy that can tell of evaluations to come that it will answer them with nothing.

    A driver that knows them, as the simulator does, then need not tell each in the order of all
    jobs' events: it may tell a job's quiet ones later, all at once, but before any other event of
    this job is told, and none that has not happened yet. So who implements this promises

    * to answer nothing to the evaluations it foresees, whatever happens to other jobs, and
      whenever this one starts, is preempted or resized in between;
    * to decide on no event by what it heard of the evaluations of another job, nor by
      ``evals_seen`` and ``last_eval_at`` in the view of another job;
    * to be in the same state after `take_in` as if it had been told of each.

    A promise ends with the first report of the job (an evaluation, a loss, a saved checkpoint)
    that is told by `decide`. Whoever wraps such a policy and changes `decide` must not pass these
    methods on unchanged.
    """

    def foresee(self, job: str, ahead: Ahead, start: int, view: ClusterView) -> int:
        """Return up to where evaluations of a job, from ``start`` on, will get no answer.

        ``start`` itself if nothing can be promised. It must change nothing that shows.
        """
        ...

    def take_in(self, job: str, ahead: Ahead, start: int, stop: int) -> None:
        """Hear of evaluations ``start`` to ``stop - 1``, which were foreseen and have happened."""
        ...


def foresight_of(policy: Policy) -> Callable[[str, Ahead, int, ClusterView], int]:
    """Return how to ask up to where a policy will answer nothing to evaluations ahead of a job.

    That is its own ``foresee``. Of one that has none it is all of them if it hears none, and none
    otherwise.
    """
    own = getattr(policy, "foresee", None)
    if own is not None:
        foresee: Callable[[str, Ahead, int, ClusterView], int] = own
        return foresee
    return _nothing if hears_evals(policy) else _everything


def _nothing(job: str, ahead: Ahead, start: int, view: ClusterView) -> int:
    del job, ahead, view
    return start


def _everything(job: str, ahead: Ahead, start: int, view: ClusterView) -> int:
    del job, start, view
    return len(ahead.scores)


def hears_evals(policy: Policy) -> bool:
    """Return whether a policy wants to be told of evaluations; True unless it says otherwise."""
    return bool(getattr(policy, "hears_evals", True))
