"""Small clusters whose right schedule can be worked out by hand, or by trying everything."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.config.schedulers import SCHEDULERS, parse_scheduler
from evalstop.core.actions import Preempt, Start
from evalstop.core.errors import SpecError
from evalstop.core.job import JobSpec, JobView, Phase
from evalstop.schedulers.goodput import efficiency, goodput, noise_from_efficiency
from evalstop.schedulers.loss_aware import LossCurve
from evalstop.schedulers.pollux import Pollux
from evalstop.schedulers.shortest import SrsfEst, SrtfEst
from evalstop.schedulers.tiresias import Tiresias
from evalstop.sim.simulator import Simulator
from evalstop.workloads.job import SimJob, Workload


def job(name, submit, duration, gpus=1, estimate="right", **extra):
    return SimJob(
        spec=JobSpec(id=name, gpus=gpus, estimated_s=duration if estimate == "right" else estimate),
        submit_s=float(submit),
        duration_s=float(duration),
        **extra,
    )


def spans(jobs, spec, gpus):
    """Return first start and end of each job."""
    workload = Workload.from_jobs(jobs)
    policy = parse_scheduler(spec) if isinstance(spec, str) else spec
    log = Simulator(workload, gpus=gpus, policy=policy).run()
    names = [workload.job_id(i) for i in range(len(workload))]
    return {name: (log.first_start_s[i], log.end_s[i]) for i, name in enumerate(names)}


def test_easy_backfilling_fills_the_gap_before_the_reservation_and_the_spare_gpus():
    ran = spans(
        [
            job("runs", 0, 100, gpus=3),
            job("head", 1, 50, gpus=3),  # reserved from 100 on; one GPU is spare beside it
            job("too long and wide", 2, 200, gpus=2),
            job("short", 3, 90, gpus=1),
            job("spare", 4, 500, gpus=1),
        ],
        "fifo-backfill",
        gpus=4,
    )
    assert ran["short"] == (3.0, 93.0)
    assert ran["head"] == (100.0, 150.0)
    assert ran["spare"] == (93.0, 593.0)
    assert ran["too long and wide"][0] == 150.0


def test_a_job_without_estimate_backfills_into_spare_gpus_only():
    jobs = [
        job("runs", 0, 100, gpus=3),
        job("head", 1, 50, gpus=4),
        job("unknown", 2, 10, gpus=1, estimate=None),
    ]
    assert spans(jobs, "fifo-backfill", gpus=4)["unknown"][0] == 150.0
    jobs[1] = job("head", 1, 50, gpus=3)
    assert spans(jobs, "fifo-backfill", gpus=4)["unknown"][0] == 2.0


def test_a_job_past_its_estimate_is_taken_to_end_now():
    ran = spans(
        [
            job("late", 0, 100, gpus=3, estimate=10.0),
            job("head", 1, 50, gpus=4),
            job("short", 20, 5, gpus=1),
        ],
        "fifo-backfill",
        gpus=4,
    )
    assert ran["short"][0] == 150.0  # would delay a head that is due now


def test_least_attained_service_demotes_in_the_instant_of_the_crossing():
    ran = spans(
        [job("old", 0, 100, gpus=2), job("new", 40, 100, gpus=2)],
        Tiresias(limits=(50.0, 1e9)),
        gpus=2,
    )
    # old crosses 50 GPU-seconds at 25; new comes at 40 into the first queue, preempts, crosses
    # at 65 and goes behind old, which waits at the front of the second queue.
    assert ran["new"][0] == 40.0
    assert ran["old"] == (0.0, 125.0)
    assert ran["new"][1] == 200.0


def test_a_starving_job_is_promoted():
    def jobs():
        return [
            job("starved", 0, 30, gpus=1),
            *(job(f"new {i}", 10 + 5 * i, 5, gpus=1) for i in range(20)),
        ]

    limits = (5.0, 1e9)
    plain = spans(jobs(), Tiresias(limits=limits), gpus=1)["starved"][1]
    promoted = spans(jobs(), Tiresias(limits=limits, promote=2.0), gpus=1)["starved"][1]
    assert plain == 130.0  # last of all
    assert promoted < plain


@pytest.mark.parametrize("limits", ["5/5", "0/3", "-1", "x"])
def test_limits_that_do_not_increase_are_refused(limits):
    with pytest.raises(SpecError, match="limits"):
        parse_scheduler(f"tiresias:limits={limits}")


def test_the_loss_curve_predicts_its_own_kind_exactly():
    curve = LossCurve(decay=0.9)
    assert curve.predicted_fall(1.0) == math.inf
    losses = [1.0 + 4.0 / (k + 1) for k in range(6)]
    for loss in losses:
        curve.hear(loss)
    curve.hear(float("nan"))
    fall = curve.predicted_fall(3.0)
    extent = losses[0] - losses[-1]
    assert fall == pytest.approx(4.0 * (1 / 8 - 1 / 11) / extent)


def test_gpus_go_where_the_loss_still_falls():
    def learner(name, submit, losses):
        return job(
            name,
            submit,
            len(losses) * 10.0,
            eval_offsets=[10.0 * (i + 1) for i in range(len(losses))],
            eval_steps=list(range(1, len(losses) + 1)),
            scores=[0.0] * len(losses),
            true_scores=[0.0] * len(losses),
            losses=losses,
        )

    flat = learner("flat", 0, [1.0] * 20)
    steep = learner("steep", 1, [2.0 / (k + 1) for k in range(20)])
    ran = spans([flat, steep], "loss-aware:epoch_s=50", gpus=1)
    assert ran["steep"] == (51.0, 251.0)
    assert ran["flat"][1] == 400.0


def view(name, gpus=1, fewest=1, most=8, phase=Phase.RUNNING):
    return JobView(
        id=name,
        tenant="",
        job_type="other",
        gpus=gpus,
        min_gpus=fewest,
        max_gpus=most,
        estimated_s=None,
        labels={},
        submitted_at=0.0,
        phase=phase,
        held_gpus=gpus,
    )


def test_twins_share_alike():
    assert Pollux().allocate([view("a"), view("b")], 8) == {"a": 4, "b": 4}


def test_rigid_jobs_get_their_gang_in_order_and_nobody_blocks():
    jobs = [view(name, gpus, gpus, gpus) for name, gpus in (("a", 3), ("b", 8), ("c", 4))]
    assert Pollux().allocate(jobs, 8) == {"a": 3, "c": 4}


@given(
    noises=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=3),
    gangs=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    gpus=st.integers(3, 10),
    sync=st.floats(0.0, 0.5),
)
def test_no_allocation_is_fitter_than_the_greedy_one(noises, gangs, gpus, sync):
    scheduler = Pollux(sync=sync)
    jobs = [view(str(i), gangs[i], 1, 6) for i in range(len(noises))]
    scheduler._noise = {str(i): noise for i, noise in enumerate(noises)}

    def total(counts):
        return sum(scheduler.cost(one, count) for one, count in zip(jobs, counts, strict=True))

    greedy = total(scheduler.allocate(jobs, gpus).values())
    best = min(
        total(counts)
        for counts in itertools.product(range(1, 7), repeat=len(jobs))
        if sum(counts) <= gpus
    )
    assert greedy == pytest.approx(best, rel=1e-9)


def test_a_further_gpu_is_not_taken_where_it_helps_nobody():
    scheduler = Pollux(sync=0.5)
    scheduler._noise = {"a": 0.5}
    assert scheduler.allocate([view("a")], 8) == {"a": 1}


def test_reported_efficiency_gives_the_noise_scale_back():
    assert noise_from_efficiency(4, efficiency(4, 10.0)) == pytest.approx(10.0)
    assert noise_from_efficiency(1, 0.5) == math.inf


def test_an_elastic_job_progresses_at_its_goodput():
    def elastic(name, submit, noise):
        one = job(name, submit, 100.0, gpus=2, noise_scale=noise, sync_share=0.1)
        spec = JobSpec(id=name, gpus=2, min_gpus=1, max_gpus=8)
        return SimJob(**{**{f: getattr(one, f) for f in one.__struct_fields__}, "spec": spec})

    ran = spans([elastic("a", 0, 5.0)], "pollux", gpus=4)
    speed = goodput(4, sync=0.1, noise=5.0) / goodput(2, sync=0.1, noise=5.0)
    assert ran["a"][1] == pytest.approx(100.0 / speed)
    both = spans([elastic("a", 0, 5.0), elastic("b", 0, 5.0)], "pollux:interval_s=0", gpus=4)
    assert both["a"][1] == pytest.approx(100.0)


class FullWalk:
    """Shortest remaining first, by sorting every job at every event: slow, and plainly right."""

    def __init__(self, *, weighs_gpus):
        self.weighs_gpus = weighs_gpus

    def decide(self, event, view):
        del event

        def key(one):
            remaining = one.remaining_s(view.now)
            return remaining * one.gpus if self.weighs_gpus else remaining

        order = {name: place for place, name in enumerate(view.jobs)}
        jobs = [
            one
            for one in view.jobs.values()
            if one.phase in {Phase.WAITING, Phase.RUNNING, Phase.PREEMPTING}
        ]
        jobs.sort(key=lambda one: (key(one), order[one.id]))
        spare = view.free_gpus + sum(one.held_gpus for one in jobs)
        free = view.free_gpus
        preempts, starts = [], []
        for one in jobs:
            if one.gpus <= spare:
                spare -= one.gpus
                if one.phase is Phase.WAITING and one.gpus <= free:
                    free -= one.gpus
                    starts.append(Start(job=one.id, gpus=one.gpus))
            elif one.phase is Phase.RUNNING:
                preempts.append(Preempt(job=one.id))
        return [*preempts, *starts]


@pytest.mark.parametrize(("fast", "weighs"), [(SrtfEst, False), (SrsfEst, True)])
@given(seed=st.integers(0, 2**32 - 1), jobs=st.integers(1, 40))
def test_the_short_walk_chooses_as_the_full_one(fast, weighs, seed, jobs):
    random = np.random.default_rng(seed)
    durations = random.integers(1, 200, jobs)
    workload = Workload.from_jobs(
        [
            job(
                f"j{i}",
                float(random.integers(0, 400)),
                float(durations[i]),
                gpus=int(random.choice([1, 2, 3, 4, 8])),
                estimate=None
                if random.random() < 0.1
                else float(durations[i] * random.choice([0.5, 1.0, 1.7])),
            )
            for i in range(jobs)
        ]
    )
    quick, slow = (
        Simulator(workload, gpus=8, policy=policy).run()
        for policy in (fast(), FullWalk(weighs_gpus=weighs))
    )
    np.testing.assert_array_equal(quick.end_s, slow.end_s)


def test_every_name_of_the_table_makes_a_fresh_scheduler():
    for name in SCHEDULERS:
        assert parse_scheduler(name) is not parse_scheduler(name)


def test_an_unknown_scheduler_lists_the_known_ones():
    with pytest.raises(SpecError, match="tiresias"):
        parse_scheduler("tiresius")
