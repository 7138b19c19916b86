"""Other libraries' rules beside ours: how they are named, what they are given, what Optuna says."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json

import numpy as np
import pytest

from evalstop.cli import main
from evalstop.core.errors import MissingExtraError, SpecError
from evalstop.detectors.drop import Drop
from evalstop.detectors.fleet import judge
from evalstop.detectors.patience import Patience
from evalstop.experiments.detection.bench import Grid, run
from evalstop.experiments.detection.rivals import RayMedian, median_stops
from evalstop.experiments.peers import field as fields
from evalstop.experiments.peers.field import Field, experiments, first_of, items
from evalstop.experiments.peers.registry import LIBRARIES, installed, parse_peer


def walks(seed, runs=60, evals=15):
    generator = np.random.default_rng(seed)
    return np.cumsum(generator.standard_normal((runs, evals)), axis=1)


def field_of(scores, *, declines=0, sigma=0.05, seed=0):
    return Field(
        scores=np.asarray(scores, float),
        declines=np.arange(len(scores)) < declines,
        sigma=sigma,
        seed=seed,
    )


# Names


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("optun:median", "did you mean 'optuna'"),
        ("optuna:medina", "median, patient, wilcoxon; did you mean 'median'"),
        ("optuna", "the known ones are: median"),
        ("optuna:patient:q=3", "it has: k, min_delta"),
        ("optuna:patient:k=three", "must be a whole number"),
        ("optuna:wilcoxon:p=many", "must be a finite number"),
    ],
)
def test_a_peer_that_is_written_wrongly_is_refused_with_what_would_be_right(spec, told):
    with pytest.raises(SpecError) as caught:
        parse_peer(spec)
    assert told in str(caught.value)


def absent():
    return [one for one in LIBRARIES.values() if importlib.util.find_spec(one.name) is None]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(library, monkeypatch):
    module = f"evalstop.experiments.peers.{library}"
    monkeypatch.setitem(__import__("sys").modules, module, None)  # its import fails
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(MissingExtraError) as caught:
        parse_peer(f"{library}:{next(iter(LIBRARIES[library].rules))}")
    assert f"pip install 'evalstop[{LIBRARIES[library].extra}]'" in str(caught.value)
    assert library in str(caught.value)


def test_what_is_listed_as_installed_can_be_made_and_says_its_version():
    assert {"optuna:median", "optuna:patient", "optuna:wilcoxon"} <= set(installed())
    assert not {one.name for one in absent()} & {spec.split(":")[0] for spec in installed()}
    named = parse_peer("optuna:patient:k=2,min_delta=0.5")
    assert (named.library, named.spec) == ("optuna", "optuna:patient:k=2,min_delta=0.5")
    assert named.version == importlib.metadata.version("optuna")


# What they are given


@pytest.mark.parametrize(("runs", "declines"), [(200, 100), (50, 0), (55, 20), (7, 3), (1, 0)])
def test_each_run_is_a_trial_of_one_experiment_and_declines_are_spread_evenly(runs, declines):
    field = field_of(np.zeros((runs, 3)), declines=declines)
    groups = experiments(field)
    assert sorted(np.concatenate(groups)) == list(range(runs))
    sizes = [group.size for group in groups]
    assert max(sizes) <= fields.TRIALS
    assert max(sizes) - min(sizes) <= 1
    shares = [int(field.declines[group].sum()) for group in groups]
    assert max(shares) - min(shares) <= 1
    again = experiments(field)
    assert all(np.array_equal(one, two) for one, two in zip(groups, again, strict=True))


def test_the_mean_of_the_items_is_the_score_and_their_differences_have_its_noise():
    scores = np.full((1, 400), 0.5) + 0.02 * np.random.default_rng(1).standard_normal((1, 400))
    table = items(field_of(scores, sigma=0.02), 0)
    assert table.shape == (400, fields.ITEMS)
    assert table.mean(axis=1) == pytest.approx(scores[0])
    changes = np.diff(table, axis=0)
    paired = changes.std(axis=1) / np.sqrt(fields.ITEMS)
    assert paired.mean() == pytest.approx(0.02 * np.sqrt(2.0), rel=0.05)


def test_nothing_is_asked_after_a_stop():
    asked = []

    def answers():
        for index in range(5):
            asked.append(index)
            yield index == 2

    assert first_of(answers()) == 2
    assert asked == [0, 1, 2]
    assert first_of([False, False]) == -1


# Optuna, decision by decision


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_the_patient_pruner_waits_one_evaluation_longer_than_our_patience(k):
    scores = walks(k)
    theirs = parse_peer(f"optuna:patient:k={k}").peer.stops(field_of(scores))
    ours = judge(Patience(k=k + 1), scores).stop
    assert (theirs >= 0).any()
    assert theirs.tolist() == ours.tolist()


@pytest.mark.parametrize(("k", "delta"), [(0, 0.5), (1, 1.0), (3, 2.0)])
def test_its_min_delta_is_a_depth_below_the_best_as_in_our_drop(k, delta):
    scores = walks(10 + k)
    theirs = parse_peer(f"optuna:patient:k={k},min_delta={delta}").peer.stops(field_of(scores))
    ours = []
    for row in scores:
        deep = np.array([row[: i + 1].max() - row[i] > delta for i in range(row.size)])
        runs = np.convolve(deep, np.ones(k + 1))[: row.size]
        ours.append(first_of(runs >= k + 1))
    assert (theirs >= 0).any()
    assert theirs.tolist() == ours
    rule = Drop(g=delta, k=k + 1, unit="absolute")
    assert theirs.tolist() == judge(rule, scores).stop.tolist()


def test_the_wilcoxon_pruner_stops_a_cliff_and_spares_a_rise():
    rise = np.linspace(0.2, 0.6, 12)
    cliff = np.where(np.arange(12) < 6, rise, 0.1)
    stops = parse_peer("optuna:wilcoxon:p=0.001").peer.stops(field_of([cliff, rise], sigma=0.01))
    assert stops.tolist() == [6, -1]


def test_the_median_pruner_stops_the_worst_of_an_experiment_once_five_have_ended():
    levels = np.linspace(0.0, 1.0, 20)
    scores = levels[:, None] + np.linspace(0.0, 0.1, 8)
    stops = parse_peer("optuna:median").peer.stops(field_of(scores))
    assert (stops >= 0).sum() >= 3
    assert levels[stops >= 0].mean() < levels[stops < 0].mean()
    late = parse_peer("optuna:median:startup=30").peer.stops(field_of(scores))
    assert (late < 0).all()


# Our own median rule, as Ray's code decides (compared with Ray itself in its environment)


def test_the_median_rule_spares_equals_and_stops_who_is_below_the_others():
    scores = np.tile(np.linspace(0.0, 1.0, 8), (5, 1))
    assert (median_stops(scores, grace=4, fewest=3) < 0).all()
    scores[4] -= 0.5
    assert median_stops(scores, grace=4, fewest=3).tolist() == [-1, -1, -1, -1, 3]
    assert median_stops(scores, grace=6, fewest=3).tolist() == [-1, -1, -1, -1, 5]
    assert (median_stops(scores, grace=4, fewest=5) < 0).all()


def test_the_median_rule_judges_each_experiment_by_itself():
    field = field_of(walks(3, runs=45), declines=20, seed=5)
    found = RayMedian(grace=3).stops(field)
    for group in experiments(field):
        alone = median_stops(field.scores[group], grace=3, fewest=3)
        assert found[group].tolist() == alone.tolist()


# In the benchmark


def test_a_rule_that_compares_items_gets_them():
    grid = Grid(
        worlds=("cliff",), evals=(10,), sigmas=(0.02,), rules=("paired",), runs=20, reference=False
    )
    (cell,) = run(grid)
    assert cell.recall > 0.9
    assert cell.fpr == 0.0


def test_peers_judge_the_curves_that_the_rules_judge():
    grid = Grid(
        worlds=("linear", "flat"),
        evals=(12,),
        sigmas=(0.05,),
        rules=("patience:k=3",),
        peers=("optuna:patient:k=2",),
        base_rates=(0.2, 0.6),
        runs=40,
        peer_runs=40,
        reference=False,
    )
    cells = run(grid)
    ours = [cell for cell in cells if not cell.library]
    theirs = [cell for cell in cells if cell.library]
    assert len(ours) == len(theirs) == 3
    for one, two in zip(ours, theirs, strict=True):
        assert two.library == f"optuna {importlib.metadata.version('optuna')}"
        assert (one.recall, one.fpr, one.precision) == pytest.approx(
            (two.recall, two.fpr, two.precision), nan_ok=True
        )
        assert one.intervals.keys() == two.intervals.keys()


def test_peers_judge_fewer_curves_where_that_is_said():
    grid = Grid(
        worlds=("flat",),
        evals=(8,),
        sigmas=(0.05,),
        rules=("default",),
        peers=("optuna:patient",),
        runs=40,
        peer_runs=10,
    )
    assert [cell.n for cell in run(grid)] == [40, 10]


WORDS = ("bench", "detectors", "--world=flat", "--evals=8", "--sigma=0.05", "--runs=20")


def test_the_command_says_which_version_ran(capsys):
    assert main([*WORDS, "--rule=default", "--peer=optuna:patient:k=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["libraries"] == [f"optuna {importlib.metadata.version('optuna')}"]
    assert {cell["rule"] for cell in found["cells"]} == {"default", "optuna:patient:k=1"}


def test_the_command_lists_what_it_could_have_run(capsys):
    assert main([*WORDS, "--rule=default"]) == 0
    assert "--peer optuna:wilcoxon" in capsys.readouterr().err
    assert main([*WORDS, "--rule=default", "--peer=optuna:patient"]) == 0
    assert f"libraries: optuna {importlib.metadata.version('optuna')}" in capsys.readouterr().err


def test_all_that_is_installed_can_be_asked_for(capsys):
    assert main([*WORDS, "--rule=default", "--peer=installed", "--peer-runs=10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {cell["rule"] for cell in found["cells"]} == {"default", *installed()}
