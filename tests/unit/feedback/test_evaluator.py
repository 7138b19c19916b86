"""evalstop's own evaluator, with real processes that score, fail, hang and talk nonsense."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from evalstop.core.errors import InputError
from evalstop.feedback.evaluator import Candidate, Evaluator, EvaluatorSettings
from evalstop.feedback.scores import Watch
from evalstop.testing import FakeClock
from evalstop.testing.backend import eventually

WATCH = Watch(job="team/run 1", metric="acc", direction="max")


class Bench:
    """An evaluator, the checkpoints it sees, and the script it runs."""

    def __init__(self, tmp_path, **settings):
        self.folder = tmp_path
        self.script = tmp_path / "score.sh"
        self.runs = tmp_path / "runs"
        self.clock = FakeClock()
        self.candidates = []
        self.settings = settings
        self.watch = WATCH
        self.says('{"score": 0.6, "stderr": 0.01, "n_items": 500}')
        self.evaluator = self.opened()

    def opened(self):
        settings = EvaluatorSettings(
            **{
                "command": f"sh {self.script} {{checkpoint}} {{step}} {{seed}} {{out}}",
                "folder": self.folder / "evals",
                **self.settings,
            }
        )
        return Evaluator(settings, lambda: list(self.candidates), monotonic=self.clock.monotonic)

    def does(self, script):
        self.script.write_text(f'echo "$2" >> {self.runs}\n{script}\n')

    def says(self, text):
        self.does(f"cat << 'END'\n{text}\nEND")

    def checkpoint(self, step, repeat=0):
        path = self.folder / f"checkpoint-{step}"
        path.mkdir(exist_ok=True)
        self.candidates.append(Candidate(watch=self.watch, step=step, path=path, repeat=repeat))

    def ran(self):
        return [int(each) for each in self.runs.read_text().split()] if self.runs.exists() else []

    def collect(self, count=1, within_s=180.0):
        found = []

        def enough():
            found.extend(self.evaluator.readings())
            return len(found) >= count

        eventually(enough, within_s)
        return found

    def fail(self, tries):
        """Let ``tries`` runs end without a score."""
        for _ in range(tries):
            eventually(lambda: self.evaluator.readings() == [] and not self.evaluator._running, 180)
            self.clock.advance(1000)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.evaluator.close()


def test_each_checkpoint_gets_one_score(bench):
    bench.checkpoint(10)
    (reading,) = bench.collect()
    assert (reading.job, reading.metric) == ("team/run 1", "")
    point = reading.point
    assert (point.step, point.score, point.stderr, point.n_items) == (10, 0.6, 0.01, 500)
    assert point.checkpoint == "checkpoint-10"
    assert point.epoch_key.startswith("command ")
    bench.checkpoint(20)
    assert [r.point.step for r in bench.collect()] == [20]
    for _ in range(5):
        assert bench.evaluator.readings() == []
    assert bench.ran() == [10, 20]


def test_a_restart_tells_scores_again_and_runs_nothing_twice(bench):
    bench.checkpoint(10)
    before = bench.collect()
    bench.evaluator = bench.opened()
    assert bench.collect() == before
    assert bench.evaluator.readings() == []
    assert bench.ran() == [10]


def test_another_command_is_another_suite_and_starts_over(bench):
    bench.checkpoint(10)
    (before,) = bench.collect()
    bench.settings["command"] = f"sh {bench.script} {{checkpoint}} {{step}} 1 {{out}}"
    bench.evaluator = bench.opened()
    (after,) = bench.collect()
    assert bench.ran() == [10, 10]
    assert before.point.epoch_key != after.point.epoch_key


def test_polling_never_waits(bench):
    bench.does("sleep 600")
    bench.checkpoint(10)
    for _ in range(10):
        assert bench.evaluator.readings() == []
    assert bench.evaluator.under_way() == 1


def test_a_hanging_evaluation_is_killed_with_its_children_and_tried_again(bench, tmp_path):
    child = tmp_path / "child"
    bench.does(f"sleep 300 & echo $! > {child}; wait")
    bench.checkpoint(10)
    assert bench.evaluator.readings() == []
    eventually(lambda: child.exists() and child.read_text().strip(), 180)
    bench.clock.advance(3601)
    assert bench.evaluator.readings() == []
    stat = Path(f"/proc/{child.read_text().strip()}/stat")
    eventually(lambda: _is_dead(stat), 180)
    bench.says('{"score": 0.5}')
    bench.clock.advance(11)
    assert [r.point.score for r in bench.collect()] == [0.5]


def _is_dead(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo out of memory >&2; exit 3", "exit code 3: out of memory"),
        ("kill -9 $$", "exit code -9"),
        ("echo hello", "expected a last line such as"),
        ("true", "expected a last line such as"),
        ("echo '{\"score\": '", "expected a last line such as"),
        ("echo '[1, 2]'", "expected a last line such as"),
        ('echo \'{"score": "high"}\'', "expected a number as score, got 'high'"),
        ("echo '{\"accuracy\": 0.5}'", "no metric 'acc'; there are: accuracy. Did you mean"),
        ("cat $1/noise", "expected a last line such as"),
        ("mkdir $4/m; echo '{\"results\": ' > $4/m/results_1.json", "not valid JSON"),
    ],
)
def test_what_gives_no_score_is_tried_three_times_and_told(bench, script, why):
    bench.does(script)
    bench.checkpoint(10)
    (bench.candidates[0].path / "noise").write_bytes(random.Random(1).randbytes(3_000_000))
    bench.evaluator.readings()
    bench.fail(4)
    assert bench.ran() == [10, 10, 10]
    problem = bench.evaluator.problems["team/run 1", 10]
    assert "given up after 3 tries" in problem
    assert why in problem


def test_a_command_that_is_not_there_is_told(tmp_path):
    bench = Bench(tmp_path, command="no-such-program-here {checkpoint}")
    bench.checkpoint(10)
    bench.fail(4)
    assert "cannot be run" in bench.evaluator.problems["team/run 1", 10]


def test_a_failing_checkpoint_holds_up_no_other(bench):
    bench.does('test "$2" = 10 && exit 1; echo \'{"score": 0.7}\'')
    bench.checkpoint(10)
    bench.checkpoint(20)
    assert [r.point.step for r in bench.collect()] == [20]


def test_a_pause_lies_between_tries(bench):
    bench.does("exit 1")
    bench.checkpoint(10)
    for advance, runs in [(0, 1), (9, 1), (2, 2), (19, 2), (2, 3), (1000, 3)]:
        bench.clock.advance(advance)
        bench.evaluator.readings()
        eventually(lambda: bench.evaluator.readings() == [] and not bench.evaluator._running, 180)
        assert len(bench.ran()) == runs


def test_evaluations_stay_within_their_own_gpus(tmp_path):
    bench = Bench(tmp_path, devices=("4", "5", "6"), gpus=2)
    go = tmp_path / "go"
    bench.does(
        f'while [ ! -e {go} ]; do sleep 0.02; done; echo "{{\\"score\\": 1, '
        '\\"eval_id\\": \\"$CUDA_VISIBLE_DEVICES\\"}"'
    )
    for step in (10, 20, 30):
        bench.checkpoint(step)
    for _ in range(3):
        bench.evaluator.readings()
    assert bench.evaluator.under_way() == 1
    go.touch()
    found = bench.collect(3)
    assert [r.point.step for r in found] == [10, 20, 30]
    assert {r.point.eval_id for r in found} == {"4,5"}


def test_as_many_run_side_by_side_as_is_allowed(tmp_path):
    bench = Bench(tmp_path, at_once=2)
    bench.does("sleep 600")
    for step in (10, 20, 30):
        bench.checkpoint(step)
    bench.evaluator.readings()
    assert bench.evaluator.under_way() == 2
    bench.evaluator.close()
    assert bench.evaluator.under_way() == 0


def test_an_extra_evaluation_is_a_replicate_with_another_seed(bench):
    bench.does('echo "{\\"score\\": 0.$3$EVALSTOP_EVAL_SEED}"')
    bench.checkpoint(10)
    bench.checkpoint(10, repeat=1)
    found = bench.collect(2)
    assert sorted((r.point.eval_id or "", r.point.score) for r in found) == [
        ("", 0.0),
        ("repeat-1", 0.11),
    ]


def test_the_last_object_counts_whatever_else_is_printed(bench):
    bench.says('loading {"score": 0}\n{"score": 0.1}\n{"acc": 0.62, "acc_stderr": 0.02}\nbye')
    bench.checkpoint(10)
    (reading,) = bench.collect()
    assert (reading.point.score, reading.point.stderr) == (0.62, 0.02)


def test_items_are_kept_for_paired_comparisons(bench):
    bench.says('{"score": 0.5, "items": [1, 0, 1, 0]}')
    bench.checkpoint(10)
    (reading,) = bench.collect()
    assert reading.point.items == (1.0, 0.0, 1.0, 0.0)
    assert reading.point.n_items == 4


def test_a_score_that_is_nan_is_a_result(bench):
    bench.says('{"score": NaN}')
    bench.checkpoint(10)
    (reading,) = bench.collect()
    assert math.isnan(reading.point.score)


def test_lower_is_better_is_turned(bench):
    bench.watch = Watch(job="j", metric="ppl", direction="min")
    bench.says('{"ppl": 12.5}')
    bench.checkpoint(10)
    (reading,) = bench.collect()
    assert reading.point.score == -12.5


def harness_says(bench, *tasks):
    results = {
        "results": {
            task: {"alias": task, "acc,none": 0.61, "acc_stderr,none": 0.012} for task in tasks
        },
        "higher_is_better": {task: {"acc": True} for task in tasks},
        "n-samples": {task: {"original": 500, "effective": 500} for task in tasks},
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": dict.fromkeys(tasks, 0),
        "model_name": "/pins/0a1b",
    }
    bench.does(f"mkdir $4/m && cat > $4/m/results_2026.json << 'END'\n{json.dumps(results)}\nEND")


def test_a_metric_of_several_tasks_has_to_be_named_in_full(bench):
    bench.watch = Watch(job="j", metric="acc", direction="max")
    harness_says(bench, "toy", "other")
    bench.checkpoint(10)
    bench.fail(tries=3)
    assert "there are: other/acc, toy/acc" in bench.evaluator.problems["j", 10]


@pytest.mark.parametrize("metric", ["toy/acc", "acc"])
def test_results_of_the_harness_are_read_with_their_error(bench, metric):
    bench.watch = Watch(job="j", metric=metric, direction="max")
    harness_says(bench, "toy")
    bench.checkpoint(10)
    (reading,) = bench.collect()
    point = reading.point
    assert (point.step, point.score, point.stderr, point.n_items) == (10, 0.61, 0.012, 500)
    assert point.epoch_key == "toy version 1.0, 0 shots"


def test_an_evaluation_that_outlived_its_controller_is_ended_first(bench):
    bench.does("sleep 300")
    bench.checkpoint(10)
    bench.evaluator.readings()
    (running,) = bench.evaluator._running.values()
    eventually(bench.ran, 180)  # the shell has opened the script that is now replaced
    bench.says('{"score": 0.6}')
    killed = bench.evaluator  # its controller was killed: nobody closes it
    bench.evaluator = bench.opened()
    assert [r.point.score for r in bench.collect()] == [0.6]
    assert running.process.wait(180) == -9
    killed._running.clear()


def test_a_pid_that_is_now_anothers_is_left_alone(bench):
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    bench.checkpoint(10)
    place = bench.evaluator._place(bench.candidates[0])
    place.mkdir(parents=True)
    (place / "kept.json").write_text(json.dumps({"tries": 1, "pid": stranger.pid, "began": "1"}))
    assert len(bench.collect()) == 1
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_half_a_record_on_disk_costs_one_evaluation(bench):
    bench.checkpoint(10)
    bench.collect()
    place = bench.evaluator._place(bench.candidates[0])
    (place / "kept.json").write_text('{"tries": ')
    bench.evaluator = bench.opened()
    assert len(bench.collect()) == 1


@pytest.mark.parametrize(
    "command", ["", "  ", "score '", "score {ckpt}", "score {", "score {0}", "score {job.x}"]
)
def test_a_command_that_cannot_be_used_is_refused_at_once(tmp_path, command):
    with pytest.raises(InputError, match=r"evaluate|expected a command"):
        Evaluator(EvaluatorSettings(command=command, folder=tmp_path), list)


def test_odd_values_stay_one_argument(tmp_path):
    program = (
        "import json, sys; print(json.dumps({'score': len(sys.argv), 'eval_id': sys.argv[1]}))"
    )
    (tmp_path / "p.py").write_text(program)
    bench = Bench(tmp_path, command=f"{sys.executable} {tmp_path}/p.py --at={{checkpoint}} {{job}}")
    odd = tmp_path / "check point; $(id)"
    odd.mkdir()
    bench.candidates = [Candidate(watch=WATCH, step=1, path=odd)]
    (reading,) = bench.collect()
    assert reading.point.score == 3
    assert reading.point.eval_id == f"--at={odd}"
    assert odd.name == reading.point.checkpoint


def test_what_is_being_evaluated_is_known(bench):
    bench.does("sleep 300")
    bench.checkpoint(10)
    assert bench.evaluator.in_use(bench.watch.job) == set()
    bench.evaluator.readings()
    assert bench.evaluator.in_use(bench.watch.job) == {10}
    assert bench.evaluator.in_use("other") == set()
    bench.evaluator.close()


def test_a_failure_is_told_in_its_own_words_not_by_a_progress_bar(bench):
    bench.does(r"printf 'ValueError: no such task\n\r 40%%|##  | 4/10 [00:01<00:02]' >&2; exit 1")
    bench.checkpoint(10)
    bench.fail(tries=3)
    assert "ValueError: no such task" in bench.evaluator.problems[bench.watch.job, 10]
