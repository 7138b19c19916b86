"""One self-contained page of a replay: every run's curve, its best, its stops and the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from evalstop.reports.curve_figure import Mark, curve_figure, figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from evalstop.traces.results import Replay, Replayed
    from evalstop.traces.series import Series

__all__ = ["replay_page", "write_page"]

_COLOURS = 6


class _Card(NamedTuple):
    """A run as the page shows it."""

    series: Series
    figure: Markup
    results: Sequence[Replayed]
    saved: float

    @property
    def fired(self) -> bool:
        return any(result.fired for result in self.results)


def write_page(path: Path, report: Replay) -> None:
    """Write the page to ``path``."""
    path.write_text(replay_page(report), encoding="utf-8", errors="backslashreplace")


def replay_page(report: Replay) -> str:
    """Return the page as HTML, runs ordered by the largest share of steps that a rule saves."""
    environment = Environment(
        loader=PackageLoader("evalstop.reports"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figure
    colours = {spec: f"c{i % _COLOURS}" for i, spec in enumerate(report.summary)}
    return environment.get_template("replay.html.j2").render(
        cards=_cards(report, colours),
        summary=report.summary,
        metrics=len({series.metric for series in report.series}),
        colours=colours,
        errors=report.errors,
        warnings=report.warnings,
    )


def _cards(report: Replay, colours: dict[str, str]) -> list[_Card]:
    runs = len(report.series)
    cards = []
    for index, series in enumerate(report.series):
        results = report.results[index::runs]  # rule by rule, each in the order of the series
        marks = [
            Mark(result.stop_step, colours[result.rule])
            for result in results
            if result.stop_step is not None
        ]
        # The figure is our own markup; what came from files is escaped in it.
        safe = Markup(curve_figure(series, marks, results[0].best_step))  # noqa: S704 -- see above
        cards.append(_Card(series, safe, results, max(r.saved_fraction for r in results)))
    return sorted(cards, key=lambda card: (-card.saved, card.series.trace_id))
