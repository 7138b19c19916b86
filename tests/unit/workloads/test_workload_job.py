"""A workload gives back the jobs it was made of, in order of submission."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec
from evalstop.workloads.job import SimJob, Workload

reals = st.floats(-1e6, 1e6)
positives = st.floats(1e-3, 1e6)


@st.composite
def sim_jobs(draw):
    count = draw(st.integers(0, 4))
    series = st.lists(reals, min_size=count, max_size=count)
    delays = st.lists(st.floats(0, 1e3), max_size=2)
    maybe = st.none() | series if count else st.none()
    gpus = draw(st.integers(1, 8))
    return SimJob(
        spec=JobSpec(
            id=str(draw(st.integers(0, 99))),
            tenant=draw(st.sampled_from(["", "a", "b"])),
            job_type=draw(st.sampled_from(["rlhf", "dpo"])),
            gpus=gpus,
            min_gpus=draw(st.none() | st.integers(1, gpus)),
            max_gpus=draw(st.none() | st.integers(gpus, 16)),
            estimated_s=draw(st.none() | positives),
            labels=draw(st.just({}) | st.just({"queue": "x"})),
        ),
        submit_s=draw(st.floats(0, 1e6)),
        duration_s=draw(positives),
        eval_offsets=draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count).map(sorted)),
        eval_steps=draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count)),
        scores=draw(series),
        true_scores=draw(series),
        stderrs=draw(maybe),
        proxies=draw(maybe),
        losses=draw(maybe),
        deliveries=draw(st.none() | st.lists(delays, min_size=count, max_size=count))
        if count
        else None,
        replicates=draw(
            st.none()
            | st.lists(st.lists(reals, min_size=2, max_size=2), min_size=count, max_size=count)
        )
        if count
        else None,
        hacking=draw(st.booleans()),
        peak_s=draw(positives),
        fails_at_s=draw(st.none() | positives),
    )


def sent_at_once(job, *, nested):
    """Deliveries that no job has are None; those of a job among others that has some are 0."""
    if job.deliveries is None and nested:
        return [[0.0]] * len(job.scores)
    return job.deliveries


def known_replicates(job):
    """What a job without any has beside jobs that have some is NaN."""
    rows = job.replicates or [()] * len(job.scores)
    return [[score for score in row if score == score] for row in rows]  # noqa: PLR0124 -- NaN


@given(st.lists(sim_jobs(), max_size=6, unique_by=lambda job: job.spec.id))
def test_from_jobs_gives_back_the_same_jobs_in_order_of_submission(jobs):
    workload = Workload.from_jobs(jobs)
    nested = any(job.deliveries is not None for job in jobs)
    expected = sorted(jobs, key=lambda job: job.submit_s)
    assert len(workload) == len(jobs)
    assert workload.evals == sum(len(job.scores) for job in jobs)
    for index, (got, want) in enumerate(zip(workload, expected, strict=True)):
        for name in SimJob.__struct_fields__:
            if name == "deliveries":
                assert got.deliveries == sent_at_once(want, nested=nested)
            elif name == "replicates":
                assert known_replicates(got) == known_replicates(want)
            elif name in {"stderrs", "proxies", "losses"} and not want.scores:
                assert not getattr(got, name)
            else:
                assert getattr(got, name) == getattr(want, name), name
        assert str(workload.job(index)) == str(got)  # NaN differs from itself
        assert workload.job_id(index) == want.spec.id


def flat(jobs=3, **changes):
    columns = {
        "submit_s": np.arange(float(jobs)),
        "duration_s": np.ones(jobs),
        "gpus": np.ones(jobs, dtype=np.int64),
        "hacking": np.zeros(jobs, dtype=bool),
        "peak_s": np.ones(jobs),
        "tenant": np.zeros(jobs, dtype=np.int64),
        "job_type": np.zeros(jobs, dtype=np.int64),
        "bounds": np.zeros(jobs + 1, dtype=np.int64),
        "eval_offsets": np.zeros(0),
        "eval_steps": np.zeros(0, dtype=np.int64),
        "scores": np.zeros(0),
        "true_scores": np.zeros(0),
    }
    return Workload(**(columns | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": np.ones(2, dtype=np.int64)}, "gpus must have 3 entries, got 2"),
        ({"estimated_s": np.ones(4)}, "estimated_s must have 3 entries"),
        ({"scores": np.ones(1)}, "scores must have 0 entries"),
        ({"delivery_bounds": np.zeros(2)}, "delivery_bounds must have 1 entries"),
        ({"submit_s": np.array([0.0, 2.0, 1.0])}, "order of submission"),
        ({"duration_s": np.array([1.0, 0.0, 1.0])}, "duration above 0"),
        ({"gpus": np.array([1, 0, 1])}, "at least one GPU"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        flat(**changes)


@pytest.mark.parametrize("offsets", [[1.0, 3.0, 2.0], [1.0, float("nan"), 2.0]])
def test_evaluations_of_a_job_must_not_go_back(offsets):
    def jobs(*all_offsets):
        return [
            SimJob(
                spec=JobSpec(id=str(place)),
                submit_s=0.0,
                duration_s=9.0,
                eval_offsets=made,
                eval_steps=range(len(made)),
                scores=[0.5] * len(made),
                true_scores=[0.5] * len(made),
            )
            for place, made in enumerate(all_offsets)
        ]

    fine = [[4.0, 5.0], [], [1.0, 1.0, 3.0], [2.0]]
    assert Workload.from_jobs(jobs(*fine)).evals == 6
    with pytest.raises(InputError, match="job 4 of 6 must not fall"):
        Workload.from_jobs(jobs(*fine, offsets, [0.0]))


@given(jobs=st.lists(sim_jobs(), max_size=5, unique_by=lambda job: job.spec.id))
def test_a_simulator_is_given_the_same_jobs_but_their_true_scores(jobs):
    def plain(job):
        fields = {name: getattr(job, name) for name in job.__struct_fields__}
        columns = ("eval_offsets", "eval_steps", "scores", "stderrs", "proxies", "losses")
        for name in columns:
            fields[name] = None if fields[name] is None else list(fields[name])
        return fields

    workload = Workload.from_jobs(jobs)
    reported = list(workload.reported())
    assert [len(job.true_scores) for job in reported] == [0] * len(jobs)
    expected = [plain(job) | {"true_scores": ()} for job in workload]
    assert repr([plain(job) for job in reported]) == repr(expected)  # NaN is no equal of itself


def test_jobs_without_names_are_numbered():
    assert [job.spec.id for job in flat()] == ["0", "1", "2"]
    assert flat().job_id(2) == "2"


@pytest.mark.parametrize("index", [-1, 3])
def test_a_job_that_is_not_there_raises_index_error(index):
    with pytest.raises(IndexError, match=f"job {index} of 3"):
        flat().job(index)


def test_iteration_crosses_chunks():
    count = 2500
    workload = flat(count)
    assert [job.submit_s for job in workload] == [float(i) for i in range(count)]


def test_nan_in_part_of_a_job_stays():
    job = SimJob(
        spec=JobSpec(id="a"),
        submit_s=0.0,
        duration_s=2.0,
        eval_offsets=[1.0, 2.0],
        eval_steps=[1, 2],
        scores=[0.5, float("nan")],
        true_scores=[0.5, 0.6],
        stderrs=[float("nan"), 0.1],
    )
    again = Workload.from_jobs([job]).job(0)
    assert np.isnan(again.scores[1])
    assert again.stderrs is not None
    assert np.isnan(again.stderrs[0])
