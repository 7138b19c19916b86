"""``evalstop simulate``: one cluster, one workload, one policy or several."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 -- Typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalstop.cli.output import number, print_table, progress, tell, version, write_json
from evalstop.cli.scenario import open_scenario
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evalstop.core.policy import Policy
    from evalstop.policies.rules import Rules
    from evalstop.sim.simulate import Simulated
    from evalstop.workloads.generate import Arrived
    from evalstop.workloads.scenario import Scenario

__all__ = ["simulate"]

_READS_LOSSES = ("loss-aware", "pollux")


def simulate(
    *,
    scenario: Annotated[
        str, typer.Option(help="paper, gao, hard, or a TOML file.", metavar="NAME|FILE.toml")
    ] = "paper",
    scheduler: Annotated[
        list[str] | None,
        typer.Option(help="Base scheduler; repeatable. Default: srtf-est.", show_default=False),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Stop rule; repeatable. Default: the one called default.", show_default=False
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs in place of the scenario's.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=0, help="Jobs in place of the scenario's; of a trace: the first."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="N for seeds 0 to N-1, or a list such as 3,7.", metavar="N|LIST")
    ] = "1",
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV of real arrivals: job_id, num_gpu, submit_time, duration; Philly; Acme."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False,
) -> None:
    """Simulate a cluster under a scheduler, with a stop rule.

    Every (scheduler, rule) meets the same jobs: seed by seed the workload is identical. Figures
    are means over seeds with 95 % intervals; rates are pooled.
    """
    from evalstop.config.rules import parse_rule  # noqa: PLC0415 -- after the options are read
    from evalstop.config.schedulers import parse_scheduler  # noqa: PLC0415 -- same

    chosen = parse_seeds(seeds)
    setting = _scenario(scenario, gpus, jobs, of_trace=trace is not None)
    bases = list(dict.fromkeys(scheduler or ["srtf-est"]))
    rules = [parse_rule(spec) for spec in dict.fromkeys(rule or ["default"])]
    for base in bases:
        parse_scheduler(base)  # an unknown name is told before anything runs
    if "native" in bases:
        tell("warning: scheduler native leaves starts to a real cluster: simulated, no job starts")
    arrived = _arrivals(trace, jobs) if trace else None
    results: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("simulating", total=len(bases) * len(rules) * len(chosen))
        for base in bases:
            for one in rules:
                started = time.perf_counter()
                done = _run(setting, base, one, chosen, arrived, lambda _: bar.advance(task))
                results.append(
                    {
                        "scenario": setting.name,
                        **({"trace": str(trace)} if trace else {}),
                        "scheduler": base,
                        "rule": one.spec,
                        **done.to_json(),
                        "wall_s": time.perf_counter() - started,
                    }
                )
    if as_json:
        write_json({"results": results, "version": version()})
    else:
        _print(results)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that ``N`` (0 to N-1) or ``3,7`` (those) stands for.

    Raises:
        InputError: it is neither, or names no seed.
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    seeds = numbers if "," in text else list(range(numbers[0])) if numbers else []
    if not seeds or min(seeds) < 0:
        msg = f"--seeds must be a number of seeds >= 1, or a list such as 3,7, but it is {text!r}"
        raise InputError(msg)
    if len(set(seeds)) < len(seeds):
        msg = f"--seeds names a seed twice ({text!r}): that would make the intervals too narrow"
        raise InputError(msg)
    return tuple(seeds)


def _scenario(name: str, gpus: int | None, jobs: int | None, *, of_trace: bool) -> Scenario:
    """Return the named or written scenario, with what the options change."""
    from msgspec.structs import replace  # noqa: PLC0415 -- after the options are read

    setting = open_scenario(name)
    changes: dict[str, Any] = {"gpus": gpus or setting.gpus}
    if of_trace:
        changes["gangs"] = {1: 1.0}  # sizes are the trace's, and need not fit the scenario's
    elif jobs is not None:
        changes["jobs"] = jobs
    try:
        return replace(setting, **changes)
    except ValueError as error:
        msg = f"scenario {setting.name}: {error}"
        raise InputError(msg) from error


def _arrivals(trace: Path, jobs: int | None) -> Arrived:
    from evalstop.traces.arrivals import read_arrivals  # noqa: PLC0415 -- only with a trace

    found = read_arrivals(trace, jobs=jobs)
    count = found.arrived.submit_s.size
    left_out = "".join(f"; {n} left out: {why}" for why, n in found.left_out.items())
    tell(f"{trace}: {count} jobs ({found.form} form){left_out}")
    return found.arrived


def _run(  # noqa: PLR0917 -- one line of the table of settings
    setting: Scenario,
    base: str,
    rules: Rules,
    seeds: Sequence[int],
    arrived: Arrived | None,
    after_each: Any,  # noqa: ANN401 -- the progress bar's callback
) -> Simulated:
    from evalstop.config.schedulers import parse_scheduler  # noqa: PLC0415 -- heavy
    from evalstop.policies.baselines import LossPlateau  # noqa: PLC0415 -- heavy
    from evalstop.policies.evalstop import EvalStop  # noqa: PLC0415 -- heavy
    from evalstop.sim.simulate import simulate as run_simulation  # noqa: PLC0415 -- heavy

    def policy() -> Policy:
        return EvalStop(base=parse_scheduler(base, speeds=setting.speeds), rules=rules)

    losses = base.startswith(_READS_LOSSES) or any(
        isinstance(named.rule, LossPlateau) for named in rules.by_type.values()
    )
    return run_simulation(
        setting, policy=policy, seeds=seeds, losses=losses, arrived=arrived, after_each=after_each
    )


_HEADER = (
    "scheduler", "rule", "JCT mean, h", "p95, h", "utilisation", "GPU-h used", "wasted",
    "lost, healthy", "precision", "recall", "FPR", "delay, evals", "score delivered",
)  # fmt: skip


def _print(results: Sequence[dict[str, Any]]) -> None:
    first = results[0]
    seeds = first["seeds"]
    arrivals = f", arrivals of {first['trace']}" if "trace" in first else ""
    title = (
        f"Scenario {first['scenario']}{arrivals}: {first['jobs']} jobs on {first['gpus']} GPUs, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}; change is against the scheduler's "
        "first line"
    )
    base: dict[str, dict[str, Any]] = {}
    rows = [_row(one, base.setdefault(one["scheduler"], one)) for one in results]
    print_table(title, _HEADER, rows, right="ww" + "r" * 11)


def _row(result: dict[str, Any], first: dict[str, Any]) -> list[str]:
    system, found, quality = result["system"], result["detection"], result["quality"]
    return [
        result["scheduler"],
        result["rule"],
        _hours(result, first, "jct_mean_s"),
        _hours(result, first, "jct_p95_s"),
        _percent(system["utilisation"]),
        number(system["gpu_hours_used"]),
        number(system["gpu_hours_wasted"]) + _change(result, first, "gpu_hours_wasted"),
        number(system["gpu_hours_lost_healthy"]),
        _percent(found["precision"]),
        _percent(found["recall"]),
        _percent(found["fpr"]),
        number(found["delay_evals_mean"], 2),
        number(quality["delivered_score_mean"]),
    ]


def _hours(result: dict[str, Any], first: dict[str, Any], name: str) -> str:
    value = result["system"][name]
    return "-" if value is None else number(value / 3600, 3) + _change(result, first, name)


def _change(result: dict[str, Any], first: dict[str, Any], name: str) -> str:
    """Return the change against the first line in brackets; nothing for that line itself."""
    new, old = result["system"][name], first["system"][name]
    if result is first or not old or new is None:
        return ""
    return f" ({100 * (new / old - 1):+.1f} %)"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
