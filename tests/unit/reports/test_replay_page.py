import math
import re
from html.parser import HTMLParser

import pytest

from evalstop.config.rules import parse_rule
from evalstop.reports.curve_figure import curve_figure, figure, thinned
from evalstop.reports.replay_page import replay_page, write_page
from evalstop.traces.replay import replay_series
from evalstop.traces.results import SourceError
from evalstop.traces.series import Curve, normalise

HOSTILE = "<script>alert('x')</script>\"&"


def run(name, scores, **columns):
    steps = range(len(scores))
    curve = Curve(trace_id=name, source="s", metric="acc", steps=steps, scores=scores, **columns)
    return normalise(curve, "max", "rlhf")


@pytest.fixture
def report():
    runs = [
        run("goes on", [0.1, 0.2, 0.3, 0.4]),
        run("stops late", [0.1, 0.2, 0.5, 0.4, 0.3, 0.2]),
        run("stops early", [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], stderrs=[0.1] * 7),
        run(HOSTILE, [math.nan, math.nan]),
    ]
    return replay_series(runs, [parse_rule("consecutive:k=2"), parse_rule("consecutive:k=3")])


class Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.opened, self.closed, self.addresses, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        self.addresses += [v for k, v in attrs if k in {"src", "href", "xlink:href", "action"}]

    def handle_endtag(self, tag):
        self.closed.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    collector = Collector()
    collector.feed(page)
    return collector


def test_the_page_needs_nothing_from_elsewhere(report):
    page = replay_page(report)
    assert parsed(page).addresses == []
    assert "http" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_runs_are_sorted_by_what_is_saved(report):
    names = re.findall(r"<h3>(.*?)</h3>", replay_page(report))
    assert names[:2] == ["stops early", "stops late"]
    assert len(names) == 4


def test_names_from_files_are_text_never_markup(report):
    page = parsed(replay_page(report))
    assert page.opened.count("script") == 1
    assert HOSTILE in "".join(page.text)


def test_every_run_has_its_curve_its_best_and_a_line_a_stop(report):
    page = replay_page(report)
    assert page.count("<svg") == 4
    assert page.count('class="best"') == 3
    fired = sum(result.fired for result in report.results)
    assert page.count('<path class="stop') == fired == 4
    assert page.count('class="band"') == 1
    assert "no finite score" in page


def test_no_line_joins_attempts_or_epochs():
    rewound = Curve(
        trace_id="rewound", source="s", metric="acc", steps=[0, 1, 2, 3, 1, 2, 3, 4],
        scores=[0.1, 0.2, 0.3, 0.4, 0.2, 0.1, 0.1, 0.1], attempts=[0] * 4 + [1] * 4,
        epoch_keys=["a"] * 6 + ["b"] * 2, stderrs=[0.01] * 8,
    )  # fmt: skip
    picture = curve_figure(normalise(rewound, "max"), [], None)
    lines = re.findall(r'class="line" points="([^"]*)"', picture)
    assert [len(line.split()) for line in lines] == [4, 2, 2]
    for line in lines:
        places = [float(place.split(",")[0]) for place in line.split()]
        assert places == sorted(places)
    assert picture.count('class="band"') == 3


def test_the_band_is_shown_whole():
    picture = curve_figure(run("noisy", [0.5, 0.4, 0.6], stderrs=[0.2] * 3), [], None)
    (band,) = re.findall(r'class="band" points="([^"]*)"', picture)
    heights = [float(place.split(",")[1]) for place in band.split()]
    assert len(set(heights)) == 6  # none is cut off at an edge


def test_regrets_of_several_metrics_are_not_mixed_silently(report):
    mixed = "metrics: the mean and the largest regret below mix their units"
    assert mixed not in replay_page(report)
    other = normalise(Curve(trace_id="a", source="s", metric="f1", steps=[1], scores=[0.5]), "max")
    both = replay_series([*report.series, other], [parse_rule("none")])
    assert f"2 {mixed}" in replay_page(both)


def test_the_summary_and_the_reasons_are_there(report):
    words = "".join(parsed(replay_page(report)).text)
    for spec, one in report.summary.items():
        assert re.search(rf"{spec}\s*4\s*{one.fired}", words)
    assert "alarm: statistic 2 >= 2" in words
    assert "lets it run" in words


def test_what_could_not_be_read_is_on_the_page(tmp_path):
    report = replay_series([], [parse_rule("none")])
    from msgspec.structs import replace

    path = tmp_path / "page.html"
    write_page(path, replace(report, errors=(SourceError(source="a.csv", message="is empty"),)))
    assert "a.csv: is empty" in path.read_text()


def test_long_curves_are_thinned_to_their_extremes():
    points = run(
        "long", [math.sin(i / 50) + (5.0 if i == 7777 else 0.0) for i in range(100_000)]
    ).points
    shown = thinned(points)
    assert len(shown) < 300
    assert max(p.score for p in shown) == max(p.score for p in points)
    assert (shown[0].step, shown[-1].step) >= (0, 99_999)
    assert [p.step for p in shown] == sorted(p.step for p in shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.inf, "-"), (0.123456, "0.1235"), (33860.4, "33,860"), (1e12, "1e+12")],
)
def test_numbers_are_written_for_people(value, text):
    assert figure(value) == text
