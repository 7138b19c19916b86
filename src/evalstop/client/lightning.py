"""A callback for Lightning's Trainer.

```python
from evalstop.client.lightning import EvalStopLightning
Trainer(callbacks=[EvalStopLightning("win_rate", direction="max")])
```

After each validation the first rank judges the curve so far; its decision is broadcast, and every
rank leaves after the same batch (R21). The curve is part of the callback's state, which Lightning
keeps in every checkpoint and gives back on resume. Checkpoints are left to Lightning's own
`ModelCheckpoint` (R26): watch the same metric there to keep the best. If anything in here fails,
training goes on, visibly unwatched (R30).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from evalstop.client.curve import CurvePoint
from evalstop.client.notices import Notices
from evalstop.client.watched import standard_error
from evalstop.config.rules import parse_rule
from evalstop.core.points import Verdict
from evalstop.core.signals import trainer_signals
from evalstop.detectors.monitor import Monitor, sign_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evalstop.detectors.monitor import Direction

__all__ = ["EvalStopLightning"]

_VERSION = 1
_FITTING = "fit"


class EvalStopLightning(Callback):  # type: ignore[misc] # lightning's types are not required
    """Stop a run whose held-out quality is falling.

    Args:
        metric: name of the logged validation metric.
        direction: "max" if higher is better, "min" if lower is. There is no default (R07).
        rule: any rule as `evalstop.parse_rule` reads it.
        stderr: name of the logged standard error of the metric; by default ``METRIC_stderr``.
        n_items: number of evaluated items, for scores that are shares.
        proxy: name of the logged training reward, if there is one.
        job_type: rlhf, dpo, lora or other: which entry of a rule map applies.

    Attributes:
        verdict: the newest verdict, on the first rank.
        stopped_at: global step of the stop, or None.
    """

    def __init__(
        self,
        metric: str,
        *,
        direction: Direction,
        rule: str = "default",
        stderr: str | None = None,
        n_items: int | None = None,
        proxy: str | None = None,
        job_type: str = "other",
    ) -> None:
        super().__init__()
        sign_of(direction)
        self._metric = metric
        self._rule = parse_rule(rule)
        self._direction: Direction = direction
        self._stderr = stderr
        self._n_items = n_items
        self._proxy = proxy
        self._job_type = job_type
        self._points: list[CurvePoint] = []
        self._monitor: Monitor | None = None
        self._notices = Notices()
        self.verdict = Verdict()
        self.stopped_at: int | None = None

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002 -- lightning's types are not required
        """Judge on the first rank; act on all."""
        if trainer.sanity_checking or trainer.fast_dev_run or trainer.state.fn != _FITTING:
            return
        alarmed = False
        if trainer.is_global_zero:
            try:
                alarmed = self._judge(trainer)
            except Exception as error:  # noqa: BLE001 -- fail open
                self._notices.unwatched(error)
        if not trainer.strategy.broadcast(alarmed, src=0):
            return
        if self.stopped_at is None:
            self.stopped_at = trainer.global_step
        trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the curve, for Lightning's checkpoints."""
        return {"version": _VERSION, "points": list(self._points)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the curve back.

        Raises:
            ValueError: if a newer evalstop wrote it.
        """
        if state_dict["version"] != _VERSION:
            msg = f"the checkpoint's curve has version {state_dict['version']}: update evalstop"
            raise ValueError(msg)
        self._points = list(state_dict["points"])
        self._monitor = None

    def _judge(self, trainer: Any) -> bool:  # noqa: ANN401 -- lightning's types are not required
        metrics = _numbers(trainer.callback_metrics)
        if self._metric not in metrics:
            names = ", ".join(sorted(metrics)) or "none"
            self._notices.warn("blind", f"{self._metric!r} was not logged; there is: {names}")
            return False
        if self._monitor is None:
            self._monitor = Monitor(self._rule, direction=self._direction, job_type=self._job_type)
            for point in self._points:
                self._monitor.update(**point)
        point = CurvePoint(
            step=int(trainer.global_step),
            score=metrics[self._metric],
            stderr=standard_error(self._metric, metrics, given=self._stderr),
            n_items=self._n_items,
            proxy=None if self._proxy is None else metrics.get(self._proxy),
            epoch_key=None,
            signals=trainer_signals(metrics),
        )
        self._points.append(point)
        self.verdict = self._monitor.update(**point)
        if self.verdict.alarm:
            self._notices.warn("stop", f"stopping at step {point['step']}: {self.verdict.reason}")
        return self.verdict.alarm


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return logged metrics, tensors of one number among them; None where one is not finite."""
    values = {name: float(value) for name, value in metrics.items()}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
