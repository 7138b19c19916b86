r"""A checkpoint callback for verl's PPO trainer (GRPO, RLOO, PPO, ...).

```sh
python -m verl.trainer.main_ppo ... \
    trainer.checkpoint_callback_class=evalstop.client.verl.EvalStopCheckpoint \
    +trainer.evalstop.metric=val-core/openai/gsm8k/acc/mean@1 +trainer.evalstop.direction=max
```

verl makes the callback on its driver and calls it after each save; validation comes after the save,
and its metrics reach loggers only. So the first save puts the callback among the run's loggers,
where it sees each step's metrics. What was validated before that save is read from verl's own file
log, where the run keeps one (``trainer.logger`` with ``file``).

To stop, the run's number of steps becomes the step that it is at, and verl's loop ends by itself:
metrics logged, loggers finished, exit status 0. A checkpoint is pinned as it is saved, before
verl's rotation (first in, first out) can take the best (R05). The curve lies beside the pins, so
that a run started again goes on from it, and one that was stopped stays stopped (R10).
If anything in here fails, training goes on, visibly unwatched (R30): verl itself would end it.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError, convert
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from evalstop.client.curve import CurvePoint, read_curve, write_curve
from evalstop.client.notices import Notices
from evalstop.client.pins import Pins
from evalstop.client.reporter import Reporter
from evalstop.client.watched import nearest
from evalstop.client.wire import Destination
from evalstop.config.rules import parse_rule
from evalstop.core.errors import InputError
from evalstop.core.points import Verdict
from evalstop.core.signals import trainer_signals
from evalstop.custody.verify import missing_ranks
from evalstop.detectors.monitor import Direction, Monitor, sign_of
from evalstop.traces.names import find, is_trained_reward

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EvalStopCheckpoint", "Settings", "is_whole"]

_logger = logging.getLogger("evalstop.client")

_PREFIX = "global_step_"
_VALIDATION = "val-"
_PROXY = "critic/rewards/mean"
_UNDONE = "+undo"
_WEIGHTS = frozenset({".pt", ".safetensors", ".distcp", ".bin"})


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands under ``trainer.evalstop`` in verl's configuration.

    Attributes:
        metric: the validation metric to watch, in any of its spellings.
        direction: "max" if higher is better, "min" if lower is. There is no default (R07).
        rule: any rule as `evalstop.parse_rule` reads it. By default the rule ``default`` decides
            in this process, unless EVALSTOP_URL and EVALSTOP_JOB_ID name a server: then scores
            are reported and the server decides.
        n_items: number of validated prompts, for scores that are shares.
        stderr: name of a logged metric that holds the standard error.
        proxy: name of the training reward.
        job_type: which entry of a rule map applies.
        epoch_key: identity of the validation set; scores compare within one key only.
        pin_best: keep hard links to the best checkpoint under ``trainer.default_local_dir``.
        stop: False to advise only: the verdict is logged, training goes on.
        undo: True to train on from a run that was stopped; scores before it are compared no more.
    """

    metric: str
    direction: Direction
    rule: str | None = None
    n_items: int | None = None
    stderr: str | None = None
    proxy: str = _PROXY
    job_type: str = "rlhf"
    epoch_key: str | None = None
    pin_best: bool = True
    stop: bool = True
    undo: bool = False


