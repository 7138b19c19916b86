"""Gates of CI, as pytest options, so that pytest's own closing line tells the whole truth.

--no-skips         a skipped test is a failed run: in CI everything that tests need is there
--must-run PREFIX  tests whose id starts so must have been run, and none of them skipped
--await-run=FILE   another run, beside this one, leaves its exit status in FILE: end after it, and
                   fail if it failed; its coverage data counts too (with "=": see .ci/run)
--coverage-gates   branch coverage of each group of packages must reach its bound
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DECIDING = ("core", "detectors", "schedulers", "policies", "metrics")
"""Packages that decide what happens to somebody's job."""

BOUNDS = (
    (95, [f"src/evalstop/{package}/*" for package in DECIDING], []),
    (85, ["src/evalstop/*"], [f"src/evalstop/{package}/*" for package in DECIDING]),
)
"""Least branch coverage in percent: (bound, include, omit)."""

AWAITED_S = 5400.0
"""Seconds another run gets, from the end of this one's tests, before it counts as lost."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("evalstop gates")
    group.addoption("--no-skips", action="store_true", help="fail if any test was skipped")
    group.addoption("--must-run", action="append", default=[], metavar="PREFIX")
    group.addoption("--await-run", action="append", default=[], metavar="FILE", type=Path)
    group.addoption("--coverage-gates", action="store_true", help="check bounds (needs --cov)")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist, the gates are the controller's
        config.pluginmanager.register(Gates(config), "evalstop-gates")


@dataclass(eq=False)  # plugins are told apart by identity
class Gates:
    config: pytest.Config
    passed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self.skipped[report.nodeid] = str(why)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Iterator[object]:
        # Last, so within pytest-cov's: it gathers all coverage data when its loop is over.
        result = yield
        self.complaints += awaited_complaints(self.config.getoption("--await-run"))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        # After the tests and after pytest-cov has written its data, before the summary.
        if self.config.getoption("--no-skips"):
            self.complaints += [f"skipped: {test} ({why})" for test, why in self.skipped.items()]
        for prefix in self.config.getoption("--must-run"):
            if not any(test.startswith(prefix) for test in self.passed):
                self.complaints.append(f"no test of {prefix}* has run and passed")
            self.complaints += [
                f"must run, but was skipped: {test}"
                for test in self.skipped
                if test.startswith(prefix)
            ]
        if self.config.getoption("--coverage-gates"):
            self.complaints += coverage_complaints()
        if self.complaints and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.complaints:
            terminalreporter.section("gates", sep="=", red=True)
            for complaint in self.complaints:
                terminalreporter.line(complaint, red=True)


def awaited_complaints(
    files: Sequence[Path], *, within_s: float = AWAITED_S, every_s: float = 0.5
) -> list[str]:
    """Wait until each of the files holds the exit status of a run; tell of those that failed."""
    deadline = time.monotonic() + within_s
    complaints = []
    for file in files:
        while not (status := _status(file)) and time.monotonic() < deadline:
            time.sleep(every_s)
        if not status:
            complaints.append(f"the run beside this one has not ended: {file.name}")
        elif status != "0":
            complaints.append(f"the run beside this one failed with {status}: {file.name}")
    return complaints


def _status(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def coverage_complaints() -> list[str]:
    """Hold the coverage data that was just written against `BOUNDS`."""
    import coverage

    data = coverage.Coverage()
    data.load()
    complaints = []
    for bound, include, omit in BOUNDS:
        table = StringIO()
        try:
            reached = data.report(
                include=include, omit=omit, file=table, skip_covered=True, skip_empty=True
            )
        except coverage.exceptions.NoDataError:
            complaints.append(f"no coverage was measured in {' '.join(include)}")
            continue
        if reached < bound:
            complaints.append(
                f"branch coverage {reached:.1f} % < {bound} % of {' '.join(include)}"
                f"\n{table.getvalue()}"
            )
    return complaints
