"""Whatever a file holds, replay answers or says what is wrong; and order is no information."""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalstop.config.rules import parse_rule
from evalstop.core.errors import EvalStopError
from evalstop.traces.arrivals import read_arrivals
from evalstop.traces.replay import replay, replay_series
from evalstop.traces.series import Curve, normalise
from evalstop.traces.sources import read_source

RULES = [parse_rule(spec) for spec in ("default", "consecutive:k=2", "patience:k=3")]

scores = st.floats(0, 1) | st.just(math.nan) | st.just(math.inf)
reports = st.lists(
    st.tuples(st.integers(0, 12), scores, st.integers(0, 2)), min_size=1, max_size=20
)


@given(reports=reports, random=st.randoms(use_true_random=False))
def test_the_order_of_reports_in_a_file_does_not_matter(reports, random):
    def replayed(rows):
        steps, values, attempts = zip(*rows, strict=True)
        curve = Curve(
            trace_id="a", source="s", metric="m", steps=steps, scores=values, attempts=attempts
        )
        results = replay_series([normalise(curve, "max")], RULES).results
        return [
            (r.fired, r.stop_step, r.stop_index, r.n_evals, r.regret, r.saved_fraction)
            for r in results
        ]

    shuffled = list(reports)
    random.shuffle(shuffled)
    assert replayed(shuffled) == replayed(reports)


@given(reports=reports)
def test_what_a_stop_saves_and_costs_stays_within_bounds(reports):
    steps, values, _ = zip(*reports, strict=True)
    curve = Curve(trace_id="a", source="s", metric="m", steps=steps, scores=values)
    for result in replay_series([normalise(curve, "min")], RULES).results:
        assert 0 <= result.saved_fraction <= 1
        assert 0 <= result.regret <= 1
        assert result.fired == (result.stop_step is not None)
        if result.fired:
            assert 0 <= result.stop_index < result.n_evals


STATE = json.dumps(
    {
        "best_metric": 0.6,
        "log_history": [
            {"step": 5, "loss": 2.0},
            {"step": 10, "eval_acc": 0.5, "eval_runtime": 1.0},
            {"step": 20, "eval_acc": 0.6},
        ],
    }
)
HARNESS = json.dumps(
    {
        "results": {"toy": {"acc,none": 0.5, "acc_stderr,none": 0.1}},
        "higher_is_better": {"toy": {"acc": True}},
        "n-samples": {"toy": {"effective": 9}},
        "model_name": "run/checkpoint-5",
    }
)
VERL = '{"step":1,"data":{"val-core/x":0.5}}\n{"step":2,"data":{"val-core/x":0.6}}\n'
LONG = '{"trace_id":"a","step":1,"score":0.5}\n{"trace_id":"a","step":2,"score":"0.6"}\n'
CSV = "trace_id,step,score,greater_is_better,n_items\na,1,0.5,true,100\na,2,0.6,true,100\n"
CHART = '"Step","run - eval/acc"\n"1","0.5"\n"2","0.6"\n'
VALID = {
    "trainer_state.json": STATE,
    "results_1.json": HARNESS,
    "verl.jsonl": VERL,
    "long.jsonl": LONG,
    "long.csv": CSV,
    "chart.csv": CHART,
    "log.eval": "PK\x03\x04",
}
ARRIVALS = "job_id,num_gpu,submit_time,duration\na,1,0,10\nb,2,5,20\n"

edits = st.lists(
    st.tuples(
        st.floats(0, 1), st.sampled_from(["cut", "swap", "insert", "drop"]), st.binary(max_size=4)
    ),
    max_size=4,
)


def edited(text, changes):
    data = bytearray(text.encode("latin-1"))
    for place, kind, new in changes:
        at = int(place * len(data))
        if kind == "cut":
            del data[at:]
        elif kind == "swap":
            data[at : at + len(new)] = new
        elif kind == "insert":
            data[at:at] = new
        else:
            del data[at : at + 3]
    return bytes(data)


@pytest.mark.parametrize("name", VALID)
@given(changes=edits)
def test_a_damaged_file_is_read_or_told_never_crashed_on(tmp_path_factory, name, changes):
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(edited(VALID[name], changes))
    with suppress(EvalStopError):
        replay(path, RULES, direction="max")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "results_1.json", "verl.jsonl", "long.jsonl"]
)
@given(value=json_values, place=st.integers(0, 30))
@settings(max_examples=100)
def test_json_of_another_shape_is_told(tmp_path_factory, name, value, place):
    tree = json.loads(VALID[name].splitlines()[0])
    keys = list(_paths(tree))
    _put(tree, keys[place % len(keys)], value)
    path = tmp_path_factory.mktemp("shape") / name
    path.write_text(json.dumps(tree))
    with suppress(EvalStopError):
        replay(path, RULES, direction="max")


@given(changes=edits)
def test_a_damaged_trace_of_arrivals_is_read_or_told(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("arrivals") / "trace.csv"
    path.write_bytes(edited(ARRIVALS, changes))
    with suppress(EvalStopError):
        read_arrivals(path)


@given(changes=edits)
def test_damage_in_one_file_of_a_folder_spares_the_others(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("folder")
    (folder / "a.csv").write_text(CSV)
    (folder / "b.csv").write_bytes(edited(CSV, changes))
    assert any(curve.source.endswith("a.csv") for curve in read_source(folder).curves)


def _paths(tree, prefix=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*prefix, key)
        if isinstance(value, dict | list):
            yield from _paths(value, (*prefix, key))


def _put(tree, path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value
