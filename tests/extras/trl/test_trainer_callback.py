"""The callback inside transformers' own Trainer: stop, pins, resume, failure, cost."""

from __future__ import annotations

import json
import logging
import time

import pytest
from safetensors.torch import load_file
from tiny_trainer import EVERY, HACKED, HEALTHY, STDERR, World, tiny_model, trainer

from evalstop import Monitor
from evalstop.client import EvalStopCallback
from evalstop.client.curve import read_curve
from evalstop.client.mitigation import lower_learning_rate, roll_back
from evalstop.client.transformers import load_weights
from evalstop.config.rules import parse_rule

BEST_STEP = EVERY * (HACKED.index(max(HACKED)) + 1)


def watched(**options) -> EvalStopCallback:
    return EvalStopCallback("eval_world", direction="max", **options)


def stop_step_of_monitor(scores: list[float], rule: str = "default") -> int | None:
    monitor = Monitor(parse_rule(rule), direction="max", job_type="other")
    for place, score in enumerate(scores, start=1):
        if monitor.update(score=score, step=EVERY * place, stderr=STDERR).alarm:
            return EVERY * place
    return None


@pytest.mark.parametrize("rule", ["default", "consecutive:k=2", "patience:k=3"])
def test_a_falling_run_stops_where_the_rule_says(tmp_path, rule):
    callback = watched(rule=rule)
    made = trainer(tmp_path, [World(HACKED), callback])
    made.train()
    assert made.state.global_step == stop_step_of_monitor(HACKED, rule)
    assert callback.stopped_at == made.state.global_step
    assert callback.verdict.best_step == BEST_STEP


def test_what_training_logs_beside_the_score_goes_with_it(tmp_path):
    callback = watched()
    made = trainer(tmp_path, [World(HEALTHY), callback])
    made.train()
    history = made.state.log_history
    logged = {line["step"]: line["grad_norm"] for line in history if "grad_norm" in line}
    points = read_curve(tmp_path / f"checkpoint-{made.state.global_step}")
    assert [point["step"] for point in points] == list(logged)
    assert [point["signals"] for point in points] == [{"grad_norm": x} for x in logged.values()]


def test_a_healthy_run_goes_to_its_end(tmp_path):
    callback = watched()
    made = trainer(tmp_path, [World(HEALTHY), callback])
    made.train()
    assert made.state.global_step == made.args.max_steps
    assert callback.stopped_at is None


def test_lower_is_better_where_the_script_says_so(tmp_path):
    callback = EvalStopCallback("eval_world", direction="min")
    made = trainer(tmp_path, [World([1 - score for score in HACKED]), callback])
    made.train()
    assert made.state.global_step == stop_step_of_monitor(HACKED)
    assert callback.verdict.best_score == pytest.approx(1 - max(HACKED))
    assert callback.best_checkpoint.name == f"checkpoint-{BEST_STEP}"


def test_advice_alone_stops_nothing(tmp_path, caplog):
    callback = watched(stop=False)
    made = trainer(tmp_path, [World(HACKED), callback])
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert made.state.global_step == made.args.max_steps
    assert callback.stopped_at == stop_step_of_monitor(HACKED)
    assert "would stop" in caplog.text


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("load_best", [False, True])
def test_the_best_checkpoint_outlives_the_trainers_rotation(tmp_path, limit, load_best):
    # eval_loss is what the trainer believes in: its best is another checkpoint than ours.
    more = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    callback = watched()
    made = trainer(
        tmp_path, [World(HACKED), callback], save_total_limit=limit, **(more if load_best else {})
    )
    made.train()
    assert not (tmp_path / f"checkpoint-{BEST_STEP}").exists()
    best = callback.best_checkpoint
    assert best == tmp_path / "evalstop" / f"checkpoint-{BEST_STEP}"
    state = json.loads((best / "trainer_state.json").read_text())
    assert state["global_step"] == BEST_STEP
    load_weights(tiny_model(), best)
    assert [path.name for path in (tmp_path / "evalstop").iterdir()] == [best.name]


def test_pins_take_no_bytes_while_the_original_lives(tmp_path):
    callback = watched()
    trainer(tmp_path, [World(HACKED), callback]).train()
    pinned = callback.best_checkpoint / "model.safetensors"
    original = tmp_path / f"checkpoint-{BEST_STEP}" / "model.safetensors"
    assert pinned.stat().st_ino == original.stat().st_ino


def test_a_best_that_was_never_saved_is_not_called_a_checkpoint(tmp_path):
    callback = watched()
    made = trainer(tmp_path, [World(HACKED), callback], save_steps=2 * EVERY)
    made.train()
    assert callback.verdict.best_step == BEST_STEP
    assert callback.best_checkpoint.name == f"checkpoint-{BEST_STEP + EVERY}"  # the best of 4, 8


@pytest.mark.parametrize("resumed_at", [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY])
@pytest.mark.parametrize("restore", [False, True])
def test_a_run_broken_off_anywhere_stops_where_it_would_have(tmp_path, resumed_at, restore):
    first = trainer(tmp_path, [World(HACKED), watched()], max_steps=20)
    first.args.max_steps = resumed_at
    first.train()
    callback = watched()
    again = trainer(
        tmp_path, [World(HACKED), callback], restore_callback_states_from_checkpoint=restore
    )
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == stop_step_of_monitor(HACKED)
    assert callback.best_checkpoint.name == f"checkpoint-{BEST_STEP}"


