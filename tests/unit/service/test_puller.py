"""Scores pulled in from files and from the evaluator end up in the log, once each."""

from __future__ import annotations

import json
import threading

import pytest

from evalstop.config.settings import FeedbackSettings
from evalstop.core.errors import ReadError, StoreError
from evalstop.core.events import EvalReported, JobSubmitted, OperatorCommanded
from evalstop.core.points import EvalPoint
from evalstop.feedback.evaluator import Evaluator, EvaluatorSettings
from evalstop.ports import Launch, Pin, Reading
from evalstop.service.candidates import Candidates
from evalstop.service.puller import Puller, make_puller
from evalstop.service.sources import sources_of
from evalstop.testing.backend import eventually

LABELS = {"metric": "acc", "direction": "max"}


class Bench:
    def __init__(self, platform):
        self.platform = platform
        self.pullers = []

    def puller(self, sources_of_job=lambda _: (), **settings):
        """Return a puller of a controller that now takes turns in a thread of its own."""
        self.platform.controller.start()
        puller = Puller(self.platform.controller, sources_of_job, **settings)
        self.pullers.append(puller)
        return puller

    def following(self, launch=None):
        jobs = self.platform.controller.ledger.jobs
        return self.puller(lambda job: sources_of(jobs[job].spec, launch, []))

    def runs(self, job, **labels):
        self.platform.submit(job, labels=LABELS | labels)
        self.platform.look()  # capacity
        self.platform.look()  # the start

    def logged(self, job):
        return [
            (entry.event.point.step, entry.event.point.score)
            for entry in self.platform.store.read_job(job)
            if isinstance(entry.event, EvalReported)
        ]

    def pull(self, puller):
        puller.poll()
        puller.wait()


@pytest.fixture
def bench(platform):
    bench = Bench(platform)
    yield bench
    for puller in bench.pullers:
        puller.close()
    platform.controller.close()


def append(path, *scores):
    with path.open("a") as file:
        for step, score in scores:
            file.write(json.dumps({"step": step, "score": score}) + "\n")


def test_what_a_file_gains_is_logged_once(bench, tmp_path):
    path = tmp_path / "evals.jsonl"
    bench.runs("a", evals=str(path))
    puller = bench.following()
    bench.pull(puller)
    append(path, (1, 0.5), (2, 0.6))
    for _ in range(3):
        bench.pull(puller)
    append(path, (2, 0.6), (3, 0.7))
    bench.pull(puller)
    assert bench.logged("a") == [(1, 0.5), (2, 0.6), (3, 0.7)]


def test_a_restart_logs_nothing_twice(bench, tmp_path):
    path = tmp_path / "evals.jsonl"
    bench.runs("a", evals=str(path))
    append(path, (1, 0.5), (2, 0.6))
    bench.pull(bench.following())
    bench.platform.controller.close()
    bench.platform.restart()
    bench.pull(bench.following())
    assert bench.logged("a") == [(1, 0.5), (2, 0.6)]


