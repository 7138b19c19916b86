"""The embedded backend: jobs as processes of this machine.

Belongs here: the runs' folders, their supervisors, and what NVML says. Never here: other
backends, or who runs and who stops.
"""

from __future__ import annotations

from evalstop.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
