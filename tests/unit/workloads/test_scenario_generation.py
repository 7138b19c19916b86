"""A scenario and a seed give one workload, and each word of the scenario shows in it."""

from typing import get_args

import msgspec
import numpy as np
import pytest
from scipy import stats

from evalstop.core.errors import SpecError
from evalstop.sim.costs import ExecutionCosts
from evalstop.workloads import scenario as words
from evalstop.workloads.generate import Arrived, generate, generate_on
from evalstop.workloads.job import Workload
from evalstop.workloads.scenario import (
    DECLINING,
    FAMILIES,
    Adversaries,
    Arrivals,
    Costs,
    Curves,
    Deliveries,
    Durations,
    Elasticity,
    Evals,
    Mitigation,
    NodeType,
    Noise,
    Scenario,
    Signals,
    Tenants,
)
from evalstop.workloads.scenarios import CONFORMANCE, GAO, HARD, MATCHED, NAMED, PAPER, named

ARRAYS = [
    name
    for name in Workload.__struct_fields__
    if name not in {"tenants", "job_types", "ids", "labels"}
]


def with_(scenario=PAPER, **changes):
    return msgspec.structs.replace(scenario, **changes)


def same(left, right, names=ARRAYS):
    for name in names:
        one, other = getattr(left, name), getattr(right, name)
        if one is None or other is None:
            assert one is other, name
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("name", NAMED)
def test_the_same_seed_gives_the_same_workload_and_another_one_another(name):
    scenario = with_(NAMED[name], jobs=100)
    same(generate(scenario, 7), generate(scenario, 7))
    assert (generate(scenario, 7).submit_s != generate(scenario, 8).submit_s).any()


def test_the_paper_has_its_numbers():
    workload = generate(PAPER, 0)
    assert len(workload) == 200
    assert PAPER.gpus == 64
    types = [job.spec.job_type for job in workload]
    assert types.count("rlhf") == 160
    hacking = [job.spec.job_type for job in workload if job.hacking]
    assert hacking == ["rlhf"] * 96


def test_sweeping_noise_load_or_share_leaves_the_other_draws_alone():
    base = generate(PAPER, 3)
    loud = generate(with_(noise=Noise(sigma=0.12)), 3)
    same(base, loud, [name for name in ARRAYS if name not in {"scores", "stderrs"}])
    errors = (base.scores - base.true_scores) / 0.035
    assert (loud.scores - loud.true_scores) / 0.12 == pytest.approx(errors)
    busy = generate(with_(arrivals=Arrivals(load=2.0)), 3)
    same(base, busy, [name for name in ARRAYS if name != "submit_s"])
    fewer = generate(with_(hacking={"rlhf": 0.2}), 3)
    assert (fewer.hacking <= base.hacking).all()
    both = fewer.hacking == base.hacking
    assert (fewer.peak_s[both] == base.peak_s[both]).all()


def test_healthy_and_hacking_cannot_be_told_apart_before_the_peak():
    """Two-sample tests, each run in units of its own way to the peak: level, rise, curvature.

    Both kinds are seen at 30, 50, 70 and 90 % of that way. A detector that could tell them apart
    there would win by an artefact of the curves.
    """
    evals = 1000
    scenario = with_(
        jobs=2000,
        evals=Evals(count=evals),
        noise=Noise(sigma=0.0),
        signals=Signals(proxy=False, loss=False),
        curves=Curves(healthy_kl=(0.99, 1.0)),
    )
    workload = generate(scenario, 1)
    truths = workload.true_scores.reshape(-1, evals)
    peaks = workload.peak_s / workload.duration_s
    progress = np.arange(1, evals + 1) / evals
    seen = np.array(
        [
            np.interp(peak * np.array([0.3, 0.5, 0.7, 0.9]), progress, truth)
            for peak, truth in zip(peaks, truths, strict=True)
        ]
    )
    rlhf = workload.job_type == 0
    healthy, hacking = seen[rlhf & ~workload.hacking], seen[rlhf & workload.hacking]
    features = {
        "level": lambda s: s[:, 0],
        "rise": lambda s: s[:, 3] - s[:, 0],
        "curvature": lambda s: (s[:, 3] - s[:, 2]) / (s[:, 1] - s[:, 0]),
    }
    for name, feature in features.items():
        test = stats.ks_2samp(feature(healthy), feature(hacking))
        assert test.pvalue > 0.01, name
    ends = truths[rlhf & ~workload.hacking, -1], truths[rlhf & workload.hacking, -1]
    assert stats.ks_2samp(*ends).pvalue < 1e-6  # the test can tell what differs


