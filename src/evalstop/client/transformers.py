"""A callback for transformers' Trainer and every trainer of TRL.

```python
from evalstop.client import EvalStopCallback
trainer.add_callback(EvalStopCallback("eval_rewards/world/mean", direction="max"))
```

At each evaluation the first rank judges the curve so far; every rank then leaves at the same
step. The curve travels with each checkpoint, so that a resumed run goes on where it was, with no
option to remember (R09). The best checkpoint is pinned before the trainer's rotation can take it
(R05). If anything in here fails, training goes on,
visibly unwatched (R30).
"""

from __future__ import annotations

import logging
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from evalstop.client.curve import CurvePoint, read_curve, write_curve
from evalstop.client.mitigation import Suspicion
from evalstop.client.notices import Notices
from evalstop.client.pins import Pins
from evalstop.client.reporter import Reporter
from evalstop.client.watched import (
    JOB_TYPES,
    find,
    finite,
    nearest,
    proxy_value,
    standard_error,
    trained_reward,
)
from evalstop.client.wire import Destination
from evalstop.config.rules import parse_rule
from evalstop.core.points import State, Verdict
from evalstop.core.signals import trainer_signals
from evalstop.detectors.monitor import Monitor, sign_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evalstop.client.mitigation import Mitigation
    from evalstop.detectors.monitor import Direction

__all__ = ["EvalStopCallback", "load_weights"]

_logger = logging.getLogger("evalstop.client")

_BLIND_AFTER = 3
_LOOKED_BACK = 50
"""Lines of the trainer's log, from its end, in which a side signal is looked for."""


class _Decision(IntEnum):
    GO_ON = 0
    SUSPECT = 1
    STOP = 2