def test_trainer_states_are_followed_where_the_checkpoints_are(bench, tmp_path):
    bench.runs("a")
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    state = {"log_history": [{"step": 5, "eval_acc": 0.4}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    bench.pull(bench.following(Launch(command=(), checkpoints=str(tmp_path))))
    assert bench.logged("a") == [(5, 0.4)]


def test_one_evaluation_in_two_files_counts_once(bench, tmp_path):
    path = tmp_path / "evals.jsonl"
    append(path, (5, 0.4))
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    state = {"log_history": [{"step": 5, "eval_acc": 0.4}]}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    bench.runs("a", evals=str(path))
    bench.pull(bench.following(Launch(command=(), checkpoints=str(tmp_path))))
    assert bench.logged("a") == [(5, 0.4)]


@pytest.mark.parametrize("label", ["metric", "direction"])
def test_a_job_that_does_not_say_what_to_watch_is_not_pulled_from(bench, tmp_path, label):
    path = tmp_path / "evals.jsonl"
    append(path, (1, 0.5))
    bench.runs("a", evals=str(path), **{label: ""})
    bench.pull(bench.following())
    assert bench.logged("a") == []


def test_what_a_job_wrote_last_is_read_after_its_end(bench, tmp_path):
    path = tmp_path / "evals.jsonl"
    bench.runs("a", evals=str(path))
    puller = bench.following()
    bench.pull(puller)
    append(path, (1, 0.5))
    bench.platform.backend.finish("a")
    bench.platform.carry_out.look().result(120)
    bench.pull(puller)
    assert bench.logged("a") == [(1, 0.5)]
    assert not puller._of_job


class Undone:
    """A job that is stopped by what its file says, and reopened."""

    def __init__(self, bench, path, folder):
        self.bench, self.platform, self.path, self.folder = bench, bench.platform, path, folder
        bench.runs("a", evals=str(path))
        self.platform.controller.start()
        self.begin()
        append(path, (1, 0.6), (2, 0.5), (3, 0.4))
        bench.pull(self.puller)
        self.look()
        assert self.platform.phase("a") == "stopped_by_policy"
        bench.pull(self.puller)

    def begin(self):
        self.puller = make_puller(
            FeedbackSettings(),
            controller=self.platform.controller,
            documents=self.platform.documents,
            store=self.platform.store,
            pins=Pins(),
            watches={},
            folder=self.folder,
        )
        self.bench.pullers.append(self.puller)

    def restart(self):
        self.platform.controller.close()
        self.platform.restart()
        self.platform.controller.start()
        self.begin()

    def look(self):
        self.platform.carry_out.look().result(120)
        self.platform.carry_out.tidy()

    def reopen(self, *, apart):
        if apart:
            self.puller.set_apart("a")

        def build(situation):
            order = OperatorCommanded(time=situation.now, command="undo", actor="ann", job="a")
            return [order, JobSubmitted(time=situation.now, job=situation.ledger.jobs["a"].spec)]

        self.platform.controller.ask(build).result(120)

    def run(self, *scores):
        for _ in range(3):
            self.look()
            self.bench.pull(self.puller)
        append(self.path, *scores)
        self.bench.pull(self.puller)

    @property
    def steps(self):
        return [step for step, _ in self.bench.logged("a")]


@pytest.fixture
def undone(bench, tmp_path):
    return Undone(bench, tmp_path / "evals.jsonl", tmp_path)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_what_a_file_said_before_an_undo_is_not_told_again(undone, apart, restarted):
    """Told again it would stop the job again, the moment it was reopened."""
    undone.reopen(apart=apart)
    if restarted:
        undone.restart()
    undone.run((4, 0.7))
    assert undone.platform.phase("a") == "running"
    assert undone.steps == [1, 2, 3, 4]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_run_repeated_after_an_undo_counts_though_it_gives_the_same_scores(undone, restarted):
    undone.reopen(apart=True)
    if restarted:
        undone.restart()
    undone.run((2, 0.5), (3, 0.4))
    assert undone.steps == [1, 2, 3, 2, 3]
    undone.run((2, 0.5), (3, 0.4))  # the same lines once more are the same reports
    assert undone.steps == [1, 2, 3, 2, 3]


def test_a_run_repeated_into_a_new_file_counts(undone):
    undone.reopen(apart=True)
    undone.path.write_text("")
    undone.run((1, 0.6), (2, 0.5))
    assert undone.steps == [1, 2, 3, 1, 2]


def test_sources_that_cannot_be_read_keep_nobody_from_an_undo(bench, tmp_path):
    puller = bench.puller(lambda _: [Fails()], documents=bench.platform.documents)
    bench.runs("a", evals=str(tmp_path / "none"))
    puller.set_apart("a")
    assert not puller._apart


class Fails:
    def readings(self):
        source = "there"
        raise ReadError(source, "is on fire")


class Hangs:
    def __init__(self):
        self.go = threading.Event()
        self.calls = 0

    def readings(self):
        self.calls += 1
        self.go.wait(120)
        return []


class Says:
    def __init__(self, *readings):
        self.waiting = list(readings)

    def readings(self):
        waiting, self.waiting = self.waiting, []
        return waiting


def reading(job, step, score, metric=""):
    return Reading(job=job, point=EvalPoint(step=step, score=score), metric=metric)


def test_a_source_that_fails_or_hangs_holds_up_no_other(bench):
    bench.runs("a")
    hangs = Hangs()
    puller = bench.puller(shared=[Fails(), hangs, Says(reading("a", 1, 0.5))])
    for _ in range(5):
        puller.poll()
    eventually(lambda: bench.logged("a") == [(1, 0.5)], 120)
    assert hangs.calls == 1
    eventually(lambda: any("is on fire" in trouble for trouble in puller.troubles()), 120)
    hangs.go.set()


def test_a_source_that_recovers_is_no_trouble_any_more(bench):
    bench.runs("a")
    source = Fails()
    puller = bench.puller(shared=[source])
    bench.pull(puller)
    assert puller.troubles()
    source.readings = list
    bench.pull(puller)
    assert not puller.troubles()


def test_scores_of_jobs_nobody_knows_are_left_out(bench):
    bench.runs("a")
    puller = bench.puller(shared=[Says(reading("x", 1, 0.5), reading("a", 1, 0.6))])
    bench.pull(puller)
    assert bench.logged("a") == [(1, 0.6)]
    assert not puller.troubles()


def test_a_metric_that_is_never_there_is_told_with_its_nearest(bench, tmp_path):
    path = tmp_path / "evals.jsonl"
    path.write_text('{"step": 1, "eval/accuracy": 0.5, "eval/loss": 1.0}\n')
    bench.runs("a", evals=str(path), metric="eval/acuracy")
    puller = bench.following()
    bench.pull(puller)
    (trouble,) = puller.troubles()
    assert "job 'a' is blind" in trouble
    assert "Did you mean 'eval/accuracy'?" in trouble


class Pins:
    """Custody as the evaluator needs it."""

    def __init__(self):
        self.of = {}

    def pins(self, job):
        return self.of.get(job, [])


def test_checkpoints_in_custody_are_evaluated_and_a_confirming_eval_is_a_replicate(bench, tmp_path):
    custody = Pins()
    bench.runs("a")
    controller = bench.platform.controller
    settings = EvaluatorSettings(
        command="""sh -c 'echo "{{\\"score\\": 0.$1, \\"stderr\\": 0.1}}"' score {step}""",
        folder=tmp_path,
    )
    candidates = Candidates(controller, custody)
    puller = bench.puller(shared=[Evaluator(settings, candidates)])
    custody.of["a"] = [
        Pin(job="a", step=step, name=f"checkpoint-{step}", path=str(tmp_path)) for step in (2, 4)
    ]

    def has(count):
        bench.pull(puller)
        return len(bench.logged("a")) == count

    eventually(lambda: has(2), 120)
    assert bench.logged("a") == [(2, 0.2), (4, 0.4)]
    controller.ledger.jobs["a"].repeats[4] = 1
    eventually(lambda: has(3), 120)
    assert bench.logged("a")[-1] == (4, 0.4)
    for _ in range(5):
        bench.pull(puller)
    assert len(bench.logged("a")) == 3


@pytest.mark.parametrize("refusals", [1, 3])
def test_what_cannot_be_written_now_is_told_when_it_can(bench, tmp_path, refusals):
    path = tmp_path / "evals.jsonl"
    bench.runs("a", evals=str(path))
    puller = bench.following()
    append(path, (1, 0.5))
    bench.pull(puller)
    append_entries, left = bench.platform.store.append, refusals

    def full(entries):
        nonlocal left
        if left:
            message = "the disk is full"
            raise StoreError(message)
        append_entries(entries)

    bench.platform.store.append = full
    for step in range(2, 2 + refusals):
        append(path, (step, 0.5 + step / 10))
        bench.pull(puller)
        assert any("full" in words for words in puller.troubles())
        assert len(bench.logged("a")) == 1
    left = 0
    append(path, (9, 0.9))
    bench.pull(puller)
    bench.pull(puller)
    expected = [(1, 0.5), *((n, 0.5 + n / 10) for n in range(2, 2 + refusals)), (9, 0.9)]
    assert bench.logged("a") == expected
    assert puller.troubles() == []
    bench.platform.controller.close()
    bench.platform.restart()
    bench.pull(bench.following())
    assert bench.logged("a") == expected
