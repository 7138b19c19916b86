"""evalstop's own evaluator: a command run on each new checkpoint, as world feedback.

    evaluate = "lm_eval run --model hf --model_args pretrained={checkpoint} --output_path {out} ..."
    evaluate = "python score.py {checkpoint}"

One evaluation a checkpoint, oldest first, as many side by side as the evaluator's own GPUs allow.
A run that fails, hangs or prints garbage is tried again later, and given up after ``tries``; the
next checkpoint does not wait for it. What was evaluated is kept on disk, one small file each, so
that a restart repeats nothing; a process that outlived its controller is ended first.

Nothing here blocks: `readings` starts what may start, looks at what runs, and returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evalstop.core.errors import InputError, ReadError
from evalstop.feedback.result import point_of_run
from evalstop.feedback.scores import Watch
from evalstop.ports import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Candidate", "Evaluator", "EvaluatorSettings"]

_PLACES = ("checkpoint", "step", "job", "out", "seed")
_FIRST_PAUSE_S = 10.0
_ENDS = re.compile(r"[\r\n]+")
_PROGRESS = re.compile(r"\d+%\|.*\| *\d+/\d+ \[")
"""What tqdm draws, often over the last line of a traceback."""


class EvaluatorSettings(Struct, frozen=True, kw_only=True):
    """How checkpoints are evaluated.

    Attributes:
        command: as people type it; {checkpoint}, {step}, {job}, {out} (a folder for results) and
            {seed} are filled in, each within its argument. No shell is put around it.
        folder: where results and logs are kept.
        gpus: GPUs of one evaluation.
        devices: names for CUDA_VISIBLE_DEVICES that the evaluator may use; empty if whatever
            runs the command finds its own.
        at_once: most evaluations side by side where ``devices`` is empty.
        time_limit_s: after so many seconds an evaluation is killed.
        tries: how often one checkpoint is tried.
        suite: identity of the eval suite; scores compare only within one. Empty: the command's.
    """

    command: str
    folder: Path
    gpus: int = 1
    devices: tuple[str, ...] = ()
    at_once: int = 1
    time_limit_s: float = 3600.0
    tries: int = 3
    suite: str = ""


class Candidate(Struct, frozen=True, kw_only=True):
    """A complete checkpoint that should have a score, by its path or URL.

    ``repeat`` counts extra evaluations.
    """

    watch: Watch
    step: int
    path: str
    name: str = ""
    repeat: int = 0


class _Kept(Struct, kw_only=True, omit_defaults=True):
    """What is on disk of one evaluation."""

    tries: int = 0
    pid: int = 0
    began: str = ""
    reading: Reading | None = None
    problem: str = ""


class _Running(Struct, kw_only=True):
    """An evaluation under way."""

    candidate: Candidate
    process: subprocess.Popen[bytes]
    deadline: float
    devices: tuple[str, ...]


class Evaluator:
    """Evaluates the checkpoints it is told of.

    Args:
        settings: how.
        candidates: returns the complete checkpoints there are, of all jobs; called each poll.
        environment: variables for the command, beside this process's own.
        monotonic: seconds that never go back.

    Raises:
        InputError: the command cannot be used.

    Attributes:
        problems: checkpoints that were given up and why, by (job, step).
    """

    def __init__(
        self,
        settings: EvaluatorSettings,
        candidates: Callable[[], Iterable[Candidate]],
        *,
        environment: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._words = _words(settings.command)
        digest = hashlib.sha256(settings.command.encode()).hexdigest()[:12]
        self._suite = settings.suite or f"command {digest}"
        self._candidates = candidates
        self._environment = {**os.environ, **(environment or {})}
        self._monotonic = monotonic
        self._running: dict[Path, _Running] = {}
        self._not_before: dict[Path, float] = {}
        self._kept: dict[Path, _Kept] = {}
        self._told: set[Path] = set()
        self.problems: dict[tuple[str, int], str] = {}

    def readings(self) -> list[Reading]:
        """Start what may start, reap what ended; return the scores that are new.

        Raises:
            ReadError: results cannot be kept on disk.
        """
        try:
            found = self._reap()
            waiting = sorted(self._candidates(), key=lambda each: (each.step, each.watch.job))
            for candidate in waiting:
                place = self._place(candidate)
                kept = self._known(place)
                if kept.reading is not None and place not in self._told:
                    self._told.add(place)
                    found.append(kept.reading)
                elif self._is_due(place, kept):
                    self._start(candidate, place, kept)
        except OSError as error:
            message = f"evaluations cannot be kept: {error}"
            raise ReadError(str(self._settings.folder), message) from error
        return found

    def under_way(self) -> int:
        """Return how many evaluations run."""
        return len(self._running)

    def in_use(self, job: str) -> set[int]:
        """Return the steps of a job whose checkpoints are being evaluated now."""
        running = list(self._running.values())
        return {one.candidate.step for one in running if one.candidate.watch.job == job}

    def close(self) -> None:
        """End what runs; it is begun again after a restart."""
        for place, running in list(self._running.items()):
            _kill_group(running.process.pid)
            running.process.wait()
            kept = self._known(place)
            kept.tries -= 1
            self._keep(place, kept)
            del self._running[place]

    # ---- running -------------------------------------------------------------------------

    def _is_due(self, place: Path, kept: _Kept) -> bool:
        if place in self._running or kept.reading is not None:
            return False
        if kept.tries >= self._settings.tries:
            return False
        return self._monotonic() >= self._not_before.get(place, float("-inf"))

    def _free_devices(self) -> tuple[str, ...] | None:
        """Return devices for one more evaluation; None if there is no room."""
        settings = self._settings
        if not settings.devices:
            return () if len(self._running) < settings.at_once else None
        taken = {name for running in self._running.values() for name in running.devices}
        free = [name for name in settings.devices if name not in taken]
        return tuple(free[: settings.gpus]) if len(free) >= settings.gpus else None

    def _start(self, candidate: Candidate, place: Path, kept: _Kept) -> None:
        devices = self._free_devices()
        if devices is None:
            return
        place.mkdir(parents=True, exist_ok=True)
        _end_leftover(kept)
        out = place / f"try-{kept.tries + 1}"
        out.mkdir(exist_ok=True)
        environment = {**self._environment, "EVALSTOP_EVAL_SEED": str(candidate.repeat)}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order that NVML counts in
        kept.tries += 1
        try:
            with (out / "stdout").open("wb") as stdout, (out / "log").open("wb") as log:
                process = subprocess.Popen(  # noqa: S603 -- the operator's own command
                    self._filled(candidate, out),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._failed(candidate, place, kept, f"{self._words[0]} cannot be run: {error}")
            return
        kept.pid, kept.began = process.pid, _began(process.pid)
        self._keep(place, kept)
        self._running[place] = _Running(
            candidate=candidate,
            process=process,
            deadline=self._monotonic() + self._settings.time_limit_s,
            devices=devices,
        )

    def _filled(self, candidate: Candidate, out: Path) -> list[str]:
        values = {
            "checkpoint": candidate.path,
            "step": str(candidate.step),
            "job": candidate.watch.job,
            "out": str(out),
            "seed": str(candidate.repeat),
        }
        return [word.format_map(values) for word in self._words]

    def _reap(self) -> list[Reading]:
        found = []
        for place, running in list(self._running.items()):
            code = running.process.poll()
            late = self._monotonic() >= running.deadline
            if code is None and not late:
                continue
            _kill_group(running.process.pid)  # also what a finished command left behind
            code = running.process.wait()
            del self._running[place]
            kept = self._known(place)
            kept.pid = 0
            try:
                reading = self._result(running.candidate, place, kept, code, late=late)
            except InputError as error:
                self._failed(running.candidate, place, kept, str(error))
                continue
            kept.reading, kept.problem = reading, ""
            self._keep(place, kept)
            self._told.add(place)
            found.append(reading)
        return found

    def _result(
        self, candidate: Candidate, place: Path, kept: _Kept, code: int, *, late: bool
    ) -> Reading:
        out = place / f"try-{kept.tries}"
        if late:
            message = f"did not end within {self._settings.time_limit_s:g} s"
            raise InputError(message)
        if code != 0:
            message = f"exit code {code}: {_last_line(out / 'log')}"
            raise InputError(message)
        point = point_of_run(
            out,
            metric=candidate.watch.metric,
            step=candidate.step,
            checkpoint=candidate.name or PurePosixPath(candidate.path).name,
            suite=self._suite,
            repeat=candidate.repeat,
        )
        return candidate.watch.reading("", point)

    def _failed(self, candidate: Candidate, place: Path, kept: _Kept, why: str) -> None:
        kept.problem = why
        self._keep(place, kept)
        pause = _FIRST_PAUSE_S * 2.0 ** (kept.tries - 1)
        self._not_before[place] = self._monotonic() + pause
        if kept.tries >= self._settings.tries:
            sentence = f"given up after {kept.tries} tries: {why}; see {place}"
            self.problems[candidate.watch.job, candidate.step] = sentence

    # ---- on disk -------------------------------------------------------------------------

    def _place(self, candidate: Candidate) -> Path:
        """Return the folder of one evaluation: of a job, attempt, step, suite and repeat."""
        identity = "\n".join(
            [candidate.watch.job, str(candidate.watch.attempt), self._suite, str(candidate.repeat)]
        )
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        job = "".join(c if c.isalnum() or c in "._-" else "_" for c in candidate.watch.job)[:60]
        return self._settings.folder / f"{job}-{digest}" / f"step-{candidate.step}"

    def _known(self, place: Path) -> _Kept:
        kept = self._kept.get(place)
        if kept is None:
            try:
                kept = msgspec.json.decode((place / "kept.json").read_bytes(), type=_Kept)
            except (FileNotFoundError, msgspec.DecodeError):
                kept = _Kept()
            self._kept[place] = kept
        return kept

    def _keep(self, place: Path, kept: _Kept) -> None:
        place.mkdir(parents=True, exist_ok=True)
        aside = place / "kept.json.new"
        aside.write_bytes(msgspec.json.encode(kept))
        aside.replace(place / "kept.json")


def _words(command: str) -> Sequence[str]:
    try:
        words = shlex.split(command)
        for word in words:
            word.format_map(dict.fromkeys(_PLACES, ""))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        known = ", ".join(f"{{{name}}}" for name in _PLACES)
        message = (
            f"evaluate = {command!r} cannot be used ({error!r}); known places: {known}; a brace "
            "that is text is written {{ or }}"
        )
        raise InputError(message) from error
    if not words:
        message = 'expected a command such as evaluate = "python score.py {checkpoint}", got ""'
        raise InputError(message)
    return words


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's ticks: with it a pid is not another's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end_leftover(kept: _Kept) -> None:
    """End an evaluation that outlived the controller that began it."""
    if kept.pid and kept.began and _began(kept.pid) == kept.began:
        _kill_group(kept.pid)
    kept.pid = 0


def _last_line(path: Path) -> str:
    words = path.read_bytes()[-4096:].decode(errors="replace")
    lines = [line.strip()[-300:] for line in _ENDS.split(words) if line.strip()]
    said = [line for line in lines if not _PROGRESS.search(line)]
    return next(reversed(said or lines), "no words")
