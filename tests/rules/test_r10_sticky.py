"""R09, R10, R20, R22: a stop outlives restarts and requeues, is told truly, undone by people."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_platform import eventually, platform_in

from evalstop.core.actions import Advise, Stop
from evalstop.core.events import EvalReported, JobStarted, JobSubmitted, OperatorCommanded
from evalstop.core.job import JobSpec
from evalstop.core.points import EvalPoint, Kind, State, Verdict
from evalstop.ports import Entry
from evalstop.service.explain import encode_record, explain
from evalstop.testing.custody import write_checkpoint

FALLING = (0.5, 0.9, 0.8, 0.7)

ENDINGS = {
    "dies of SIGTERM": ["sleep", "1000"],
    "exits 0": ["sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"],
    "exits 3": ["sh", "-c", "trap 'exit 3' TERM; sleep 1000 & wait"],
    "exits 143": ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"],
    "ignores SIGTERM and is killed": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
    "starts children": ["sh", "-c", "sleep 1000 & sleep 1000 & wait"],
}


@pytest.mark.parametrize("how", ENDINGS)
def test_however_a_stopped_job_ends_it_was_stopped_by_policy(platform, job, how):
    """R22: and is not tried again."""
    platform.submit(job, command=ENDINGS[how], grace_s=0.3, gpus=2)
    platform.until(job, "running")
    assert platform.report(job, *FALLING)["stop"] is True
    shown = platform.until(job, "stopped_by_policy")
    assert (shown["phase"], shown["attempt"]) == ("ended", 1)
    assert platform.submit(job, status=409)["error"].startswith(f"a job '{job}' is known")
    late = platform.report(job, 0.95, first=9)
    assert (late["ended"], late["stop"]) == (True, True), "a late report revives nothing"
    assert platform.get(f"/jobs/{job}")["outcome"] == "stopped_by_policy"


def test_a_person_that_stops_a_job_is_told_from_policy(platform, job):
    platform.submit(job)
    platform.until(job, "running")
    platform.post(f"/jobs/{job}/stop", {"note": "enough"})
    assert platform.until(job, "ended")["outcome"] == "cancelled"
    (decision,) = json.loads(platform.explain(job))["decisions"]
    assert decision["author"] == "ada"
    assert decision["reason"] == "ordered by ada; no rule asked for it"


def test_the_record_of_a_persons_stop_names_the_best_so_far(platform, job):
    platform.submit(job)
    platform.until(job, "running")
    platform.report(job, 0.5, 0.7, 0.6)
    platform.post(f"/jobs/{job}/stop", {"note": "enough"})
    platform.until(job, "ended")
    (decision,) = json.loads(platform.explain(job))["decisions"]
    assert decision["best"] == {"step": 2, "score": 0.7, "checkpoint": None}


def test_a_job_that_ends_by_itself_is_what_it_says(platform, job):
    platform.submit(job, command=["true"])
    platform.submit(f"{job}-bad", command=["false"])
    assert platform.until(job, "ended")["outcome"] == "completed"
    assert platform.until(f"{job}-bad", "ended")["outcome"] == "failed"


def test_a_stop_outlives_restarts_and_is_undone_from_its_best(tmp_path):
    """R09, R10: each of three lives of the controller tells the same story."""
    folder = tmp_path / "state"
    runs = tmp_path / "run"
    told = tmp_path / "told"
    script = f"env | grep EVALSTOP_ >> {told}; echo . >> {told}; sleep 1000"
    with platform_in(folder, end_jobs=False) as platform:
        platform.submit("a", checkpoints=str(runs), command=["sh", "-c", script])
        platform.until("a", "running")
        eventually(lambda: told.exists() and told.read_text().count(".\n") == 1)
        for step, score in enumerate(FALLING[:3], start=1):
            write_checkpoint(runs, step, values=step)
            platform.report("a", score, first=step)
    with platform_in(folder, end_jobs=False) as platform:
        assert platform.get("/jobs/a")["phase"] == "running", "the job never noticed"
        assert platform.report("a", FALLING[3], first=4)["stop"] is True
        platform.until("a", "stopped_by_policy")
        record = platform.explain("a")
        best = platform.get("/jobs/a/best")
        assert (best["best"]["step"], best["backed"]) == (2, True)
    with platform_in(folder) as platform:
        assert platform.get("/jobs/a")["outcome"] == "stopped_by_policy"
        assert platform.explain("a") == record, "byte for byte"
        assert platform.get("/jobs/a/best") == best
        assert platform.submit("a", status=409)
        answer = platform.post("/jobs/a/undo", {"note": "a mistake"})
        assert answer["resume_from"] == best["path"]
        platform.until("a", "running")
        eventually(lambda: told.read_text().count(".\n") == 2)
        environment = told.read_text().split(".\n")[1]
        assert f"EVALSTOP_RESUME_FROM={best['path']}" in environment
        assert "EVALSTOP_ATTEMPT=1" in environment
        assert "EVALSTOP_ATTEMPT=0" in told.read_text().split(".\n")[0]
        answer = platform.report("a", 0.6, 0.55, first=3, attempt=1)
        assert answer["stop"] is False, "the streak begins anew"
        assert platform.get("/jobs/a")["best"]["score"] == 0.9
        story = json.loads(platform.explain("a"))
        assert [(one["command"], one["actor"], one["note"]) for one in story["operators"]] == [
            ("undo", "ada", "a mistake")
        ]


NEEDED = {
    "kind", "time", "author", "rule", "reason", "state", "decline", "statistic", "threshold",
    "false_alarms", "best", "series", "left_out", "gpu_hours_used", "gpu_hours_saved", "policy",
}  # fmt: skip


def test_the_record_of_a_decision_says_everything(platform, job):
    """R20; R15: a conflicting report is pooled, and shown."""
    platform.submit(job, estimated_s=36_000.0, gpus=2, metric="accuracy")
    platform.until(job, "running")
    platform.report(job, 0.5, epoch_key="old")
    platform.report(job, 0.9, None, epoch_key="new", first=2)
    platform.report(job, 0.7, epoch_key="new", first=4, eval_id="one", n_items=100)
    platform.report(job, 0.5, epoch_key="new", first=4, eval_id="two", n_items=300)
    platform.report(job, 0.5, epoch_key="new", first=5)
    (decision,) = json.loads(platform.explain(job))["decisions"]
    assert decision.keys() >= NEEDED
    assert [point["step"] for point in decision["series"]] == [2, 4, 5]
    pooled = decision["series"][1]
    assert (pooled["score"], pooled["replicates"]) == (pytest.approx(0.55), 2)
    assert {(point["step"], point["why"]) for point in decision["left_out"]} == {
        (1, "another eval epoch"),
        (3, "no finite score"),
    }
    assert decision["gpu_hours_saved"] == pytest.approx(20.0, abs=0.2)
    assert "enforce" in decision["policy"]


finite = st.floats(-1e6, 1e6)
points = st.builds(
    EvalPoint,
    step=st.integers(0, 20),
    score=st.one_of(finite, st.just(float("nan"))),
    stderr=st.none() | st.floats(0.0, 10.0),
    attempt=st.integers(0, 2),
    epoch_key=st.sampled_from([None, "a", "b"]),
    eval_id=st.sampled_from([None, "x"]),
)
verdicts = st.builds(
    Verdict,
    state=st.sampled_from(State),
    statistic=st.floats(allow_nan=True),
    threshold=st.floats(allow_nan=True),
    best_step=st.integers(-1, 20),
    best_score=st.floats(allow_nan=True),
    kind=st.sampled_from(Kind),
)
stops = st.builds(Stop, job=st.just("j"), verdict=verdicts, best_step=st.integers(-1, 20))


@given(
    st.lists(
        st.tuples(points, st.none() | stops | st.builds(Advise, job=st.just("j"), action=stops)),
        max_size=12,
    ),
    st.sampled_from(["max", "min"]),
    st.none() | st.floats(1.0, 1e6),
)
def test_any_log_is_explained_in_the_same_bytes_with_nothing_that_json_cannot_hold(
    story, direction, estimated_s
):
    spec = JobSpec(id="j", labels={"direction": direction}, estimated_s=estimated_s)
    events = [JobSubmitted(time=0.0, job=spec), JobStarted(time=1.0, job="j", gpus=1)]
    actions = [(), ()]
    for time, (point, action) in enumerate(story, start=2):
        events.append(EvalReported(time=float(time), job="j", point=point))
        actions.append(() if action is None else (action,))
    events.append(OperatorCommanded(time=99.0, command="snooze", actor="ann", job="j"))
    actions.append(())
    log = [
        Entry(sequence=sequence, event=event, actions=done)
        for sequence, (event, done) in enumerate(zip(events, actions, strict=True), start=1)
    ]
    record = encode_record(explain(log, "j", false_alarms={}))
    assert encode_record(explain(iter(log), "j", false_alarms={})) == record

    def refuse(token):
        raise AssertionError(token)

    told = json.loads(record, parse_constant=refuse)
    assert len(told["decisions"]) == sum(action is not None for _, action in story)
    for decision in told["decisions"]:
        counted = sum(point.get("replicates", 1) for point in decision["series"])
        reports_so_far = int(decision["key"].partition(".")[0]) - 2
        left = [one for one in decision["left_out"] if one["why"] != "rewound by a restart"]
        assert counted + len(left) <= reports_so_far