class EvalStopCallback(TrainerCallback):  # type: ignore[misc] # transformers ships no types
    """Stop a run whose held-out quality is falling, and keep its best checkpoint.

    Args:
        metric: the held-out metric to watch, as the trainer reports it.
        direction: "max" if higher is better, "min" if lower is. There is no default (R07).
        rule: any rule as `evalstop.parse_rule` reads it. By default the rule ``default`` decides
            in this process, unless EVALSTOP_URL and EVALSTOP_JOB_ID name a server: then scores
            are reported and the server decides.
        stderr: name of the metric that holds the standard error of ``metric``. By default a
            sibling ``METRIC_stderr``, or TRL's ``.../std`` over the root of the eval set's size.
        n_items: number of evaluated items, for scores that are shares.
        proxy: name of the training reward, if it is not one of TRL's own.
        job_type: rlhf, dpo, lora or other; by default read off the trainer's configuration.
        epoch_key: identity of the eval suite; scores compare within one key only.
        pin_best: keep hard links to the best checkpoint under ``OUTPUT_DIR/evalstop``.
        stop: False to advise only: the verdict is logged, training goes on.
        undo: True to train on from a checkpoint whose curve already asks for a stop.
        on_suspect: called once each time the verdict turns suspect, before any stop.

    Attributes:
        verdict: the newest verdict.
        stopped_at: step of the stop, or None.
    """

    def __init__(
        self,
        metric: str,
        *,
        direction: Direction,
        rule: str | None = None,
        stderr: str | None = None,
        n_items: int | None = None,
        proxy: str | None = None,
        job_type: str | None = None,
        epoch_key: str | None = None,
        pin_best: bool = True,
        stop: bool = True,
        undo: bool = False,
        on_suspect: Mitigation | None = None,
    ) -> None:
        self._sign = sign_of(direction)
        self._direction = direction
        destination = Destination.from_environment()
        self._reporter = Reporter(destination) if destination.url else None
        self._server_decides = self._reporter is not None and rule is None
        self._rule = parse_rule(rule or "default")
        self._metric = metric
        self._stderr = stderr
        self._n_items = n_items
        self._proxy = proxy
        self._job_type = job_type
        self._epoch_key = epoch_key
        self._pin_best = pin_best
        self._stop = stop
        self._undo = undo
        self._on_suspect = on_suspect
        self._monitor: Monitor | None = None
        self._pins: Pins | None = None
        self._points: dict[int, CurvePoint] = {}
        self._missing = 0
        self._suspected = False
        self._notices = Notices()
        self.verdict = Verdict()
        self.stopped_at: int | None = None

    @property
    def best_checkpoint(self) -> Path | None:
        """The pinned folder of the best checkpoint that was saved; None if there is none yet."""
        return None if self._pins is None else self._pins.best

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: object) -> None:  # noqa: ANN401 -- transformers ships no types
        """Rebuild the curve of a resumed run; a run that was stopped stays stopped (R10)."""
        decision = _Decision.GO_ON
        if state.is_world_process_zero:
            try:
                self._begin(args, state)
                if self.verdict.alarm and not self._server_decides and not self._undo:
                    decision = _Decision.STOP
            except Exception as error:  # noqa: BLE001 -- fail open
                self._notices.unwatched(error)
        self._carry_out(decision, args, state, control, {})

    def on_evaluate(
        self,
        args: Any,  # noqa: ANN401 -- transformers ships no types
        state: Any,  # noqa: ANN401 -- transformers ships no types
        control: Any,  # noqa: ANN401 -- transformers ships no types
        metrics: Mapping[str, object],
        **given: object,
    ) -> None:
        """Judge on the first rank; act on all."""
        decision = _Decision.GO_ON
        if state.is_world_process_zero:
            try:
                decision = self._judge(args, state, metrics)
            except Exception as error:  # noqa: BLE001 -- fail open
                self._notices.unwatched(error)
        self._carry_out(decision, args, state, control, given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: object) -> None:  # noqa: ANN401 -- transformers ships no types
        """Leave together when the server has asked for it; looked at once a logging interval."""
        if not self._server_decides or state.global_step % max(1, int(args.logging_steps)):
            return
        asked = self._reporter is not None and self._reporter.should_stop()
        decision = _Decision.STOP if asked else _Decision.GO_ON
        self._carry_out(decision, args, state, control, given)

    def on_save(self, args: Any, state: Any, _control: Any, **_: object) -> None:  # noqa: ANN401 -- transformers ships no types
        """Put the curve beside what was just saved, and pin it."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        checkpoint = Path(args.output_dir) / f"checkpoint-{step}"
        try:
            write_curve(checkpoint, self._points.values())
            if self._pins is not None and not self._pins.saved(step, checkpoint):
                self._notices.warn("unbacked", f"checkpoint-{step} is not whole and was not pinned")
        except Exception as error:  # noqa: BLE001 -- fail open
            self._notices.unwatched(error)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: object) -> None:  # noqa: ANN401 -- transformers ships no types
        """Say where the best checkpoint lies, and see reports off."""
        if not state.is_world_process_zero:
            return
        if self._pins is not None:
            self._pins.drop_losers()
        if self._reporter is not None:
            self._reporter.flush()
        if self.verdict.best_step >= 0:
            _logger.info(
                "evalstop: best %s %.6g at step %d; best saved checkpoint: %s",
                self._metric,
                self.verdict.best_score,
                self.verdict.best_step,
                self.best_checkpoint or "none",
            )

    def _begin(self, args: Any, state: Any) -> None:  # noqa: ANN401 -- transformers ships no types
        if self._job_type is None:
            name = type(args).__name__
            self._job_type = next(
                (kind for start, kind in JOB_TYPES.items() if name.startswith(start)), "other"
            )
        if not self._server_decides:
            self._monitor = Monitor(self._rule, direction=self._direction, job_type=self._job_type)
        if self._pin_best:
            self._pins = Pins(Path(args.output_dir) / "evalstop")
        self._resume(args, state)

    def _resume(self, args: Any, state: Any) -> None:  # noqa: ANN401 -- transformers ships no types
        known = read_curve(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        for point in known:
            self._judge_point(point)
        history = state.log_history
        for place, line in enumerate(history):
            step = line["step"]
            if find(self._metric, line) and step <= state.global_step and step not in self._points:
                self._judge_point(self._point(step, line, history[:place]))

    def _judge(self, args: Any, state: Any, metrics: Mapping[str, object]) -> _Decision:  # noqa: ANN401 -- transformers ships no types
        name = find(self._metric, metrics)
        if name is None:
            self._blind(metrics)
            return _Decision.GO_ON
        self._missing = 0
        if trained_reward(name, metrics, getattr(args, "reward_weights", None)):
            self._notices.warn(
                "trained",
                f"{name} is the reward that training maximises: it keeps rising while true "
                "quality falls. Watch a held-out metric instead (docs/how-to/trl.md)",
            )
        point = self._point(state.global_step, metrics, state.log_history)
        if self._reporter is not None:
            self._reporter.report(metric=self._metric, direction=self._direction, **point)
        self._judge_point(point)
        if self._server_decides:
            return _Decision.GO_ON
        if self.verdict.alarm:
            return _Decision.STOP
        return _Decision.SUSPECT if self.verdict.state is State.SUSPECT else _Decision.GO_ON

    def _point(self, step: int, metrics: Mapping[str, object], history: Any) -> CurvePoint:  # noqa: ANN401 -- the trainer's log
        name = find(self._metric, metrics)
        assert name is not None
        return CurvePoint(
            step=step,
            score=finite(metrics[name]),
            stderr=standard_error(name, metrics, given=self._stderr),
            n_items=self._n_items,
            proxy=proxy_value(name, metrics, history, given=self._proxy),
            epoch_key=self._epoch_key,
            signals=_side_signals(history),
        )

    def _judge_point(self, point: CurvePoint) -> None:
        self._points[point["step"]] = point
        if self._monitor is not None:
            self.verdict = self._monitor.update(**point)
        score = point["score"]
        if self._pins is not None and score is not None:
            self._pins.scored(point["step"], self._sign * score)

    def _carry_out(
        self,
        decision: _Decision,
        args: Any,  # noqa: ANN401 -- transformers ships no types
        state: Any,  # noqa: ANN401 -- transformers ships no types
        control: Any,  # noqa: ANN401 -- transformers ships no types
        given: Mapping[str, Any],
    ) -> None:
        from evalstop.client.torch import agree  # noqa: PLC0415 -- not before training begins

        ours = None if self._pins is None else self._pins.best_step
        best = -1 if ours is None else ours
        agreed, best = agree((int(decision), best), args.device)
        if agreed == _Decision.SUSPECT and not self._suspected and self._on_suspect is not None:
            folder = Path(args.output_dir) / "evalstop" / f"checkpoint-{best}"
            suspicion = Suspicion(
                step=state.global_step,
                args=args,
                state=state,
                control=control,
                model=given.get("model"),
                optimizer=given.get("optimizer"),
                lr_scheduler=given.get("lr_scheduler"),
                best_checkpoint=folder if best >= 0 else None,
            )
            try:
                self._on_suspect(suspicion)
            except Exception as error:  # noqa: BLE001 -- fail open
                self._notices.warn(
                    "mitigation", f"on_suspect failed: {type(error).__name__}: {error}"
                )
        self._suspected = agreed == _Decision.SUSPECT
        if agreed != _Decision.STOP or self.stopped_at is not None:
            return
        self.stopped_at = state.global_step
        if state.is_world_process_zero:
            reason = "the server asked for it" if self._server_decides else self.verdict.reason
            word = "stopping" if self._stop else "would stop (stop=False)"
            self._notices.warn("stop", f"{word} at step {state.global_step}: {reason}")
        if self._stop:
            control.should_training_stop = True

    def _blind(self, metrics: Mapping[str, object]) -> None:
        self._missing += 1
        if self._missing >= _BLIND_AFTER or self.verdict.best_step < 0:
            self._notices.warn(
                "blind",
                f"the watched metric {self._metric!r} was not in the last {self._missing} "
                f"evaluation(s), so this run is not watched; metrics: "
                f"{nearest(self._metric, metrics)}",
            )


def _side_signals(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the newest value of each side signal in the end of the trainer's log."""
    newest: dict[str, float] = {}
    for line in history[-_LOOKED_BACK:]:
        newest |= trainer_signals(line)
    return newest


def load_weights(model: Any, checkpoint: Path) -> None:  # noqa: ANN401 -- transformers ships no types
    """Load a checkpoint's safetensors (whole, sharded, or a PEFT adapter) into ``model``.

    Raises:
        FileNotFoundError: if the folder holds none.
    """
    from safetensors.torch import load_file  # noqa: PLC0415 -- comes with transformers

    weights: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(file)
    if not weights:
        msg = f"{checkpoint} holds no *.safetensors"
        raise FileNotFoundError(msg)
    if (checkpoint / "adapter_config.json").exists():
        from peft import set_peft_model_state_dict  # noqa: PLC0415 -- only where it is in use

        set_peft_model_state_dict(model, weights)
        return
    # Tied weights are saved once, so some names may be absent; unknown ones may not come in.
    unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
    if unexpected:
        msg = f"{checkpoint} holds weights that the model does not know: {unexpected[:3]}"
        raise ValueError(msg)
