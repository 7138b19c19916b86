"""evalstop: stop fine-tuning runs whose held-out quality is falling, keep their best checkpoint.

The names below are the public surface; each is imported on first use (PEP 562), so that
``import evalstop`` inside a training run costs next to nothing. Whatever is not listed here may
change without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalstop import schedulers as schedulers
    from evalstop.config.rules import parse_rule as parse_rule
    from evalstop.config.schedulers import parse_scheduler as parse_scheduler
    from evalstop.core.actions import Action as Action
    from evalstop.core.detector import Detector as Detector
    from evalstop.core.errors import EvalStopError as EvalStopError
    from evalstop.core.errors import InputError as InputError
    from evalstop.core.events import Event as Event
    from evalstop.core.job import JobSpec as JobSpec
    from evalstop.core.kernel import Kernel as Kernel
    from evalstop.core.points import EvalPoint as EvalPoint
    from evalstop.core.points import Verdict as Verdict
    from evalstop.core.policy import Policy as Policy
    from evalstop.detectors.combine import After as After
    from evalstop.detectors.combine import AllOf as AllOf
    from evalstop.detectors.combine import AnyOf as AnyOf
    from evalstop.detectors.combine import Confirm as Confirm
    from evalstop.detectors.consecutive import ConsecutiveDecline as ConsecutiveDecline
    from evalstop.detectors.monitor import Monitor as Monitor
    from evalstop.detectors.scan import Scan as Scan
    from evalstop.policies.evalstop import EvalStop as EvalStop
    from evalstop.policies.rules import Rules as Rules
    from evalstop.sim.simulate import simulate as simulate
    from evalstop.traces.replay import replay as replay
    from evalstop.workloads import scenarios as scenarios

__version__ = "0.1.0"

_HOME = {
    "Action": "core.actions",
    "After": "detectors.combine",
    "AllOf": "detectors.combine",
    "AnyOf": "detectors.combine",
    "Confirm": "detectors.combine",
    "ConsecutiveDecline": "detectors.consecutive",
    "Detector": "core.detector",
    "EvalPoint": "core.points",
    "EvalStop": "policies.evalstop",
    "EvalStopError": "core.errors",
    "Event": "core.events",
    "InputError": "core.errors",
    "JobSpec": "core.job",
    "Kernel": "core.kernel",
    "Monitor": "detectors.monitor",
    "Policy": "core.policy",
    "Rules": "policies.rules",
    "Scan": "detectors.scan",
    "Verdict": "core.points",
    "parse_rule": "config.rules",
    "parse_scheduler": "config.schedulers",
    "replay": "traces.replay",
    "simulate": "sim.simulate",
}
"""Public name: the module under ``evalstop`` that defines it."""

_MODULES = {"scenarios": "workloads.scenarios", "schedulers": "schedulers"}
"""Public name: a whole module under ``evalstop``."""

__all__ = ["__version__", *_HOME, *_MODULES]  # noqa: PLE0604 -- the table above is the one list of names


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"evalstop.{_MODULES[name]}")
    if name not in _HOME:
        msg = f"module 'evalstop' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    value = getattr(import_module(f"evalstop.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
