"""``evalstop lab``: real small RLHF runs that over-optimise, and what rules do to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalstop.cli.output import number, print_table, tell, version, write_json
from evalstop.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from evalstop.lab.series import LabRun

__all__ = ["app"]

app = typer.Typer(name="lab")

_RULES = (
    "default",
    "consecutive:k=2",
    "consecutive:k=3",
    "patience:k=3",
    "cusum:threshold=5",
    "stop-at:fraction=0.65",
    "loss-plateau",
)
_Json = Annotated[bool, typer.Option("--json", help="Machine output on stdout.")]
_From = Annotated[
    Path | None,
    typer.Option("--from", help="Folder of a sweep; the recorded runs that ship by default."),
]


def _runs(folder: Path | None) -> list[LabRun]:
    from evalstop.lab.series import recorded_runs, runs_of_sweep  # noqa: PLC0415 -- when wanted

    return recorded_runs() if folder is None else runs_of_sweep(folder)


@app.command("list")
def list_(*, folder: _From = None, as_json: _Json = False) -> None:
    """List the recorded runs: arm, seed, and both labels."""
    runs = _runs(folder)
    rows: list[dict[str, Any]] = []
    for run in runs:
        measured = run.measured()
        rows.append(
            {
                "trace_id": run.trace_id,
                "job_type": run.job_type,
                "metric": run.metric,
                "evals": len(run.steps),
                "construction": run.construction,
                "measured": measured.label,
                "drop_se": measured.drop,
                "gain_se": measured.gain,
                "peak_index": measured.peak_index,
                "final_kl": float(run.kl[-1]),
                "seconds": run.seconds,
            }
        )
    if as_json:
        write_json({"results": rows, "version": version()})
        return
    print_table(
        f"{len(rows)} runs of the laboratory",
        ["run", "built to be", "measured", "gain, SE", "drop, SE", "peak at", "KL, nats"],
        [
            [
                row["trace_id"],
                row["construction"],
                row["measured"],
                number(row["gain_se"], 3),
                number(row["drop_se"], 3),
                str(row["peak_index"]),
                number(row["final_kl"], 3),
            ]
            for row in rows
        ],
    )


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for the runs; those done are not redone.")],
    *,
    seeds: Annotated[str, typer.Option(help="A number N for 0..N-1, or a list: 3,7.")] = "1",
    arm: Annotated[list[str] | None, typer.Option(help="Arm to run; repeatable. All.")] = None,
    as_json: _Json = False,
) -> None:
    """Train small language models against proxies (extra `lab`; 10 to 20 s a run on one core)."""
    from evalstop.lab.arms import ARMS, arm_named  # noqa: PLC0415 -- when wanted

    try:
        arms = tuple(arm_named(name) for name in arm) if arm else ARMS
    except KeyError as error:
        raise InputError(error.args[0]) from None
    wanted = _seeds(seeds)
    try:
        from evalstop.lab.sweep import sweep  # noqa: PLC0415 -- needs the extra
    except ImportError as error:
        raise MissingExtraError(error.name or "trl", "lab") from error
    made = sweep(out, seeds=wanted, arms=arms, said=tell)
    if as_json:
        write_json({"results": {"out": str(out), "new_runs": made}, "version": version()})
    else:
        tell(f"{made} new runs in {out}")


@app.command()
def pack(
    folder: Annotated[Path, typer.Option("--from", help="Folder of a sweep.")],
    out: Annotated[Path, typer.Option(help="Folder for lab_runs.parquet, lab_panels.parquet.")],
    *,
    as_json: _Json = False,
) -> None:
    """Write a sweep's series as Parquet: what ships with the package was made so."""
    from evalstop.lab.series import PANELS_FILE, RUNS_FILE, pack  # noqa: PLC0415 -- when wanted

    runs = _runs(folder)
    pack(runs, runs_file=out / RUNS_FILE.name, panels_file=out / PANELS_FILE.name)
    if as_json:
        write_json({"results": {"runs": len(runs), "out": str(out)}, "version": version()})
    else:
        tell(f"{len(runs)} runs packed into {out}")


@app.command()
def fit(*, folder: _From = None, as_json: _Json = False) -> None:
    """Fit R = d (alpha - beta log d) to each arm that optimises a learned proxy."""
    from evalstop.lab.law import fit_arms  # noqa: PLC0415 -- when wanted

    fits = fit_arms(_runs(folder))
    if as_json:
        write_json({"results": fits, "version": version()})
        return
    print_table(
        "R = d (alpha - beta log d), d = sqrt(KL)",
        ["arm", "runs", "alpha", "beta", "R2", "KL at peak"],
        [
            [
                one.arm,
                str(one.runs),
                f"{one.alpha:.3f} [{one.alpha_interval[0]:.3f}, {one.alpha_interval[1]:.3f}]",
                f"{one.beta:.3f} [{one.beta_interval[0]:.3f}, {one.beta_interval[1]:.3f}]",
                f"{one.r_squared:.2f}",
                number(one.peak_kl, 3),
            ]
            for one in fits
        ],
    )


@app.command()
def proof(
    *,
    folder: _From = None,
    rule: Annotated[list[str] | None, typer.Option(help="Rule to judge; repeatable.")] = None,
    panels: Annotated[
        int, typer.Option(help="Panels of held-out prompts to judge on, each a noise replicate.")
    ] = 8,
    as_json: _Json = False,
) -> None:
    """Replay rules on the recorded runs and hold their stops against what was true."""
    from evalstop.lab.arms import PANELS  # noqa: PLC0415 -- when wanted
    from evalstop.lab.proof import judge_rules, prove  # noqa: PLC0415 -- when wanted

    if not 1 <= panels <= PANELS:
        msg = f"--panels must lie in 1..{PANELS}, but it is {panels}"
        raise InputError(msg)
    judged = judge_rules(_runs(folder), rule or _RULES, panels=panels)
    proofs = [prove(spec, of_rule) for spec, of_rule in judged.items()]
    if as_json:
        write_json({"results": proofs, "version": version()})
        return
    print_table(
        f"Rules on {len(next(iter(judged.values()))) // panels} runs x {panels} panels",
        ["rule", "healthy stopped", "95 %", "declined found", "delay", "reclaimed", "regret, SE"],
        [
            [
                one.rule,
                f"{one.false_stops_measured.count}/{one.false_stops_measured.of}",
                f"{one.false_stops_measured.low:.1%} - {one.false_stops_measured.high:.1%}",
                f"{one.found.count}/{one.found.of}",
                number(one.delay_mean, 3),
                number(one.reclaimed_mean, 2),
                number(one.regret_mean, 2),
            ]
            for one in proofs
        ],
    )


def _seeds(text: str) -> tuple[int, ...]:
    try:
        listed = tuple(int(word) for word in text.split(","))
    except ValueError:
        msg = f"--seeds must be a number or a list such as 3,7, but it is {text!r}"
        raise InputError(msg) from None
    return listed if "," in text else tuple(range(listed[0]))
