"""What comes in at the door, and how it is refused: a job, and its reports.

Everything is checked here, before it becomes a fact: an unknown direction, a negative error, a
score that is not a number. Scores are turned so that higher is better, once, here.
"""

from __future__ import annotations

import re
from signal import Signals
from typing import Annotated

from msgspec import Meta, Struct

from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec
from evalstop.core.points import LARGEST, NOT_FINITE, EvalPoint, stderr_of_share
from evalstop.core.signals import signals_of
from evalstop.custody import is_url, locate
from evalstop.ports import Launch
from evalstop.service.explain import sign_of_job
from evalstop.traces.names import canonical

__all__ = ["EvalIn", "LossIn", "Submission", "check_id", "launch_of_submission", "spec_of"]

Step = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(max_length=200)]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A number whose square is one too."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
_DIRECTIONS = {"max", "min"}
_SIGNALS = {one.name for one in Signals}


class Submission(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as a tenant hands it in.

    ``command`` is left out for a job that runs elsewhere and only reports. ``direction`` says
    which scores are better and has no default: a guess has kept the worst model before.
    """

    direction: str
    id: str = ""
    tenant: Name = ""
    job_type: Name = "other"
    gpus: Annotated[int, Meta(ge=1, le=100_000)] = 1
    min_gpus: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    max_gpus: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    estimated_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    metric: Name = ""
    labels: dict[Name, Name] = {}
    command: list[str] = []
    cwd: str = ""
    environment: dict[str, str] = {}
    checkpoints: str = ""
    save_signal: str = ""
    grace_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    options: dict[str, str] = {}


class EvalIn(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One evaluation as reported, in the metric's own direction.

    ``score`` is null where the evaluation gave no finite number; JSON has no NaN.
    """

    step: Step
    score: Finite | None = None
    stderr: Annotated[float, Meta(ge=0, le=1e100)] | None = None
    n_items: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    attempt: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    epoch_key: Name | None = None
    eval_id: Name | None = None
    checkpoint: Annotated[str, Meta(max_length=1000)] | None = None
    proxy: Finite | None = None
    items: Annotated[list[Finite], Meta(max_length=100_000)] | None = None
    signals: Annotated[dict[Name, Finite], Meta(max_length=100)] | None = None
    metric: Name = ""
    direction: str | None = None
    loss: Finite | None = None
    not_finite: str | None = None
    reported_at: float | None = None

    def point(self, job: JobSpec) -> EvalPoint:
        """Return the evaluation with higher as better.

        Raises:
            InputError: if the report's direction is not the job's.
        """
        own = job.labels.get("direction", "max")
        if self.direction is not None and self.direction != own:
            message = (
                f"job {job.id!r} was submitted with direction {own!r}, but this report says "
                f"{self.direction!r}: report the metric the job was submitted with"
            )
            raise InputError(message)
        sign = sign_of_job(job)
        items = None if self.items is None else tuple(sign * item for item in self.items)
        stderr = self.stderr
        if stderr is None and self.score is not None:
            stderr = stderr_of_share(self.score, self.n_items)
        return EvalPoint(
            step=self.step,
            score=NOT_FINITE if self.score is None else sign * self.score,
            stderr=stderr,
            n_items=self.n_items,
            attempt=self.attempt,
            epoch_key=self.epoch_key,
            eval_id=self.eval_id,
            checkpoint=self.checkpoint,
            proxy=self.proxy,
            items=items,
            signals=signals_of(self.signals),
        )

    def metric_of(self, job: JobSpec) -> str:
        """Return "" where the report is of the job's primary metric, else its name.

        One metric has several spellings, by the sink that wrote it (R27): ``eval/x``, ``eval_x``.
        """
        own = job.labels.get("metric", "")
        same = not self.metric or (own and canonical(self.metric) == canonical(own))
        return "" if same else self.metric


class LossIn(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One training loss as reported, and what else a trainer says of its speed."""

    step: Step
    loss: Finite
    throughput: Annotated[float, Meta(ge=0, le=1e100)] | None = None
    efficiency: Annotated[float, Meta(ge=0, le=1)] | None = None


def check_id(job: str) -> str:
    """Return a job's name if it can be one.

    Raises:
        InputError: it is too long, or has characters that paths and URLs do not carry well.
    """
    if _ID.fullmatch(job) is None:
        message = (
            f"a job's id has 1 to 128 letters, digits or . _ : @ + - and begins with a letter "
            f"or digit, but got {job!r}"
        )
        raise InputError(message)
    return job


def spec_of(submission: Submission, job: str) -> JobSpec:
    """Return what policies may know of a submission.

    Raises:
        InputError: if it makes no sense.
    """
    if submission.direction not in _DIRECTIONS:
        message = (
            f"direction must be 'max' or 'min', but got {submission.direction!r}: say which "
            "scores are better"
        )
        raise InputError(message)
    fewest = submission.min_gpus or submission.gpus
    most = submission.max_gpus or submission.gpus
    if not fewest <= submission.gpus <= most:
        message = (
            f"expected min_gpus <= gpus <= max_gpus, but got {fewest}, {submission.gpus}, {most}"
        )
        raise InputError(message)
    labels = dict(submission.labels) | {"direction": submission.direction}
    if submission.metric:
        labels["metric"] = submission.metric
    return JobSpec(
        id=check_id(job),
        tenant=submission.tenant,
        job_type=submission.job_type,
        gpus=submission.gpus,
        min_gpus=submission.min_gpus,
        max_gpus=submission.max_gpus,
        estimated_s=submission.estimated_s,
        labels=labels,
    )


def launch_of_submission(submission: Submission) -> Launch:
    """Return how the job is run; without command, for one that runs elsewhere.

    Raises:
        InputError: if a folder is no absolute path, nor a plain URL where that may be one, the
            save signal is none, or no process can have such a command or environment.
    """
    for name in ("checkpoints", "cwd"):
        path = getattr(submission, name)
        if name == "checkpoints" and is_url(path):
            locate(path)
        elif path and not path.startswith("/"):
            message = f"{name} must be an absolute path, but got {path!r}"
            raise InputError(message)
    _require_executable(submission)
    if submission.save_signal and submission.save_signal not in _SIGNALS:
        message = f"save_signal must be a name like 'SIGUSR1', but got {submission.save_signal!r}"
        raise InputError(message)
    return Launch(
        command=tuple(submission.command),
        cwd=submission.cwd,
        environment=submission.environment,
        checkpoints=submission.checkpoints,
        save_signal=submission.save_signal,
        grace_s=submission.grace_s,
        options=submission.options,
    )


def _require_executable(submission: Submission) -> None:
    """Refuse at the door what would fail once the job's turn has come."""
    if submission.command and not submission.command[0]:
        message = "the first word of command names the program, but it is empty"
        raise InputError(message)
    for name in submission.environment:
        if not name or "=" in name:
            message = f"expected names of variables in environment, but got {name!r}"
            raise InputError(message)
    words = (*submission.command, submission.cwd, submission.checkpoints)
    for word in (*words, *submission.environment, *submission.environment.values()):
        if "\0" in word:
            message = "no word of command, environment, cwd or checkpoints may hold a NUL character"
            raise InputError(message)
