"""From the records of queues to figures: pure arithmetic, tables in Markdown, one drawing."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from evalstop.lab.arms import arm_named
from evalstop.lab.labels import Measured, measure
from evalstop.metrics.stats import t_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Pair = tuple[dict[str, Any], dict[str, Any]]

__all__ = ["RESULTS", "pairs_of", "publish", "report", "summary", "tables"]

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/real-runs.md"
DRAWING = ROOT / "docs/real-runs/slurm.svg"

COLOURS = {"healthy": "#2a7f62", "declined": "#3b6ea5"}

FIGURES: dict[str, tuple[str, int]] = {
    # name: what it is called, decimals
    "jct": ("mean job completion time, s", 1),
    "jct_healthy": ("... of jobs that did not decline", 1),
    "wait": ("mean wait for GPUs, s", 1),
    "makespan": ("until the queue is empty, s", 1),
    "gpu_s": ("GPU-seconds held", 0),
    "wasted": ("GPU-seconds after the true peak, of jobs that declined", 0),
    "delivered": ("gold of what is left, all jobs", 3),
    "delivered_declined": ("... of jobs that declined", 3),
    "own_best_declined": ("... had TRL kept the best by the same scores", 3),
    "peak_declined": ("... at its true peak", 3),
}


def pairs_of(records: Sequence[dict[str, Any]]) -> list[Pair]:
    """Return (with evalstop, without) of each seed that has both queues."""
    by_seed: dict[int, dict[bool, dict[str, Any]]] = {}
    for record in records:
        by_seed.setdefault(record["seed"], {})[record["guarded"]] = record
    whole = 2
    return [(two[True], two[False]) for _, two in sorted(by_seed.items()) if len(two) == whole]


def truths(without: dict[str, Any]) -> dict[str, Measured]:
    """Return what each job truly does, by its run to the end: the label, and the peak."""
    return {
        job["arm"]: measure(np.array(job["true"]), stderr=job["unit"]) for job in without["jobs"]
    }


def summary(record: dict[str, Any], full: dict[str, Any]) -> dict[str, float]:
    """Return one queue's figures.

    Args:
        record: the queue.
        full: the queue of the same seed without evalstop, whose runs go to their end.
    """
    jobs, said = record["jobs"], truths(full)
    ends = {job["arm"]: job for job in full["jobs"]}
    declined = [job for job in jobs if said[job["arm"]].label == "declined"]
    healthy = [job for job in jobs if said[job["arm"]].label != "declined"]
    return {
        "jct": _mean(jobs, lambda job: job["ended"] - job["submitted"]),
        "jct_healthy": _mean(healthy, lambda job: job["ended"] - job["submitted"]),
        "wait": _mean(jobs, lambda job: job["started"] - job["submitted"]),
        "makespan": max(job["ended"] for job in jobs),
        "gpu_s": sum(job["gpus"] * (job["ended"] - job["started"]) for job in jobs),
        "wasted": sum(wasted(job, said[job["arm"]]) for job in declined),
        "delivered": _mean(jobs, delivered),
        "delivered_declined": _mean(declined, delivered),
        "own_best_declined": _mean(declined, lambda job: own_best(ends[job["arm"]])),
        "peak_declined": _mean(
            declined, lambda job: ends[job["arm"]]["true"][said[job["arm"]].peak_index]
        ),
    } | {
        f"jct {tenant}": _mean(
            [job for job in jobs if job["tenant"] == tenant],
            lambda job: job["ended"] - job["submitted"],
        )
        for tenant in sorted({job["tenant"] for job in jobs})
    }


def wasted(job: dict[str, Any], truth: Measured) -> float:
    """Return the GPU-seconds that a job held after its true peak."""
    if truth.peak_index >= len(job["times"]):
        return 0.0  # stopped before it
    return float(job["gpus"] * (job["ended"] - job["times"][truth.peak_index]))


def delivered(job: dict[str, Any]) -> float:
    """Return the gold of what a job leaves: the checkpoint kept for it, else its last."""
    kept = job.get("kept_step")
    score: float = job["true"][-1 if kept is None else job["steps"].index(kept)]
    return score


def own_best(job: dict[str, Any]) -> float:
    """Return the gold of the checkpoint with the best watched score."""
    watched = [-1.0 if score is None else score for score in job["watched"]]
    score: float = job["true"][int(np.argmax(watched))]
    return score


def _mean(jobs: Sequence[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    return statistics.fmean(figure(job) for job in jobs)


def tables(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the page's tables by the name of their place."""
    pairs = pairs_of(records)
    return {
        "slurm": comparison(pairs),
        "slurm stops": stops(pairs),
        "slurm jobs": jobs_table(pairs),
        "slurm counted": counted(pairs),
    }


