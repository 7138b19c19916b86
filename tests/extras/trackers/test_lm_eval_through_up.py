"""The real lm-evaluation-harness as evalstop's own evaluator, end to end through `evalstop up`.

A job saves checkpoints and reports nothing. `evaluate = "... lm_eval run ..."` scores each of them
in a process of its own, and what the rule sees is what the harness wrote. In CI the harness runs
its own dummy model, since this environment has no torch. Where torch and transformers are too, the
checkpoints are real: a tiny GPT-2 that learns twenty sums and then unlearns them, until the rule
stops its job.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evalstop
from evalstop.cli.remote import Remote
from evalstop.core.errors import EvalStopError

TASK = """
task: toy_sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/data.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: a
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""

DUMMY_JOB = """
import os, sys, time, zipfile
for step in (1, 2, 3):
    with zipfile.ZipFile(sys.argv[1] + "/aside", "w") as archive:
        archive.writestr("step", str(step))
    os.rename(sys.argv[1] + "/aside", f"{sys.argv[1]}/step-{step}.npz")
    time.sleep(0.2)
while not os.path.exists("over"):
    time.sleep(0.05)
"""

HF_JOB = """
import os, sys, time
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
torch.manual_seed(0)
torch.set_num_threads(1)
words = ["<eos>"] + [f"{i}+1=" for i in range(20)] + ["1", "2"]
plain = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<eos>"))
plain.pre_tokenizer = pre_tokenizers.Split(Regex("="), "merged_with_previous")
tokens = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", unk_token="<eos>")
config = GPT2Config(vocab_size=len(words), n_positions=16, n_embd=32, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
questions = torch.tensor([[1 + i] for i in range(20)])
right = torch.tensor([21 + i % 2 for i in range(20)])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def learn(answers, steps):
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(questions).logits[:, -1], answers)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
def save(step):
    aside, there = f"{sys.argv[1]}/aside-{step}", f"{sys.argv[1]}/checkpoint-{step}"
    model.save_pretrained(aside); tokens.save_pretrained(aside)
    os.rename(aside, there)
save(1)
learn(right, 200); save(2)
wrong = right.clone()
for step in range(3, 100):
    begin = min(20, 5 * (step - 3))
    wrong[begin:begin + 5] = 43 - wrong[begin:begin + 5]
    learn(wrong, 200); save(step)
    if step >= 6:
        break
while not os.path.exists("over"):
    time.sleep(0.05)
"""

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


class Up:
    """A real server whose evaluator is the harness."""

    def __init__(self, folder, model, rule):
        self.folder = folder
        rows = [{"q": f"{i}+1=", "choices": ["1", "2"], "a": i % 2} for i in range(20)]
        (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        (folder / "toy_sums.yaml").write_text(TASK.format(folder=folder))
        evaluate = (
            f"{sys.executable} -m lm_eval run {model} --tasks toy_sums --include_path {folder} "
            "--output_path {out} --seed 1"
        )
        (folder / "evalstop.toml").write_text(
            f"""
[cluster]
slots = 1
[policy]
mode = "enforce"
rule = "{rule}"
warn_s = 0
save_s = 0
[custody]
settle_s = 0.1
unscored = 10
[feedback]
every_s = 0.2
evaluate = '''{evaluate}'''
gpus = 0
"""
        )
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(
                [str(Path(evalstop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.server = subprocess.Popen(
            [sys.executable, "-m", "evalstop", "up", "--port", "0", "--dir", "state"],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        url = next(line.split()[3] for line in self.server.stderr if "listens at" in line)
        self.remote = Remote(url, folder / "state")

    def submit(self, program):
        (self.folder / "job.py").write_text(program)
        out = self.folder / "out"
        out.mkdir()
        self.remote.post(
            "/jobs",
            {
                "id": "a",
                "direction": "max",
                "metric": "acc",
                "job_type": "rlhf",
                "command": [sys.executable, str(self.folder / "job.py"), str(out)],
                "cwd": str(self.folder),
                "checkpoints": str(out),
                "grace_s": 1,
            },
        )

    def job(self):
        return self.remote.get("/jobs/a")

    def until(self, holds, within_s=600.0):
        deadline = time.monotonic() + within_s
        while not holds(self.job()):
            troubles = self.remote.get("/troubles")["troubles"]
            assert not [one for one in troubles if "given up" in one], troubles
            assert time.monotonic() < deadline, (self.job(), troubles)
            time.sleep(0.5)

    def down(self):
        self.server.kill()
        self.server.wait()
        self.server.stderr.close()
        for path in (self.folder / "state").rglob("process.json"):
            with contextlib.suppress(ProcessLookupError, EvalStopError):
                os.killpg(json.loads(path.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def up(tmp_path):
    made = []

    def make(model, rule):
        made.append(Up(tmp_path, model, rule))
        return made[-1]

    yield make
    (tmp_path / "over").touch()
    for one in made:
        one.down()


def _series(job):
    return {point["step"]: point for point in job["series"]}


def test_each_checkpoint_is_scored_by_the_harness_with_its_error(up):
    platform = up("--model dummy", "consecutive:k=9")
    platform.submit(DUMMY_JOB)
    platform.until(lambda job: set(_series(job)) == {1, 2, 3})
    for point in _series(platform.job()).values():
        # The harness' error of an accuracy over 20 questions: sqrt(p (1 - p) / 19).
        error = math.sqrt(point["score"] * (1 - point["score"]) / 19)
        assert point["stderr"] == pytest.approx(error, rel=1e-6)
        assert point["checkpoint"] == f"step-{point['step']}.npz"
    assert platform.job()["verdict"]["rule"] == "consecutive:k=9"
    assert platform.remote.get("/troubles")["troubles"] == []


if HAS_TORCH:

    def test_a_model_that_unlearns_is_stopped_by_its_scores(up):
        arguments = "--model hf --model_args pretrained={checkpoint},max_length=16 --device cpu"
        platform = up(arguments, "consecutive:k=2")
        platform.submit(HF_JOB)
        platform.until(lambda job: job["outcome"] == "stopped_by_policy", within_s=3000.0)
        job = platform.job()
        assert job["best"]["step"] == 2
        assert job["best"]["score"] == 1.0
        best = platform.remote.get("/jobs/a/best")
        assert best["backed"]
        assert Path(best["path"], "model.safetensors").exists()