def first_evals_p_values(scenario):
    """Return p-values of two-sample tests on the first two true scores of each label."""
    workload = generate(with_(scenario, jobs=4000, types={"rlhf": 1.0}), 1)
    first = workload.true_scores[workload.bounds[:-1]]
    second = workload.true_scores[workload.bounds[:-1] + 1]
    features = first, second - first, (second - first) / first
    return [stats.ks_2samp(f[workload.hacking], f[~workload.hacking]).pvalue for f in features]


def test_by_the_clock_of_the_peak_nothing_tells_labels_apart_evaluation_by_evaluation():
    assert min(first_evals_p_values(MATCHED)) > 0.01


def test_by_the_clock_of_the_run_hacking_runs_climb_faster():
    """Said in the design note: with as many evaluations each, that is what an early peak means."""
    assert max(first_evals_p_values(GAO)) < 1e-6


def test_by_the_clock_of_the_peak_hacking_runs_are_those_that_go_on():
    workload = generate(with_(MATCHED, jobs=1000), 0)
    evals = np.diff(workload.bounds)
    base = evals * workload.peak_s / workload.duration_s
    assert ((base >= 8) & (base <= 16))[workload.hacking].all()
    assert evals[workload.hacking].mean() > 1.5 * evals[~workload.hacking].mean()
    assert evals[~workload.hacking].max() <= 16
    spacing = workload.duration_s / evals
    rlhf = workload.job_type == 0
    gaps = spacing[rlhf & workload.hacking], spacing[rlhf & ~workload.hacking]
    assert stats.ks_2samp(*gaps).pvalue > 0.01


@pytest.mark.parametrize("at_end", [True, False])
def test_the_clock_of_the_peak_holds_with_and_without_an_eval_at_the_end(at_end):
    plan = with_(MATCHED, evals=Evals(count=10, at_end=at_end), noise=Noise(sigma=0.0))
    for job in generate(plan, 0):
        if job.hacking:
            highest = int(np.argmax(job.true_scores))
            assert highest == 9  # the tenth evaluation is of the peak itself
            assert job.eval_offsets[9] == pytest.approx(job.peak_s)


@pytest.mark.parametrize(
    "scenario", [PAPER, GAO, MATCHED, HARD], ids=lambda scenario: scenario.name
)
def test_hacking_peaks_inside_the_run_and_healthy_at_its_end(scenario):
    workload = generate(with_(scenario, jobs=500), 2)
    hacking = workload.hacking
    assert (workload.peak_s[hacking] < workload.duration_s[hacking]).all()
    assert (workload.peak_s[~hacking] == workload.duration_s[~hacking]).all()
    for job in workload:
        if job.hacking and len(job.scores) > 4:
            made = sum(offset <= job.peak_s for offset in job.eval_offsets)
            assert job.true_scores[:made] == sorted(job.true_scores[:made])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_asked_for(family):
    label = family in DECLINING
    curves = Curves(hacking={family: 1.0}) if label else Curves(healthy={family: 1.0})
    workload = generate(with_(curves=curves, noise=Noise(sigma=0.0)), 0)
    some = np.repeat(workload.hacking == label, np.diff(workload.bounds))
    assert np.isfinite(workload.true_scores[some]).all()
    assert np.ptp(workload.true_scores[some]) > 0.1


def test_no_true_score_goes_below_the_floor():
    deep = Curves(start=0.2, gain=0.5, hacking_kl=30.0, floor=0.1)
    workload = generate(with_(curves=deep), 0)
    assert workload.true_scores.min() == 0.1
    free = generate(with_(curves=msgspec.structs.replace(deep, floor=None)), 0)
    assert free.true_scores.min() < 0.0
    above = free.true_scores >= 0.1
    assert (workload.true_scores[above] == free.true_scores[above]).all()


def test_weights_mix_families():
    mixed = Curves(healthy={"plateau": 3.0, "late-bloomer": 1.0}, knee=0.01, place=0.7, start=0.0)
    workload = generate(with_(curves=mixed, hacking={}, jobs=4000, noise=Noise(sigma=0.0)), 0)
    first = workload.true_scores[workload.bounds[:-1]]
    assert (first > 0.4).mean() == pytest.approx(0.75, abs=0.03)