def test_a_rewind_takes_the_curve_back_with_it(tmp_path):
    trainer(tmp_path, [World(HACKED), watched()]).train()
    callback = watched()
    again = trainer(tmp_path, [World(HACKED[:2] + HEALTHY[2:]), callback])
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * EVERY}"))
    assert again.state.global_step == again.args.max_steps
    assert callback.verdict.best_score == max(HEALTHY)


def test_a_stopped_run_stays_stopped_until_undone(tmp_path):
    trainer(tmp_path, [World(HACKED), watched()]).train()
    stop = stop_step_of_monitor(HACKED)
    again = trainer(tmp_path, [World(HACKED), watched()])
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step <= stop + 1
    undone = trainer(tmp_path, [World(HEALTHY), watched(undo=True)], max_steps=stop + 1)
    undone.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))
    assert undone.state.global_step == stop + 1


def test_a_missing_metric_is_said_with_the_names_there_are(tmp_path, caplog):
    callback = EvalStopCallback("eval_wrld", direction="max")
    made = trainer(tmp_path, [World(HACKED), callback])
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert made.state.global_step == made.args.max_steps
    assert "'eval_wrld'" in caplog.text
    assert "metrics: eval_world" in caplog.text  # the nearest first


def test_nan_is_never_best_and_stops_nothing(tmp_path):
    scores = [*HEALTHY[:4], float("nan"), *HEALTHY[5:]]
    callback = watched()
    made = trainer(tmp_path, [World(scores), callback])
    made.train()
    assert made.state.global_step == made.args.max_steps
    assert callback.verdict.best_score == max(HEALTHY)


def test_whatever_breaks_inside_training_goes_on_visibly_unwatched(tmp_path, caplog, monkeypatch):
    def broken(*_args, **_kwargs):
        msg = "a rule that raises"
        raise RuntimeError(msg)

    monkeypatch.setattr(Monitor, "update", broken)
    made = trainer(tmp_path, [World(HACKED), watched()])
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert made.state.global_step == made.args.max_steps
    assert "unwatched: RuntimeError: a rule that raises" in caplog.text


def test_a_rule_that_needs_more_than_scores_is_said_to_be_off(tmp_path, caplog):
    made = trainer(tmp_path, [World(HACKED), watched(rule="stop-at:fraction=0.5")])
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert made.state.global_step == made.args.max_steps
    assert "unwatched" in caplog.text


class Suspicious:
    """A rule whose only finding is a suspicion, at the third evaluation."""

    def start(self):
        return 0

    def step(self, state, point):
        from evalstop.core.points import State, Verdict

        found = State.SUSPECT if state == 2 else State.OK
        return state + 1, Verdict(state=found, best_step=point.step, best_score=point.score)


def test_mitigation_acts_before_any_stop(tmp_path, monkeypatch):
    monkeypatch.setattr("evalstop.client.transformers.parse_rule", lambda _spec: Suspicious())
    seen = []

    def mitigate(suspicion):
        seen.append((suspicion.step, suspicion.best_checkpoint.name))
        before = load_file(suspicion.best_checkpoint / "model.safetensors")
        lower_learning_rate(0.1)(suspicion)
        roll_back()(suspicion)
        name, weights = next(iter(suspicion.model.named_parameters()))
        assert bool((before[name] == weights).all())
        seen.append(suspicion.optimizer.param_groups[0]["lr"])

    made = trainer(
        tmp_path,
        [World(HACKED), watched(on_suspect=mitigate)],
        lr_scheduler_type="constant",
    )
    made.train()
    assert seen == [(3 * EVERY, f"checkpoint-{2 * EVERY}"), pytest.approx(1e-4)]
    assert made.lr_scheduler.get_last_lr() == pytest.approx([1e-4, 1e-4])


def test_a_mitigation_that_fails_stops_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("evalstop.client.transformers.parse_rule", lambda _spec: Suspicious())

    def fails(_suspicion):
        raise OSError

    made = trainer(tmp_path, [World(HACKED), watched(on_suspect=fails)])
    with caplog.at_level(logging.WARNING, logger="evalstop.client"):
        made.train()
    assert made.state.global_step == made.args.max_steps
    assert "on_suspect failed: OSError" in caplog.text


def test_a_step_costs_less_than_a_millisecond_and_an_evaluation_less_than_five(tmp_path):
    # CPU time, which nobody else lengthens. Measured Nov 2026: 0.3 us a step, 0.1 ms an evaluation.
    callback = watched()
    made = trainer(tmp_path, [])
    args, state, control = made.args, made.state, made.control
    callback.on_train_begin(args, state, control)
    steps, evals = [], []
    for step in range(1, 201):
        state.global_step = step
        began = time.thread_time()
        callback.on_step_end(args, state, control)
        steps.append(time.thread_time() - began)
        began = time.thread_time()
        callback.on_evaluate(
            args, state, control, {"eval_world": 0.5 + step / 1000, "eval_world_stderr": 0.01}
        )
        evals.append(time.thread_time() - began)
    assert sorted(steps)[len(steps) // 2] < 1e-3
    assert sorted(evals)[len(evals) // 2] < 5e-3
