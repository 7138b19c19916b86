"""Torn checkpoints are not checkpoints, wherever they tore (R06)."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from evalstop.core.errors import TornCheckpointError
from evalstop.custody import find, inspect, to_keep
from evalstop.testing.custody import write_checkpoint, write_safetensors


def test_a_whole_one_is_whole(tmp_path):
    found = inspect(write_checkpoint(tmp_path, 10))
    assert found.files == ("model.safetensors", "optimizer.pt", "trainer_state.json")
    assert found.digest == inspect(write_checkpoint(tmp_path / "again", 10)).digest
    assert found.digest != inspect(write_checkpoint(tmp_path, 11)).digest


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_file_cut_at_any_byte_is_found(tmp_path, name):
    path = write_checkpoint(tmp_path, 10)
    whole = (path / name).read_bytes()
    for cut in range(len(whole)):
        (path / name).write_bytes(whole[:cut])
        with pytest.raises(TornCheckpointError):
            inspect(path)
    (path / name).write_bytes(whole)
    inspect(path)


def test_bytes_too_many_are_found(tmp_path):
    path = tmp_path / "model-5.safetensors"
    write_safetensors(path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(TornCheckpointError, match="expected"):
        inspect(path)


def test_a_sentinel_says_incomplete(tmp_path):
    path = write_checkpoint(tmp_path, 10)
    (path / "checkpoint-is-incomplete.txt").touch()
    with pytest.raises(TornCheckpointError, match="says it is incomplete"):
        inspect(path)


def test_a_missing_completion_marker_is_missed(tmp_path):
    path = write_checkpoint(tmp_path, 10)
    with pytest.raises(TornCheckpointError, match="completion marker"):
        inspect(path, marker="DONE")
    (path / "DONE").touch()
    inspect(path, marker="DONE")


def test_a_missing_shard_is_missed(tmp_path):
    path = write_checkpoint(tmp_path, 10)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TornCheckpointError, match="00002-of-00002"):
        inspect(path)
    write_safetensors(path / "model-00002-of-00002.safetensors")
    inspect(path)


def verl_checkpoint(folder, ranks, world=2):
    """Write what verl's FSDP ranks and its driver write."""
    (folder / "actor").mkdir(parents=True)
    shards = [f"actor/{kind}_world_size_{world}_rank_{r}.pt" for kind in KINDS for r in ranks]
    for name in [*shards, "data.pt"]:
        with (folder / name).open("wb") as file:
            np.savez(file, a=np.zeros(2))
    return folder


KINDS = ("model", "optim", "extra_state")


def test_a_rank_that_has_not_written_is_missed(tmp_path):
    inspect(verl_checkpoint(tmp_path / "global_step_10", [0, 1]))
    with pytest.raises(TornCheckpointError, match="actor/extra_state_world_size_2_rank_1"):
        inspect(verl_checkpoint(tmp_path / "global_step_20", [0]))


def test_what_verls_rotation_leaves_is_no_checkpoint(tmp_path):
    """The actor's folder goes, ``global_step_N/data.pt`` stays."""
    with pytest.raises(TornCheckpointError, match="no weights"):
        inspect(verl_checkpoint(tmp_path / "global_step_10", []))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", b'{"global_step": '),
        ("model.safetensors", b"\xff" * 200),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]"),
        ("model.safetensors.index.json", b"{}"),
        ("optimizer.pt", b"\x80\x02 a pickle of old"),
    ],
)
def test_rubbish_is_torn_and_never_an_exception_of_another_kind(tmp_path, name, content):
    path = write_checkpoint(tmp_path, 10)
    (path / name).write_bytes(content)
    with pytest.raises(TornCheckpointError):
        inspect(path)


def test_folders_without_weights_and_missing_ones_are_none(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    for name in ("checkpoint-5", "checkpoint-6"):
        with pytest.raises(TornCheckpointError):
            inspect(tmp_path / name)


def test_checkpoints_are_found_by_the_names_trainers_use(tmp_path):
    write_checkpoint(tmp_path, 500)
    for name in ("global_step200", "step_300", "tmp-checkpoint-7", ".aside-9", "checkpoint-8.tmp"):
        (tmp_path / name).mkdir()
    np.savez(tmp_path / "policy-0040.npz", w=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "epoch=3-step=600.ckpt", "w") as archive:
        archive.writestr("x", "y")
    (tmp_path / "events-123.log").touch()
    (tmp_path / "config.json").touch()
    assert [(one.step, one.name) for one in find(tmp_path)] == [
        (40, "policy-0040.npz"),
        (200, "global_step200"),
        (300, "step_300"),
        (500, "checkpoint-500"),
        (600, "epoch=3-step=600.ckpt"),
    ]
    assert find(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("pinned", "scores", "options", "kept"),
    [
        ([10, 20, 30], {}, {}, {10, 20, 30}),
        ([10, 20, 30, 40], {10: 0.1, 20: 0.9, 30: 0.5, 40: 0.2}, {}, {20, 40}),
        ([10, 20], {10: 0.0, 20: -0.5}, {}, {10, 20}),  # zero is a score, and better
        ([10, 20, 30], {10: -2.0, 20: -1.0, 30: -3.0}, {}, {20, 30}),
        ([10, 20, 30], {10: 0.5, 20: 0.5, 30: 0.1}, {}, {10, 30}),  # ties: the earlier
        ([1, 2, 3, 4, 5, 6], {1: 0.9}, {"unscored": 2}, {1, 5, 6}),
        ([10, 20, 30, 40], {10: 1, 20: 2, 30: 3, 40: 0}, {"top": 2}, {20, 30, 40}),
        ([10, 20, 30], {10: 0.1, 20: 0.9, 30: 0.5}, {"always": [10, 99]}, {10, 20, 30}),
        ([], {10: 0.5}, {}, set()),
    ],
)
def test_best_and_last_stay(pinned, scores, options, kept):
    assert to_keep(pinned, scores, **options) == kept