def test_signals_improve_to_the_end_of_hacking_runs():
    quiet = with_(signals=Signals(proxy_noise=0.0, loss_noise=0.0))
    for job in generate(quiet, 1):
        assert job.proxies == sorted(job.proxies)
        assert job.losses == sorted(job.losses, reverse=True)


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"signals": Signals(proxy=False)}, "proxies"),
        ({"signals": Signals(loss=False)}, "losses"),
        ({"noise": Noise(reported="unknown")}, "stderrs"),
    ],
)
def test_what_is_not_reported_is_none(changes, absent):
    workload = generate(with_(**changes), 0)
    assert getattr(workload, absent) is None
    assert getattr(workload.job(0), absent) is None


def test_understated_errors_are_two_thirds_of_the_truth():
    workload = generate(with_(noise=Noise(sigma=0.03, reported="understated")), 0)
    assert workload.stderrs == pytest.approx(np.full(workload.evals, 0.02))


def test_items_make_the_error_binomial():
    workload = generate(with_(noise=Noise(items=400), jobs=4000), 0)
    z = (workload.scores - workload.true_scores) / workload.stderrs
    assert z.std() == pytest.approx(1.0, abs=0.02)
    assert workload.stderrs.max() == pytest.approx(0.025, abs=1e-4)


def test_lost_scores_are_nan():
    workload = generate(with_(noise=Noise(lost_scores=0.1), jobs=2000), 0)
    assert np.isnan(workload.scores).mean() == pytest.approx(0.1, abs=0.01)
    assert np.isfinite(workload.true_scores).all()


@pytest.mark.parametrize(("at_end", "last"), [(True, 1.0), (False, 8 / 9)])
def test_evals_are_evenly_spaced(at_end, last):
    job = generate(with_(evals=Evals(count=8, at_end=at_end, steps=50)), 0).job(5)
    progress = np.array(job.eval_offsets) / job.duration_s
    assert progress == pytest.approx(np.arange(1, 9) / 8 * last)
    assert job.eval_steps == [50 * i for i in range(1, 9)]


def test_the_last_offset_is_the_duration_to_the_bit():
    assert all(job.eval_offsets[-1] == job.duration_s for job in generate(HARD, 0))


def test_counts_of_evals_span_their_range():
    workload = generate(with_(evals=Evals(count=(3, 6)), jobs=500), 0)
    assert set(np.diff(workload.bounds).tolist()) == {3, 4, 5, 6}


def test_jobs_without_evals_are_jobs():
    workload = generate(with_(evals=Evals(count=0)), 0)
    assert workload.evals == 0
    assert len(list(workload)) == 200


def test_deliveries_are_lost_repeated_and_late():
    plan = Deliveries(eval_s=30.0, delay_s=60.0, lost=0.1, repeated=0.2)
    workload = generate(with_(deliveries=plan, jobs=2000), 0)
    counts = np.diff(workload.delivery_bounds)
    assert (counts == 0).mean() == pytest.approx(0.1, abs=0.01)
    assert (counts == 2).mean() == pytest.approx(0.2 * 0.9, abs=0.015)
    assert workload.delivery_delays_s.min() >= 30.0
    assert workload.delivery_delays_s.mean() == pytest.approx(90.0, rel=0.05)
    job = workload.job(17)
    assert len(job.deliveries) == len(job.scores)
    flat = [delay for row in job.deliveries for delay in row]
    start, stop = workload.delivery_bounds[workload.bounds[[17, 18]]]
    assert flat == workload.delivery_delays_s[start:stop].tolist()


def test_plain_deliveries_are_none():
    assert generate(PAPER, 0).job(0).deliveries is None


def test_crashes_come_inside_the_run_and_as_often_as_asked():
    jobs = list(generate(with_(fails=0.2, jobs=2000), 0))
    crashes = [job for job in jobs if job.fails_at_s is not None]
    assert len(crashes) / len(jobs) == pytest.approx(0.2, abs=0.03)
    assert all(0 <= job.fails_at_s < job.duration_s for job in crashes)


def test_load_sets_how_long_the_arrivals_take():
    workload = generate(with_(arrivals=Arrivals(load=0.5), jobs=4000), 0)
    work = (workload.gpus * workload.duration_s).sum()
    assert work / (64 * workload.submit_s[-1]) == pytest.approx(0.5, rel=0.06)


def test_batch_arrivals_are_all_at_zero():
    assert not generate(with_(arrivals=Arrivals(process="batch")), 0).submit_s.any()


def test_bursty_arrivals_vary_more():
    gaps = np.diff(
        generate(with_(arrivals=Arrivals(process="bursty", variation=3.0), jobs=5000), 0).submit_s
    )
    assert gaps.std() / gaps.mean() > 2.0


def test_without_estimates_jobs_have_none():
    assert generate(with_(durations=Durations(estimated=False)), 0).job(0).spec.estimated_s is None


