"""A restart is a replay: fold the log into a fresh picture, ledger and policy."""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.core.actions import Advise, RequestEval, RequestSave, Stop, WakeAt
from evalstop.core.codec import decode_action, encode
from evalstop.core.errors import IllegalActionError
from evalstop.core.events import TimerFired
from evalstop.policies.evalstop import EvalStop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from evalstop.core.actions import Action
    from evalstop.core.events import Event
    from evalstop.core.kernel import Kernel
    from evalstop.ports import Entry
    from evalstop.service.ledger import Ledger

__all__ = ["Recovered", "decide", "note_timers", "recover"]

_log = logging.getLogger(__name__)

_OF_ALARMS = (Stop, Advise, RequestEval, RequestSave)


class Recovered(Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        sequence: of the last entry.
        time: of the last entry.
        changed: how many entries the policy of today would have answered otherwise; 0 as long as
            the configuration is the one that wrote the log.
        timers: (time, token) of wake-ups that have not fired, as a heap.
    """

    sequence: int
    time: float
    changed: int
    timers: list[tuple[float, str]]


def decide(kernel: Kernel, event: Event) -> Sequence[Action]:
    """Ask the policy, and fail open: one that raises decides nothing (R30)."""
    try:
        return kernel.policy.decide(event, kernel.state.view)
    except Exception:  # noqa: BLE001 -- whatever it is, it must not cost a job
        _log.exception("the policy failed on %r: nothing is decided on it", event)
        return ()


def note_timers(timers: list[tuple[float, str]], entry: Entry) -> None:
    """Take in the wake-ups that an entry asked for, and the one it is."""
    event = entry.event
    if isinstance(event, TimerFired):
        due = [timer for timer in timers if timer[1] == event.token and timer[0] <= event.time]
        if due:
            timers.remove(min(due))
            heapq.heapify(timers)
    for action in entry.actions:
        if isinstance(action, WakeAt):
            heapq.heappush(timers, (action.time, action.token))


def recover(
    entries: Iterable[Entry], kernel: Kernel, ledger: Ledger, start: Recovered
) -> Recovered:
    """Fold a log. What was decided then stands; the policy is only brought up to date.

    Args:
        entries: what follows ``start``.
        kernel: as it was at ``start``; it is moved on.
        ledger: as it was at ``start``; it is moved on.
        start: where the fold stands.

    Raises:
        IllegalEventError: if the log tells an impossible story: it is damaged.
    """
    state, live = kernel.state, kernel.state.view.jobs
    sequence, time, changed = start.sequence, start.time, start.changed
    timers = list(start.timers)
    for entry in entries:
        event = entry.event
        state.apply(event)
        actions = decide(kernel, event)
        if tuple(actions) != entry.actions and _differ(actions, entry.actions):
            changed += 1
            _disown(kernel, actions, entry.actions)
        for action in entry.actions:
            state.promise(action)
        ledger.note(entry, live)
        if entry.actions or isinstance(event, TimerFired):
            note_timers(timers, entry)
        sequence, time = entry.sequence, event.time
    return Recovered(sequence=sequence, time=time, changed=changed, timers=timers)


def _disown(kernel: Kernel, now: Sequence[Action], then: Sequence[Action]) -> None:
    """Have the policy forget what it would have done about a job's alarm, and did not do."""
    policy = kernel.policy
    if isinstance(policy, EvalStop):
        for job in {action.job for action in (*now, *then) if isinstance(action, _OF_ALARMS)}:
            ours, done = (
                [one for one in actions if isinstance(one, _OF_ALARMS) and one.job == job]
                for actions in (now, then)
            )
            if _differ(ours, done):
                policy.disown(job)


def _differ(now: Sequence[Action], then: Sequence[Action]) -> bool:
    """Compare as it would be read again: NaN is not equal to itself, and 2 is 2.0 by then."""
    return repr([decode_action(encode(action)) for action in now]) != repr(list(then))


def promise(kernel: Kernel, actions: Sequence[Action]) -> tuple[Action, ...]:
    """Note actions as promised; an impossible one is a bug, told loudly and left out."""
    promised = []
    for action in actions:
        try:
            kernel.state.promise(action)
        except IllegalActionError:
            _log.exception("the policy asked for something impossible; it is left out")
        else:
            promised.append(action)
    return tuple(promised)
