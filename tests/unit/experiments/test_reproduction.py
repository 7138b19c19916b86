"""The whole evaluation at toy size: plans, rows, claims, files; resumed, and the same bytes."""

import json
import math
import re

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from evalstop.experiments import reproduce as whole
from evalstop.experiments.claims import Claim
from evalstop.experiments.results import Results
from evalstop.experiments.runner import cores, run_plans, tasks_of
from evalstop.experiments.spec import Cell, Plan, spec_hash
from evalstop.experiments.suites import main_table
from evalstop.workloads.generate import Arrived
from evalstop.workloads.scenarios import PAPER

CLAIM_IDS = [
    "jct_reduction_srtf",
    "waste_reduction_srtf",
    "precision",
    "recall",
    "fpr",
    "stopat_fpr",
    "lossplateau_recall",
    "lossplateau_fpr",
    "jct_reduction_range",
    "noise_precision_0.01",
    "noise_precision_0.05",
    "noise_precision_0.12",
    "base_rate_precision_min",
    "threshold_best_k",
    "jain_unharmed",
]

SMALL = replace(PAPER, jobs=24, gpus=16)


def cell(rule="paper", **changes):
    return Cell(
        suite="toy",
        labels={"scheduler": "srtf-est", "rule": rule},
        scenario=SMALL,
        scheduler="srtf-est",
        rule=rule,
        **changes,
    )


def plan(*rules, seeds=(0, 1)):
    return Plan(suite="toy", title="Toy", cells=tuple(map(cell, rules)), seeds=seeds)


def shrunk(plans):
    """Return the real plans with few jobs and two seeds: every cell, in seconds."""
    return [
        replace(
            one,
            seeds=(0, 1),
            cells=tuple(
                replace(c, scenario=replace(c.scenario, jobs=24), trace_jobs=c.trace_jobs and 24)
                for c in one.cells
            ),
        )
        for one in plans
    ]


def trace(jobs=24):
    random = np.random.default_rng(0)
    return Arrived(
        submit_s=np.cumsum(random.exponential(100.0, jobs)),
        duration_s=random.uniform(100.0, 5_000.0, jobs),
        gpus=random.integers(1, 9, jobs),
    )


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    real = whole.plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "plans", lambda **kinds: shrunk(real(**kinds)))
        found = whole.reproduce(
            folder, quick=True, arrived=trace(), spread=cores(1), commit="abc123"
        )
    return folder, found


def test_every_claim_is_there_once_and_in_the_agreed_form(reproduced):
    folder, found = reproduced
    told = json.loads((folder / "results.json").read_text())
    assert [claim["id"] for claim in told["claims"]] == CLAIM_IDS
    for claim in told["claims"]:
        assert set(claim) >= {"id", "paper", "ours", "interval", "seeds", "holds", "direction"}
        assert isinstance(claim["holds"], bool)
        assert claim["direction"] in {"same", "better", "worse"}
        assert claim["holds"] == (claim["direction"] == "same")
        assert claim["holds"] == any(one["holds"] for one in claim["readings"])
    assert msgspec.convert(told["claims"], list[Claim]) == found.claims


def test_results_hold_no_nan(reproduced):
    text = (reproduced[0] / "results.json").read_text()
    assert not re.search(r"NaN|Infinity", text)


def test_every_run_is_in_the_parquet_with_its_spec_and_provenance(reproduced):
    folder, found = reproduced
    table = pq.read_table(folder / "runs.parquet")
    assert (
        table.num_rows
        == found.runs
        == 2 * sum(len(one.cells) for one in whole.plans(quick=True, with_trace=True))
    )
    assert table.schema.metadata[b"evalstop_commit"] == b"abc123"
    first = table.slice(0, 1).to_pylist()[0]
    scenario = json.loads(first["spec"])["scenario"]
    assert scenario["name"] == "paper"
    assert {"scheduler", "rule", "seed", "jct_mean_s", "tp"} <= set(first)


def test_the_report_stands_alone_and_begins_with_the_verdicts(reproduced):
    folder, _ = reproduced
    page = (folder / "report.html").read_text()
    assert not re.search(r'(?:src|href)="(?!#)[^"]*//', page)
    assert "<script" not in page
    assert page.index("jct_reduction_srtf") < page.index("<svg")
    text = (folder / "report.md").read_text()
    for name in CLAIM_IDS:
        assert f"`{name}`" in text
    for figure in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (folder / figure).exists()
        assert (folder / figure).with_suffix(".csv").read_text().count("\n") > 1


