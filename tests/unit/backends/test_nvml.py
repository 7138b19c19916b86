"""The real `pynvml`, on a machine without NVML and over a library that answers as a driver does."""

from __future__ import annotations

import ctypes
import sys

import pynvml
import pytest

from evalstop.backends.local.nvml import gpu_names, memory_in_use_mib, why_none
from evalstop.config.settings import Settings
from evalstop.core.errors import InputError
from evalstop.service.opening import open_backend

MIB = 1024 * 1024
RESERVED, USED = 700 * MIB, 12 * MIB


class Driver:
    """What `pynvml` calls in libnvidia-ml.so.1; struct layouts are its own."""

    def __init__(self, *, gpus=2, memory_v2=True, counting=pynvml.NVML_SUCCESS):
        self.gpus, self.memory_v2, self.counting = gpus, memory_v2, counting

    def __getattr__(self, name):
        if not name.startswith("nvml") or (name.endswith("MemoryInfo_v2") and not self.memory_v2):
            raise AttributeError(name)
        return getattr(self, f"_{name}")

    def _nvmlInitWithFlags(self, _flags):  # noqa: N802 -- the library's names
        return pynvml.NVML_SUCCESS

    def _nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = self.gpus
        return self.counting

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        number = index.value if isinstance(index, ctypes.c_uint) else index
        if number >= self.gpus:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        handle._obj.contents = pynvml.struct_c_nvmlDevice_t()
        return pynvml.NVML_SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, _handle, memory):  # noqa: N802
        memory._obj.used = RESERVED + USED  # as NVML documents it: "reserved and allocated"
        return pynvml.NVML_SUCCESS

    def _nvmlDeviceGetMemoryInfo_v2(self, _handle, memory):  # noqa: N802
        assert memory._obj.version == pynvml.nvmlMemory_v2
        memory._obj.reserved, memory._obj.used = RESERVED, USED
        return pynvml.NVML_SUCCESS

    def _nvmlErrorString(self, _code):  # noqa: N802
        return b"as the driver says"


@pytest.fixture
def driver(monkeypatch):
    def use(**fields):
        monkeypatch.setattr(pynvml, "nvmlLib", Driver(**fields))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    return use


@pytest.fixture
def no_driver(monkeypatch):
    """Wherever the test runs: the library is not there."""

    def refuse(name, *_args, **_fields):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", refuse)


@pytest.mark.usefixtures("no_driver")
def test_without_nvml_slots_are_asked_for_and_why_is_told(tmp_path):
    assert (gpu_names(), memory_in_use_mib("0")) == ((), None)
    with pytest.raises(InputError, match=r"NVML Shared Library Not Found.*set cluster\.slots"):
        open_backend(Settings(), tmp_path)


def test_without_its_package_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (gpu_names(), memory_in_use_mib("0")) == ((), None)
    with pytest.raises(InputError, match=r"evalstop\[gpu\].*set cluster\.slots"):
        open_backend(Settings(), tmp_path)


def test_gpus_are_counted_and_become_the_backends_devices(driver, tmp_path):
    driver(gpus=3)
    assert gpu_names() == ("0", "1", "2")
    assert open_backend(Settings(), tmp_path).listing().gpus == 3


def test_what_the_driver_keeps_for_itself_is_not_in_use(driver):
    driver()
    assert memory_in_use_mib("1") == 12.0


def test_a_driver_that_cannot_tell_them_apart_gives_what_it_has(driver):
    driver(memory_v2=False)
    assert memory_in_use_mib("1") == 712.0


@pytest.mark.parametrize("device", ["7", "slot-a", ""])
def test_a_device_that_nvml_does_not_know_is_unknown(driver, device):
    driver()
    assert memory_in_use_mib(device) is None


def test_a_driver_that_fails_after_its_start_shows_no_gpu(driver, tmp_path):
    driver(counting=pynvml.NVML_ERROR_UNKNOWN)
    assert gpu_names() == ()
    assert why_none() == "it counts none"
    with pytest.raises(InputError, match="NVML shows"):
        open_backend(Settings(), tmp_path)