def comparison(pairs: Sequence[Pair]) -> str:
    """Return the queues side by side, with each repeat's change and a t interval."""
    figures = [(summary(a, b), summary(b, b)) for a, b in pairs]
    tenants = [name for name in figures[0][0] if name.startswith("jct ")]
    rows = [*FIGURES.items()]
    rows[1:1] = [(name, (f"... of tenant `{name.removeprefix('jct ')}`", 1)) for name in tenants]
    lines = [
        "| mean of the repeats | without | with evalstop | change [95 % t interval] | each |",
        "|---|---|---|---|---|",
    ]
    for name, (title, decimals) in rows:
        with_ = [one[name] for one, _ in figures]
        without = [other[name] for _, other in figures]
        means = statistics.fmean(without), statistics.fmean(with_)
        cells = [f"{mean:,.{decimals}f}" for mean in means]
        if name in {"own_best_declined", "peak_declined"}:  # of the runs to the end
            lines.append(f"| {title} | {cells[0]} | | | |")
            continue
        absolute = name.startswith("delivered")
        changes = [
            a - b if absolute else 100.0 * (a / b - 1.0)
            for a, b in zip(with_, without, strict=True)
        ]
        form, unit = ("+.3f", "") if absolute else ("+.0f", " %")
        low, high = t_interval(changes)
        each = ", ".join(f"{change:{form}}" for change in changes)
        change = f"{statistics.fmean(changes):{form}}{unit}"
        if math.isfinite(low):  # more than one repeat
            change += f" [{low:{form}}, {high:{form}}]"
        lines.append(f"| {title} | {cells[0]} | {cells[1]} | {change} | {each} |")
    return "\n".join(lines) + "\n"


def stops(pairs: Sequence[Pair]) -> str:
    """Return how many jobs of each kind were stopped."""
    jobs: Counter[tuple[str, str]] = Counter()
    stopped: Counter[tuple[str, str]] = Counter()
    delays, freed, gaps, early = [], [], [], 0
    for with_, without in pairs:
        said = truths(without)
        for job in with_["jobs"]:
            truth = said[job["arm"]]
            kind = arm_named(job["arm"]).construction, truth.label
            jobs[kind] += 1
            if "stop" in job:
                stopped[kind] += 1
                freed.append(job["stop"]["freed_after_s"])
                gaps += next_start(job, with_["jobs"])
                if truth.label == "declined":
                    delays.append(job["evals_seen"] - truth.peak_index)
                    early += job["evals_seen"] < truth.peak_index
    lines = ["| built to be | measured | jobs | stopped |", "|---|---|---|---|"]
    lines += [
        f"| {kind[0]} | {kind[1]} | {jobs[kind]} | {stopped[kind]} |" for kind in sorted(jobs)
    ]
    said_of = (
        f"\nStops of declined jobs came {statistics.fmean(delays):.1f} evaluations after the true "
        f"peak in the mean, {early} of them before it. From the decision to proof that the GPUs "
        f"were free took {statistics.median(freed):.1f} s in the median, {max(freed):.1f} s at "
        f"most. In {len(gaps)} cases a job waited: the next one began "
        f"{statistics.median(gaps or [0.0]):.1f} s after that in the median, "
        f"{max(gaps, default=0.0):.1f} s at most, on a clock that ticks every half second.\n"
    )
    return "\n".join(lines) + "\n" + said_of


def next_start(stopped: dict[str, Any], jobs: Sequence[dict[str, Any]]) -> list[float]:
    """Return how long after a stop the next job began; nothing if none waited."""
    after = [
        job["started"] - stopped["ended"]
        for job in jobs
        if job["submitted"] < stopped["ended"] <= job["started"]
    ]
    return [min(after)] if after else []


