"""The training side: what a training script imports to be watched.

Belongs here: reporting of scores, and one callback a trainer, each in the module named for it.
Never: anything that makes a training run slower, fail, or import more than it asked for.
``import evalstop.client`` loads the standard library only, and little of that; the callbacks
load on first use (PEP 562).

```python
from evalstop.client import EvalStopCallback, report, should_stop
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalstop.client.reporter import Reporter as Reporter
    from evalstop.client.reporter import flush as flush
    from evalstop.client.reporter import report as report
    from evalstop.client.reporter import should_stop as should_stop
    from evalstop.client.transformers import EvalStopCallback as EvalStopCallback

_HOME = {
    "EvalStopCallback": "transformers",
    "Reporter": "reporter",
    "flush": "reporter",
    "report": "reporter",
    "should_stop": "reporter",
}
"""Public name: the module of this package that defines it."""

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module 'evalstop.client' has no attribute {name!r}; names: {', '.join(_HOME)}"
        raise AttributeError(msg)
    value = getattr(import_module(f"evalstop.client.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