def test_tenants_are_named_and_skewed():
    workload = generate(with_(tenants=Tenants(count=3, exponent=1.0), jobs=3000), 0)
    assert workload.tenants == ("tenant-1", "tenant-2", "tenant-3")
    assert np.bincount(workload.tenant)[0] > np.bincount(workload.tenant)[2]


def test_the_conformance_law_has_the_moments_of_the_shared_traces():
    workload = generate(with_(CONFORMANCE, jobs=20_000), 0)
    assert workload.scores.dtype == np.float32
    assert (workload.duration_s == np.rint(workload.duration_s)).all()
    # mean of evals x mean of lognormal(6.2, 0.6) = 20 x exp(6.2 + 0.18)
    assert workload.duration_s.mean() == pytest.approx(20 * np.exp(6.38), rel=0.03)
    assert set(np.diff(workload.bounds).tolist()) == set(range(10, 31))


def test_a_trace_keeps_what_it_says_and_gets_the_rest():
    arrived = Arrived(
        submit_s=np.array([0.0, 5.0]),
        duration_s=np.array([100.0, 200.0]),
        gpus=np.array([2, 4]),
        tenant=np.array([1, 0]),
        tenants=("x", "y"),
        job_type=np.array([0, 1]),
        job_types=("rlhf", "other"),
        estimated_s=np.array([90.0, np.nan]),
        ids=("a", "b"),
    )
    first, second = generate_on(with_(hacking={"rlhf": 1.0}), arrived, 0)
    assert (first.spec.id, first.spec.tenant, first.spec.job_type) == ("a", "y", "rlhf")
    assert (first.spec.gpus, first.spec.estimated_s, first.hacking) == (2, 90.0, True)
    assert (second.spec.estimated_s, second.hacking) == (None, False)
    assert len(first.scores) == 10


def test_a_trace_without_owners_and_types_gets_those_of_the_scenario():
    arrived = Arrived(
        submit_s=np.arange(10.0), duration_s=np.full(10, 50.0), gpus=np.ones(10, dtype=np.int64)
    )
    jobs = list(generate_on(PAPER, arrived, 0))
    assert [job.spec.job_type for job in jobs].count("rlhf") == 8
    assert all(job.spec.tenant.startswith("tenant-") for job in jobs)
    assert all(job.spec.estimated_s > 0 for job in jobs)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Evals(count=(3, 2)), "count must be a number or a pair in order"),
        (lambda: Evals(count=-1), "count must be at least 0"),
        (lambda: Noise(sigma=-0.1), "sigma must be at least 0"),
        (lambda: Curves(healthy={}), "healthy needs at least one family"),
        (lambda: Curves(hacking={"cliff": 0.0}), "hacking needs at least one family"),
        (lambda: Curves(healthy_kl=1.5), "ends before its peak"),
        (lambda: Curves(hacking_kl=(1.0, 2.0)), "goes past its peak"),
        (lambda: Scenario(types={}), "types needs at least one entry"),
        (lambda: Scenario(hacking={"sft": 0.5}), "hacking names sft; types has rlhf, dpo, lora"),
        (lambda: Scenario(adversaries=Adversaries(tenants=9)), "9 adversaries cannot be among 8"),
        (
            lambda: Scenario(pools=(NodeType(name="a", gpus=32), NodeType(name="a", gpus=32))),
            "pools must have different names",
        ),
        (
            lambda: Scenario(pools=(NodeType(name="a", gpus=60),)),
            "64 GPUs in all, as gpus says, got a with 60",
        ),
        (
            lambda: Scenario(gpus=8, pools=tuple(NodeType(name=n, gpus=4) for n in "ab")),
            "a gang of 8 never fits on 4 GPUs of one node type",
        ),
        (lambda: Scenario(gpus=4), "a gang of 8 never fits on 4 GPUs"),
    ],
)
def test_descriptions_that_contradict_themselves_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_an_unknown_scenario_lists_the_known_ones():
    with pytest.raises(
        SpecError, match=r"unknown scenario 'papr'; known: paper, gao, matched, hard"
    ):
        named("papr")
    assert named("hard") is HARD


def test_the_lists_of_families_agree():
    assert set(DECLINING) < set(FAMILIES)
    assert get_args(words.Family) == FAMILIES


def test_costs_are_those_of_the_simulator():
    assert Costs.__struct_fields__ == ExecutionCosts.__struct_fields__


