"""GPUs of this machine through NVML, where its Python package and a driver are there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["gpu_names", "memory_in_use_mib"]

_MIB = 1024 * 1024


def _library() -> Any | None:  # noqa: ANN401 -- the package has no types
    try:
        pynvml: Any = import_module("pynvml")  # optional, and absent where there is no GPU
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def gpu_names() -> tuple[str, ...]:
    """Return the indices of the GPUs, as CUDA_VISIBLE_DEVICES takes them; empty if none."""
    library = _library()
    count = library.nvmlDeviceGetCount() if library is not None else 0
    return tuple(map(str, range(count)))


def memory_in_use_mib(device: str) -> float | None:
    """Return MiB in use on a device, None where it cannot be known."""
    library = _library()
    if library is None or not device.isdigit():
        return None
    try:
        handle = library.nvmlDeviceGetHandleByIndex(int(device))
        return float(library.nvmlDeviceGetMemoryInfo(handle).used) / _MIB
    except library.NVMLError:
        return None