def test_every_suite_has_its_section(reproduced):
    page = (reproduced[0] / "report.html").read_text()
    for one in whole.plans(quick=True, with_trace=True):
        assert f'<h2 id="{one.suite}">' in page


def test_without_a_trace_real_arrivals_are_left_out_and_said_to_be():
    suites = {one.suite for one in whole.plans(quick=True, with_trace=False)}
    assert "real-arrivals" not in suites
    assert {one.suite for one in whole.plans(quick=True, with_trace=True)} - suites == {
        "real-arrivals"
    }


def test_a_full_plan_has_thirty_seeds_where_claims_are_judged():
    for one in whole.plans(quick=False, with_trace=True):
        if one.suite != "real-arrivals":
            assert len(one.seeds) >= 30


def test_labels_tell_the_cells_of_a_suite_apart():
    for one in whole.plans(quick=False, with_trace=True):
        labels = [tuple(sorted((k, str(v)) for k, v in c.labels.items())) for c in one.cells]
        assert len(set(labels)) == len(labels)


def test_the_same_spec_gives_the_same_bytes_however_it_is_spread(tmp_path):
    plans = [plan("none", "paper", "loss-plateau", seeds=(0, 1, 2))]
    rows = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        rows.append(run_plans(plans, folder=folder, spread=cores(workers)))
    assert msgspec.json.encode(rows[0]) == msgspec.json.encode(rows[1])


def test_a_broken_run_goes_on_where_it_broke_off(tmp_path):
    plans = [plan("none", "paper")]
    rows = run_plans(plans, folder=tmp_path, spread=cores(1))
    path = tmp_path / "rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])  # killed while it wrote the third row
    ran = []

    def spread(tasks):
        ran.extend((task.seed, len(task.cells)) for task in tasks)
        return cores(1)(tasks)

    assert msgspec.json.encode(run_plans(plans, folder=tmp_path, spread=spread)) == (
        msgspec.json.encode(rows)
    )
    assert ran == [(1, 2)]


def test_a_changed_spec_is_run_anew(tmp_path):
    run_plans([plan("none", "paper")], folder=tmp_path, spread=cores(1))
    told = []
    run_plans(
        [plan("none", "consecutive:k=3")],
        folder=tmp_path,
        spread=cores(1),
        progress=lambda done, of: told.append((done, of)),
    )
    assert told[0] == (2, 4)
    assert told[-1] == (4, 4)


def test_cells_of_one_workload_share_it():
    tasks = list(tasks_of(plan("none", "paper"), {}, None))
    assert [(task.seed, len(task.cells)) for task in tasks] == [(0, 2), (1, 2)]


def test_whatever_could_change_a_result_changes_the_hash():
    hashes = {
        spec_hash(one)
        for one in (
            cell(),
            cell(rule="none"),
            cell(mode="deprioritise"),
            replace(cell(), scheduler="fifo"),
            replace(cell(), scenario=replace(SMALL, jobs=25)),
        )
    }
    assert len(hashes) == 5


def test_figures_are_compared_by_seed_and_rates_pooled(tmp_path):
    plans = [plan("none", "paper", seeds=(0, 1, 2))]
    results = Results(plans, run_plans(plans, folder=tmp_path, spread=cores(1)))
    labels = {"scheduler": "srtf-est", "rule": "paper"}
    after = results.values("toy", "jct_mean_s", **labels)
    before = results.values("toy", "jct_mean_s", scheduler="srtf-est", rule="none")
    assert results.change("toy", "jct_mean_s", **labels).value == pytest.approx(
        float((after / before - 1).mean())
    )
    counts = results.counts("toy", **labels)
    assert results.rate("toy", "recall", **labels).value == counts.recall
    assert math.isnan(results.rate("toy", "precision", scheduler="srtf-est", rule="none").value)


def test_the_main_table_has_six_schedulers_and_four_rules():
    section_cells = [c for c in main_table.plan(quick=True).cells if "fraction" not in c.labels]
    assert len({c.scheduler for c in section_cells}) == 6
    assert len({c.rule for c in section_cells}) == 5