def test_elastic_jobs_have_bounds_around_their_gang_and_rigid_ones_none():
    plan = Elasticity(share=0.5, shrink=2, stretch=16)
    jobs = list(generate(with_(elasticity=plan, jobs=1000), 0))
    elastic = [job for job in jobs if job.spec.max_gpus is not None]
    assert len(elastic) / 1000 == pytest.approx(0.5, abs=0.05)
    for job in elastic:
        assert job.spec.min_gpus == max(1, job.spec.gpus // 2)
        assert job.spec.max_gpus == min(64, 16 * job.spec.gpus)
        assert job.rate(job.spec.gpus) == pytest.approx(1.0)
        assert job.rate(2 * job.spec.gpus) < 2.0
    assert all(job.noise_scale is None for job in jobs if job.spec.max_gpus is None)


def test_adversaries_shorten_their_estimates_and_hide_their_declines():
    honest = generate(PAPER, 0)
    plan = Adversaries(tenants=2, estimate_factor=0.1, hide_declines=True)
    workload = generate(with_(adversaries=plan), 0)
    lying = workload.tenant >= 6
    assert lying.any()
    assert workload.estimated_s[lying] == pytest.approx(0.1 * honest.estimated_s[lying])
    assert (workload.estimated_s[~lying] == honest.estimated_s[~lying]).all()
    for job, truth in zip(workload, honest, strict=True):
        assert job.true_scores == truth.true_scores
        lies = job.spec.tenant in {"tenant-7", "tenant-8"}
        assert job.scores == (
            np.maximum.accumulate(truth.scores).tolist() if lies else truth.scores
        )


def test_a_hidden_nan_does_not_hide_what_comes_after_it():
    noise = Noise(lost_scores=0.3)
    plan = Adversaries(tenants=8, hide_declines=True)
    workload = generate(with_(noise=noise, adversaries=plan), 0)
    first_lost = workload.bounds[:-1][np.isnan(workload.scores[workload.bounds[:-1]])]
    assert np.isnan(workload.scores).sum() < workload.evals * 0.15
    assert first_lost.size > 0


def test_mitigation_moves_the_peak_as_spending_less_kl_does():
    honest = generate(with_(jobs=1000), 0)
    plan = Mitigation(share=1.0, kl_factor=0.5)
    workload = generate(with_(jobs=1000, mitigation=plan), 0)
    still = workload.hacking
    assert (still <= honest.hacking).all()
    # power 2: the peak moves by 1 / sqrt(factor); ratios of 3.5-6 stay above 1 when halved
    assert (still == honest.hacking).all()
    moved = workload.peak_s[still] / honest.peak_s[still]
    assert moved == pytest.approx(np.full(still.sum(), np.sqrt(2.0)))


def test_mitigation_that_ends_before_the_peak_leaves_no_hacking():
    plan = Mitigation(share=1.0, kl_factor=0.1)
    workload = generate(with_(mitigation=plan), 0)
    assert not workload.hacking.any()
    assert (workload.peak_s == workload.duration_s).all()
    for job in workload:
        assert job.true_scores == sorted(job.true_scores)


def test_mitigation_of_some_leaves_the_others_as_they_were():
    honest = generate(PAPER, 0)
    workload = generate(with_(mitigation=Mitigation(share=0.5, kl_factor=0.1)), 0)
    same_curve = [a.true_scores == b.true_scores for a, b in zip(honest, workload, strict=True)]
    assert np.mean(same_curve) == pytest.approx(0.5, abs=0.12)
    assert 0 < workload.hacking.sum() < honest.hacking.sum()


def test_replicates_are_fresh_errors_of_the_same_checkpoints():
    plan = Evals(count=10, replicates=3)
    workload = generate(with_(evals=plan, jobs=500), 0)
    same(workload, generate(with_(jobs=500), 0), [n for n in ARRAYS if n != "replicates"])
    assert workload.replicates.shape == (workload.evals, 3)
    errors = np.column_stack([workload.scores, workload.replicates]) - workload.true_scores[:, None]
    assert errors.std(axis=0) == pytest.approx(np.full(4, 0.035), rel=0.05)
    assert np.corrcoef(errors.T) == pytest.approx(np.eye(4), abs=0.06)
    job = workload.job(7)
    assert [len(row) for row in job.replicates] == [3] * 10


def test_load_counts_the_speed_of_node_types():
    pools = (NodeType(name="new", gpus=32, speed=3.0), NodeType(name="old", gpus=32))
    fast, plain = (generate(with_(pools=p, jobs=2000), 0) for p in (pools, ()))
    assert with_(pools=pools).capacity == 128.0
    assert fast.submit_s[-1] == pytest.approx(plain.submit_s[-1] / 2)
