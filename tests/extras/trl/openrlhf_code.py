"""OpenRLHF's own code, imported without the GPU packages that it imports.

``deepspeed``, ``flash_attn`` and ``vllm`` are empty stand-ins here: enough to import, not to train.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from pathlib import Path

import torch

_ABSENT = {"deepspeed", "flash_attn", "vllm"}


class _Empty(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):  # noqa: ARG002 -- the base's signature
        if fullname.split(".")[0] in _ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


def imported():
    """Return OpenRLHF's modules ppo_trainer, logging_utils and deepspeed; leave no stand-in."""
    stand = _Stand()
    sys.meta_path.insert(0, stand)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from openrlhf.trainer import ppo_trainer
            from openrlhf.utils import logging_utils
            from openrlhf.utils.deepspeed import deepspeed
    finally:
        sys.meta_path.remove(stand)
        for name in [name for name in sys.modules if name.split(".")[0] in _ABSENT]:
            del sys.modules[name]
    return ppo_trainer, logging_utils, deepspeed


def engine(deepspeed):
    """Return an engine whose save writes what DeepSpeed writes: a folder of shards by the tag."""

    class Engine(deepspeed.deepspeed.DeepSpeedEngine):
        step = 0.0

        def save_checkpoint(self, save_dir, tag, client_state, save_latest):
            folder = Path(save_dir) / tag
            folder.mkdir(parents=True, exist_ok=True)
            module = {"module": {"w": torch.tensor([self.step])}, **client_state}
            torch.save(module, folder / "mp_rank_00_model_states.pt")
            torch.save({}, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
            if save_latest:
                (Path(save_dir) / "latest").write_text(tag)

    return Engine()