def jobs_table(pairs: Sequence[Pair]) -> str:
    """Return every job: what it truly did, and where it was stopped."""
    seeds = [with_["seed"] for with_, _ in pairs]
    lines = [
        "| tenant | arm | GPUs | built to be | "
        + " | ".join(f"seed {seed}" for seed in seeds)
        + " |",
        "|---|---|---|---|" + "---|" * len(seeds),
    ]
    for job in sorted(pairs[0][0]["jobs"], key=lambda job: (job["tenant"], job["arm"])):
        cells = []
        for with_, without in pairs:
            truth = truths(without)[job["arm"]]
            same = next(one for one in with_["jobs"] if one["arm"] == job["arm"])
            peak = same_steps(without, job["arm"])[truth.peak_index]
            end = f", **stopped at {5 * same['evals_seen']}**" if "stop" in same else ""
            cells.append(f"{truth.label}, peak {peak}{end}")
        built = arm_named(job["arm"]).construction
        lines.append(
            f"| {job['tenant']} | `{job['arm']}` | {job['gpus']} | {built} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines) + "\n"


def same_steps(record: dict[str, Any], arm: str) -> list[int]:
    """Return the steps at which a job of the queue was evaluated."""
    steps: list[int] = next(job["steps"] for job in record["jobs"] if job["arm"] == arm)
    return steps


def counted(pairs: Sequence[Pair]) -> str:
    """Return what was run, and how far the two queues trained the same weights."""
    same = of = 0
    seconds = []
    for with_, without in pairs:
        other = {job["arm"]: job for job in without["jobs"]}
        for job in with_["jobs"]:
            for mine, theirs in zip(job["weights"], other[job["arm"]]["weights"], strict=False):
                of += 1
                same += mine == theirs
        seconds += [job["times"][-1] - job["times"][0] for job in without["jobs"]]
    steps = pairs[0][1]["jobs"][0]["steps"][-1]
    nominal = steps * pairs[0][1]["step_s"]
    cpu = [with_["server_cpu_s"] for with_, _ in pairs]
    seeds = ", ".join(str(with_["seed"]) for with_, _ in pairs)
    return (
        f"{len(pairs)} repeat{'s' * (len(pairs) > 1)} (seed {seeds}) of "
        f"{len(pairs[0][0]['jobs'])} jobs, each queue twice: "
        f"{2 * sum(len(a['jobs']) for a, _ in pairs)} TRL runs. Training of a job to its end took "
        f"{statistics.fmean(seconds):.0f} s in the mean ({min(seconds):.0f} to {max(seconds):.0f}; "
        f"{nominal:.0f} s where the cores keep up). Of {of} weights that both queues of a repeat "
        f"reached, {same} were the same to the bit. `evalstop up` used "
        f"{statistics.fmean(cpu):.1f} s of CPU a queue.\n"
    )


def draw(pair: Pair, file: Path) -> None:
    """Draw both queues of one repeat: a line a job, its wait, its work, and what was wasted."""
    said = truths(pair[1])
    order = sorted(pair[1]["jobs"], key=lambda job: -job["submitted"])
    place = {job["arm"]: row for row, job in enumerate(order)}
    figure = Figure(figsize=(9.0, 3.6))
    axes: Any = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, record, title in (
        (axes[0], pair[1], "without evalstop"),
        (axes[1], pair[0], "with evalstop"),
    ):
        for job in record["jobs"]:
            row, truth = place[job["arm"]], said[job["arm"]]
            axis.plot([job["submitted"], job["started"]], [row, row], color="#999999", lw=0.8)
            peak = job["ended"]
            if truth.label == "declined" and truth.peak_index < len(job["times"]):
                peak = job["times"][truth.peak_index]
            height = 0.38 * job["gpus"]
            colour = COLOURS.get(truth.label, "#c2a33a")
            axis.barh(row, peak - job["started"], height, job["started"], color=colour)
            axis.barh(row, job["ended"] - peak, height, peak, color="#b3423a")
            if "stop" in job:
                axis.plot([job["ended"]], [row], marker="|", color="black", ms=11)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("seconds", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0].set_yticks(range(len(order)), [f"{job['tenant']}: {job['arm']}" for job in order])
    figure.tight_layout()
    with rc_context({"svg.hashsalt": "evalstop"}):  # the same runs, the same bytes
        figure.savefig(file, metadata={"Date": None})


def publish(records: Sequence[dict[str, Any]]) -> None:
    """Write the results, the drawing and the page's tables."""
    kept = [record for pair in pairs_of(records) for record in pair]
    if records:
        RESULTS.write_text(json.dumps(_rounded(kept), separators=(",", ":")) + "\n")
    records = json.loads(RESULTS.read_text())
    draw(pairs_of(records)[0], DRAWING)
    text = PAGE.read_text()
    for name, table in tables(records).items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert pattern.search(text), f"{PAGE} has no place for {name!r}"
        text = pattern.sub(lambda found, table=table: f"{found[1]}\n{table}\n{found[2]}", text)
    PAGE.write_text(text)


def _rounded(value: Any) -> Any:  # noqa: ANN401 -- a JSON tree
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def report(records: Sequence[dict[str, Any]]) -> int:
    """Print the tables; of the published results where there are no records."""
    records = records or json.loads(RESULTS.read_text())
    if not pairs_of(records):
        print("no repeat has both queues yet")
        return 1
    for text in tables(records).values():
        print(text)
    return 0
