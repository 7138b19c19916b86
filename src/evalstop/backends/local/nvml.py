"""GPUs of this machine through NVML, where its Python package and a driver are there.

NVML numbers GPUs in the order of their PCI addresses; CUDA does so only under
``CUDA_DEVICE_ORDER=PCI_BUS_ID``, which every job is given along with its devices.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["gpu_names", "memory_in_use_mib", "why_none"]

_MIB = 1024 * 1024


def _library() -> tuple[Any | None, str]:
    """Return the package, ready to be asked, or None and why not."""
    try:
        pynvml: Any = import_module("pynvml")  # optional, and absent where there is no GPU
    except ImportError:
        return None, "its package is not installed: `pip install 'evalstop[gpu]'`"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, str(error)
    return pynvml, ""


def gpu_names() -> tuple[str, ...]:
    """Return the indices of the GPUs, as CUDA_VISIBLE_DEVICES takes them; empty if none."""
    library, _ = _library()
    if library is None:
        return ()
    try:
        return tuple(map(str, range(library.nvmlDeviceGetCount())))
    except library.NVMLError:
        return ()


def why_none() -> str:
    """Return why NVML shows no GPU, in words."""
    return _library()[1] or "it counts none"


def memory_in_use_mib(device: str) -> float | None:
    """Return MiB that processes use on a device, None where it cannot be known.

    What the driver keeps for itself does not count: it is some hundred MiB on an idle data centre
    GPU, and only the second version of the call tells it apart (driver 510 and newer).
    """
    library, _ = _library()
    if library is None or not device.isdigit():
        return None
    try:
        handle = library.nvmlDeviceGetHandleByIndex(int(device))
        return float(_memory(library, handle).used) / _MIB
    except library.NVMLError:
        return None


def _memory(library: Any, handle: Any) -> Any:  # noqa: ANN401 -- the package has no types
    version = getattr(library, "nvmlMemory_v2", None)
    if version is not None:
        try:
            return library.nvmlDeviceGetMemoryInfo(handle, version=version)
        except library.NVMLError:  # a driver that does not know it
            pass
    return library.nvmlDeviceGetMemoryInfo(handle)