class EvalStopCheckpoint(CheckpointCallback):  # type: ignore[misc] # verl's types are not required
    """Stop a run whose validation scores are falling, and keep its best checkpoint.

    Args:
        config: verl's whole configuration; see `Settings` for our part of it.

    Raises:
        InputError: our part of it is wrong. This comes before any GPU is taken.

    Attributes:
        verdict: the newest verdict.
        stopped_at: step of the stop, or None.
    """

    def __init__(self, config: Any = None) -> None:  # noqa: ANN401 -- omegaconf's own
        super().__init__(config=config)
        self.settings = _settings(config)
        self._sign = sign_of(self.settings.direction)
        self._rule = parse_rule(self.settings.rule or "default")
        destination = Destination.from_environment()
        self._reporter = Reporter(destination) if destination.url else None
        self._server_decides = self._reporter is not None and self.settings.rule is None
        self._monitor: Monitor | None = None
        if not self._server_decides:
            self._monitor = self._fresh_monitor()
        self._notices = Notices()
        self._folder = Path(str(config.trainer.default_local_dir)).absolute() / "evalstop"
        self._pins: Pins | None = None
        if self.settings.pin_best:
            self._pins = Pins(self._folder, prefix=_PREFIX, whole=is_whole)
        self._points: list[CurvePoint] = []
        self._attempt = 0
        self._epoch_key = self.settings.epoch_key
        self._trainer: Any = None
        self.verdict = Verdict()
        self.stopped_at: int | None = None
        try:
            self._resume()
        except Exception as error:  # noqa: BLE001 -- fail open
            self._notices.unwatched(error)

    @property
    def best_checkpoint(self) -> Path | None:
        """The pinned folder of the best checkpoint that was saved; None if there is none yet."""
        return None if self._pins is None else self._pins.best

    def on_save(
        self,
        trainer: Any,  # noqa: ANN401 -- verl's own
        global_step: int,
        checkpoint_dir: str,
        async_save: bool = False,  # noqa: FBT001, FBT002 -- verl's signature
        **_: object,
    ) -> None:
        """Pin what was saved; from the first save on, see what the trainer logs."""
        try:
            if self._trainer is not trainer:
                self._join(trainer)
            if async_save:
                self._notices.warn(
                    "async",
                    "checkpoints saved asynchronously are not pinned: they may still be being "
                    "written. Keep enough of them with trainer.max_actor_ckpt_to_keep",
                )
            elif self._pins is not None and not self._pins.saved(
                global_step, Path(checkpoint_dir).absolute(), attempt=self._attempt
            ):
                self._notices.warn(
                    "unbacked",
                    f"{checkpoint_dir} is not whole on the driver's machine and was not pinned: "
                    "trainer.default_local_dir has to be on a file system that all nodes share",
                )
        except Exception as error:  # noqa: BLE001 -- verl would end the run
            self._notices.unwatched(error)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Take a step's metrics, as one of the trainer's loggers."""
        try:
            self._judge(data, int(step))
            if self._asked():
                self._stop(int(step))
            if self._reporter is not None and step >= self._trainer.total_training_steps:
                self._reporter.flush()  # Ray ends its workers without further notice
        except Exception as error:  # noqa: BLE001 -- verl would end the run
            self._notices.unwatched(error)

    def _join(self, trainer: Any) -> None:  # noqa: ANN401 -- verl's own
        """Become one of the trainer's loggers; read what was logged before."""
        loggers = trainer.logger.logger
        log = getattr(loggers.get("file"), "filepath", None)
        self._trainer = trainer
        loggers["evalstop"] = self
        if log is None and self.config.trainer.get("val_before_train", True):
            self._notices.warn(
                "late",
                "validations before the first checkpoint are not known: add file to trainer.logger",
            )
        for line in [] if log is None else Path(log).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            self._judge(row["data"], int(row["step"]))

    def _judge(self, data: Mapping[str, Any], step: int) -> None:
        validated = {name: value for name, value in data.items() if name.startswith(_VALIDATION)}
        wanted = self.settings.metric
        name = wanted if wanted in data else find(wanted, validated)
        if name is None:
            if validated:
                self._notices.warn(
                    "blind",
                    f"the watched metric {wanted!r} was not in the validation at step {step}, so "
                    f"this run is not watched; metrics: {nearest(wanted, validated)}",
                )
            return
        if is_trained_reward(name):
            self._notices.warn(
                "trained",
                f"{name} is the reward that training maximises: it keeps rising while true "
                "quality falls. Watch a validation metric (val-core/...) instead",
            )
        point = CurvePoint(
            step=step,
            score=_number(data, name),
            stderr=_number(data, self.settings.stderr),
            n_items=self.settings.n_items,
            proxy=_number(data, self.settings.proxy),
            epoch_key=self._epoch_key,
            attempt=self._attempt,
            signals=trainer_signals(data),
        )
        if self._reporter is not None:
            self._reporter.report(metric=wanted, direction=self.settings.direction, **point)
        self._take(point)
        if self._pins is not None:
            self._pins.drop_losers()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_curve(self._folder, self._points)

    def _take(self, point: CurvePoint, *, judged: bool = True) -> None:
        self._points.append(point)
        if self._monitor is not None and judged:
            self.verdict = self._monitor.update(**point)
        score = point["score"]
        if self._pins is not None and score is not None:
            self._pins.scored(point["step"], self._sign * score, attempt=point.get("attempt", 0))

    def _asked(self) -> bool:
        if self._server_decides and self._reporter is not None:
            return self._reporter.should_stop()
        return self.verdict.alarm

    def _stop(self, step: int) -> None:
        if self.stopped_at is not None:
            return
        self.stopped_at = step
        reason = "the server asked for it" if self._server_decides else self.verdict.reason
        word = "stopping" if self.settings.stop else "would stop (stop=False)"
        self._notices.warn("stop", f"{word} at step {step}: {reason}")
        _logger.warning("evalstop: best saved checkpoint: %s", self.best_checkpoint or "none")
        if self.settings.stop:
            self._trainer.total_training_steps = step

    def _resume(self) -> None:
        """Take the curve of a run that is started again; a run that was stopped ends at once."""
        trainer = self.config.trainer
        known = [] if trainer.get("resume_mode") == "disable" else read_curve(self._folder)
        if not known:
            return
        self._attempt = 1 + max(point.get("attempt", 0) for point in known)
        horizon = _named_step(trainer)
        for point in known:
            self._take(point, judged=point["step"] <= horizon)
        if self._pins is not None:
            self._pins.detach_best()
        self._epoch_key = self._epoch_after(known[-1]["epoch_key"] or "")
        if self.settings.undo or not self.settings.stop or self._server_decides:
            self.verdict = Verdict()
        elif self.verdict.alarm:
            latest = Path(str(trainer.default_local_dir)) / "latest_checkpointed_iteration.txt"
            reached = int(latest.read_text(encoding="utf-8")) if latest.is_file() else 0
            trainer.total_training_steps = max(1, reached)
            self._notices.warn(
                "stopped",
                f"this run was stopped at step {known[-1]['step']} and stays stopped: "
                f"{self.verdict.reason}. +trainer.evalstop.undo=true trains on",
            )

    def _epoch_after(self, last: str) -> str | None:
        """Return the epoch key to go on with; undoing a stop opens an epoch that lasts."""
        base = self.settings.epoch_key or ""
        if self.settings.undo:
            return f"{base}{_UNDONE}{self._attempt}"
        return last if last.startswith(f"{base}{_UNDONE}") else self.settings.epoch_key

    def _fresh_monitor(self) -> Monitor:
        chosen = self.settings
        return Monitor(self._rule, direction=chosen.direction, job_type=chosen.job_type)


