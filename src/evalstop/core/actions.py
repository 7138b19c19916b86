"""What a policy can want: a closed union of intents, in the imperative, frozen.

An action is a wish that the kernel checks and a driver carries out; what came of it returns as
an event. All are final, for the reason given in `evalstop.core.events`.
"""

from __future__ import annotations

from typing import TypeAlias, final

from msgspec import Struct

from evalstop.core.points import Verdict

__all__ = [
    "Action",
    "Advise",
    "Preempt",
    "RequestEval",
    "RequestSave",
    "Resize",
    "Start",
    "Stop",
    "WakeAt",
]


@final
class Start(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Place a waiting job's gang on ``gpus`` free GPUs (of ``pool``, where there are several)."""

    job: str
    gpus: int
    pool: str = ""


@final
class Preempt(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Save a running job and take it off its GPUs; it waits again and loses nothing."""

    job: str


@final
class Resize(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Give a running elastic job ``gpus`` GPUs in place of what it holds."""

    job: str
    gpus: int


@final
class Stop(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Stop a running job for good: its decline is real.

    Attributes:
        job: which one.
        rule: the rule that raised the alarm, as a SPEC.
        verdict: what the rule saw.
        best_step: step of the checkpoint to keep: the best score of the current epoch.
        step: step of the newest evaluation that the verdict rests on.
        best_checkpoint: its name, None if the best step was never saved (the job is unbacked).
        author: "policy", or the person who ordered it.
    """

    job: str
    rule: str = ""
    verdict: Verdict = Verdict()
    best_step: int = -1
    step: int = -1
    best_checkpoint: str | None = None
    author: str = "policy"


@final
class RequestEval(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Ask for an extra evaluation (fresh seeds, more items) of these steps' checkpoints."""

    job: str
    steps: tuple[int, ...] = ()


@final
class RequestSave(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Ask the trainer for a checkpoint now."""

    job: str


@final
class Advise(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Tell people what would have been done (observe), or what will be (advise)."""

    job: str
    action: Stop
    note: str = ""


@final
class WakeAt(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, gc=False):
    """Send a TimerFired with this token at this time (or at once, if it is past)."""

    time: float
    token: str = ""


Action: TypeAlias = Start | Preempt | Resize | Stop | RequestEval | RequestSave | Advise | WakeAt
