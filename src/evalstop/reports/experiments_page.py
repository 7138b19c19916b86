"""The report of a reproduction: a verdict table first, then every figure with its data."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from msgspec import Struct

from evalstop.reports.charts import chart_svg
from evalstop.reports.exhibits import Chart, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ReportHead", "verdict_rows", "write_report"]


class ReportHead(Struct, frozen=True, kw_only=True):
    """What stands above the figures."""

    claims: list[dict[str, Any]]
    quick: bool
    version: str
    commit: str
    command: str
    runs: int
    events: int
    left_out: tuple[str, ...]


def write_report(folder: Path, head: ReportHead, sections: Sequence[Section]) -> None:
    """Write report.html, report.md, and for each chart an SVG and a CSV under figures/."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    drawn: dict[str, Markup] = {}
    for section in sections:
        for exhibit in section.exhibits:
            if isinstance(exhibit, Chart):
                svg = chart_svg(exhibit)
                (figures / f"{exhibit.name}.svg").write_text(svg, encoding="utf-8")
                (figures / f"{exhibit.name}.csv").write_text(chart_csv(exhibit), encoding="utf-8")
                drawn[exhibit.name] = Markup(svg)  # noqa: S704 -- matplotlib escapes its texts
    for name, escape in (("report.html", True), ("report.md", False)):
        environment = Environment(
            loader=PackageLoader("evalstop.reports"),
            autoescape=select_autoescape(default=escape, default_for_string=escape),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.tests["chart"] = _is_chart
        text = environment.get_template(f"experiments.{name.rpartition('.')[2]}.j2").render(
            head=head, verdicts=verdict_rows(head.claims), sections=sections, drawn=drawn
        )
        (folder / name).write_text(text, encoding="utf-8")


def verdict_rows(claims: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str, str, str]]:
    """Return id, paper, ours with its interval, verdict, seeds and note of each claim."""
    rows = []
    for claim in claims:
        whole = claim["id"] == "threshold_best_k"
        signed = claim["id"] == "jain_unharmed"
        ours = _figure(claim["ours"], whole=whole, signed=signed)
        if claim["interval"] is not None:
            low, high = (_figure(end, whole=whole, signed=signed) for end in claim["interval"])
            ours += f" ({low} to {high})"
        verdict = "holds" if claim["holds"] else f"does not hold: {claim['direction']}"
        rows.append(
            (claim["id"], claim["paper"], ours, verdict, str(claim["seeds"]), claim["note"])
        )
    return rows


def chart_csv(chart: Chart) -> str:
    """Return the data of a chart as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["series", chart.x_label, chart.y_label, "low", "high"])
    for line in chart.lines:
        for x, y, low, high in zip(line.x, line.y, line.low, line.high, strict=True):
            writer.writerow([line.label, x, *(f"{value:.6g}" for value in (y, low, high))])
    return text.getvalue()


def _figure(value: float | None, *, whole: bool, signed: bool) -> str:
    if value is None:
        return "-"
    if whole:
        return f"{value:.0f}"
    return f"{value:+.3f}" if signed else f"{100 * value:.1f} %"


def _is_chart(exhibit: Chart | Table) -> bool:
    return isinstance(exhibit, Chart)
