"""A million evaluations of one run, and ten thousand runs, are read and replayed."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from evalstop.config.rules import parse_rule
from evalstop.traces.replay import replay

pytestmark = pytest.mark.no_cover  # what runs here is measured in small elsewhere


@pytest.mark.parametrize(("runs", "evals"), [(1, 1_000_000), (10_000, 20)])
def test_large_tables_are_read_and_replayed(tmp_path, runs, evals):
    scores = np.minimum(np.arange(evals), evals - 4) / evals  # rises, then flat: no decline
    scores[-2:] = [0.0, -1.0]  # and two declines at the end
    table = {
        "trace_id": np.repeat([f"run-{i}" for i in range(runs)], evals),
        "step": np.tile(np.arange(evals), runs),
        "score": np.tile(scores, runs),
    }
    path = tmp_path / "large.csv"
    pyarrow.csv.write_csv(pa.table(table), path)
    report = replay(path, parse_rule("consecutive:k=2"), direction="max")
    assert len(report.results) == runs
    assert {(r.n_evals, r.stop_index) for r in report.results} == {(evals, evals - 1)}