def is_whole(checkpoint: Path) -> bool:
    """Say whether a ``global_step_N`` folder holds the actor's weights, of every rank."""
    files = [path for path in (checkpoint / "actor").rglob("*") if path.suffix in _WEIGHTS]
    return bool(files) and not missing_ranks(files)


def _settings(config: Any) -> Settings:  # noqa: ANN401 -- omegaconf's own
    given = dict(config.trainer.get("evalstop") or {})
    try:
        return convert(given, Settings)
    except ValidationError as error:
        known = ", ".join(Settings.__struct_fields__)
        msg = (
            f"trainer.evalstop: {error}. Give +trainer.evalstop.metric=NAME and "
            f"+trainer.evalstop.direction=max|min; known settings: {known}"
        )
        raise InputError(msg) from error


def _named_step(trainer: Any) -> float:  # noqa: ANN401 -- omegaconf's own
    """Return the step of the checkpoint that the run was told to go on from, if it was told.

    Who names one goes back behind what came after it.
    """
    path = str(trainer.get("resume_from_path") or "").rstrip("/")
    named = trainer.get("resume_mode") == "resume_path" and _PREFIX in path
    return int(path.rpartition(_PREFIX)[2]) if named else math.inf


def _number(data: Mapping[str, Any], name: str | None) -> float | None:
    if name is None or data.get(name) is None:
        return None
    value = float(data[name])
    return value if math.isfinite(value) else None
