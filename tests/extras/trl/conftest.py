"""A tiny causal language model, and trainers of it that run in a second."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import torch
from tiny_trainer import tiny_model


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_server(monkeypatch, tmp_path):
    for name in ("EVALSTOP_URL", "EVALSTOP_JOB_ID", "EVALSTOP_TOKEN", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EVALSTOP_FILE", str(tmp_path / "evals.jsonl"))


@pytest.fixture
def model():
    return tiny_model()
