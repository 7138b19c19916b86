"""Early stopping of transformers, Lightning and Keras beside our patience, decision by decision."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_trainer import EVERY, HACKED, World, trainer
from transformers import EarlyStoppingCallback

from evalstop.detectors.fleet import judge
from evalstop.detectors.patience import Patience
from evalstop.experiments.peers.field import Field
from evalstop.experiments.peers.registry import installed, parse_peer


def field_of(scores):
    return Field(scores=scores, declines=np.zeros(len(scores), bool), sigma=1.0, seed=0)


def walks(seed):
    generator = np.random.default_rng(seed)
    scores = np.cumsum(0.2 + generator.standard_normal((60, 20)), axis=1)
    return np.round(scores, 1) if seed % 2 else scores  # with ties and without


def stops(spec, scores):
    return parse_peer(spec).peer.stops(field_of(scores)).tolist()


def test_all_three_are_listed():
    assert {"transformers:patience", "lightning:patience", "keras:patience"} <= set(installed())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("library", ["transformers", "lightning", "keras"])
def test_patience_is_theirs(library, k, seed):
    scores = walks(seed)
    theirs = stops(f"{library}:patience:k={k}", scores)
    assert max(theirs) >= 0
    assert theirs == judge(Patience(k=k), scores).stop.tolist()


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("delta", [0.3, 1.0])
@pytest.mark.parametrize("library", ["lightning", "keras"])
def test_and_so_is_the_least_improvement_that_counts(library, delta, seed):
    scores = walks(seed)
    theirs = stops(f"{library}:patience:k=3,min_delta={delta}", scores)
    assert theirs == judge(Patience(k=3, min_delta=delta), scores).stop.tolist()
    assert theirs != judge(Patience(k=3), scores).stop.tolist()


def test_the_threshold_of_transformers_is_another_thing():
    # Small steps up raise its best, so that no step beats it by the threshold: it stops a rise
    # that the other libraries, which keep the level that was beaten, let go on.
    rise = np.array([[0.0, 0.6, 1.2, 1.8, 2.4, 3.0]])
    assert stops("transformers:patience:k=3,threshold=1.0", rise) == [3]
    assert judge(Patience(k=3, min_delta=1.0), rise).stop.tolist() == [-1]
    assert stops("lightning:patience:k=3,min_delta=1.0", rise) == [-1]


@pytest.mark.parametrize(("k", "threshold"), [(1, 0.0), (2, 0.0), (3, 0.0), (2, 0.05), (3, 0.05)])
def test_the_state_that_we_hand_to_the_callback_is_the_trainers(tmp_path, k, threshold):
    scores = [0.50, 0.53, 0.56, 0.555, 0.57, 0.60, 0.59, 0.58, 0.59, 0.57]
    for script in (scores, HACKED):
        made = trainer(
            tmp_path / f"{script[1]}",
            [World(script), EarlyStoppingCallback(k, threshold)],
            metric_for_best_model="world",
            greater_is_better=True,
            load_best_model_at_end=True,
            save_total_limit=1,
        )
        made.train()
        steps = made.state.global_step
        theirs = stops(f"transformers:patience:k={k},threshold={threshold}", np.array([script]))
        assert steps == EVERY * (len(script) if theirs[0] < 0 else theirs[0] + 1)
