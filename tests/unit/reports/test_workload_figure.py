"""The sheet of a workload shows its data."""

import msgspec
import pytest

from evalstop.reports.workload_figure import workload_figure
from evalstop.workloads.generate import generate
from evalstop.workloads.scenario import Durations
from evalstop.workloads.scenarios import HARD, PAPER


def test_each_panel_shows_its_part_of_the_workload():
    workload = generate(PAPER, 0)
    figure = workload_figure(workload, gpus=64, title="paper")
    true, observed, peaks, durations, estimates, demand = figure.axes
    drawn = [line for line in true.lines if len(line.get_xdata())]
    assert len(drawn) == len([line for line in observed.lines if len(line.get_xdata())]) == 50
    assert (
        drawn[0].get_ydata().tolist() == workload.job(int((~workload.hacking).argmax())).true_scores
    )
    assert sum(bar.get_height() for bar in peaks.patches) == workload.hacking.sum()
    assert sum(bar.get_height() for bar in durations.patches) >= 200
    assert sum(bar.get_height() for bar in estimates.patches) == 200
    steps = demand.lines[0].get_ydata()
    assert steps[-1] == 0
    assert steps.max() <= workload.gpus.sum()


@pytest.mark.parametrize(
    "changes",
    [{"jobs": 0}, {"jobs": 1}, {"durations": Durations(estimated=False)}, {"hacking": {}}],
)
def test_small_and_bare_workloads_can_be_drawn(changes, tmp_path):
    scenario = msgspec.structs.replace(HARD, **changes)
    figure = workload_figure(generate(scenario, 0), gpus=64, title="bare")
    figure.savefig(tmp_path / "bare.svg")
    assert (tmp_path / "bare.svg").stat().st_size > 1000
