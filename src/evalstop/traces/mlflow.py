"""MLflow tracking servers and stores: ``mlflow:URI[?experiment=NAME][&run=ID]``.

A server (``http://...``) is asked over its REST interface with the standard library. Any other
URI (``sqlite:///mlflow.db``, a folder) needs MLflow itself (extra ``mlflow``).

Every list is read to its end: a page token that comes back a second time ends the reading and
marks the history partial (mlflow's own clients have looped on one), and so does a history that
lacks the run's newest value. Partial histories are never a reason to stop (R27).
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evalstop.core.errors import InputError, MissingExtraError, ReadError
from evalstop.traces.rewinds import attempts_of
from evalstop.traces.series import Curve, Loaded, SkippedPoint
from evalstop.traces.siblings import with_errors
from evalstop.traces.trainer_state import is_bookkeeping

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "PREFIX",
    "Address",
    "History",
    "Library",
    "Run",
    "Server",
    "curve_of_history",
    "read_mlflow",
    "store_of",
]

PREFIX = "mlflow:"
_PAGE = 1000
_MOST_PAGES = 10_000
_NEWEST_FIRST = "attributes.start_time DESC"
_TIMEOUT_SECONDS = 30.0

Call = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""A REST call: the path below ``/api/2.0/mlflow/`` and its parameters; returns the answer."""


class Address(NamedTuple):
    """What ``mlflow:URI`` names."""

    uri: str
    experiment: str
    run: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the parts of ``mlflow:URI?experiment=NAME&run=ID``."""
        uri, _, query = text.removeprefix(PREFIX).partition("?")
        if not uri:
            msg = "expected mlflow:URI, for instance mlflow:http://localhost:5000?experiment=NAME"
            raise InputError(msg)
        options = dict(urllib.parse.parse_qsl(query))
        unknown = set(options) - {"experiment", "run"}
        if unknown:
            msg = f"mlflow:URI knows the options experiment and run, but not {sorted(unknown)}"
            raise InputError(msg)
        return cls(uri, options.get("experiment", ""), options.get("run", ""))


class History(NamedTuple):
    """A metric's history: (step, value, timestamp in ms) as reported, and why it is partial."""

    points: Sequence[tuple[int, float, int]]
    partial: str = ""


class Run(NamedTuple):
    """A run, and the newest value of each metric."""

    id: str
    name: str
    newest: Mapping[str, float]


class Server:
    """The REST interface of one tracking server.

    Args:
        uri: address of the server.
        call: how to call it; by HTTP unless a test says otherwise.
    """

    def __init__(self, uri: str, call: Call | None = None) -> None:
        self._uri = uri.rstrip("/")
        self._call = call or self._by_http

    def runs(self, address: Address, filter_: str = "") -> list[Run]:
        """Return the runs that the address names, those that begin last first.

        Args:
            address: an experiment or one run.
            filter_: MLflow's filter, where only some runs of the experiment are wanted.
        """
        if address.run:
            answer = self._call("runs/get", {"run_id": address.run})
            return [_run(answer["run"])]
        experiments = [
            experiment["experiment_id"]
            for page in self._pages("experiments/search", {"max_results": _PAGE})
            for experiment in page.get("experiments", ())
            if address.experiment in {"", experiment["name"], experiment["experiment_id"]}
        ]
        if not experiments:
            raise ReadError(self._uri, f"there is no experiment {address.experiment!r}")
        query = {
            "experiment_ids": experiments,
            "filter": filter_,
            "order_by": [_NEWEST_FIRST],
            "max_results": _PAGE,
        }
        return [
            _run(run) for page in self._pages("runs/search", query) for run in page.get("runs", ())
        ]

    def history(self, run: Run, metric: str) -> History:
        """Return a metric's whole history."""
        query = {"run_id": run.id, "metric_key": metric, "max_results": _PAGE}
        points: list[tuple[int, float, int]] = []
        try:
            for page in self._pages("metrics/get-history", query):
                points += [_point(metric_) for metric_ in page.get("metrics", ())]
        except _LoopError as error:
            return History(points, error.message)
        return History(points, _missing_newest(points, run.newest.get(metric, math.nan)))

    def _pages(self, path: str, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        seen: set[str] = set()
        token = ""
        for _ in range(_MOST_PAGES):
            page = self._call(path, {**query, "page_token": token} if token else query)
            yield page
            token = page.get("next_page_token") or ""
            if not token:
                return
            if token in seen:
                msg = f"{path} gave the page token {token!r} twice"
                raise _LoopError(self._uri, msg)
            seen.add(token)
        msg = f"{path} has more than {_MOST_PAGES} pages"
        raise _LoopError(self._uri, msg)

    def _by_http(self, path: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        url = f"{self._uri}/api/2.0/mlflow/{path}"
        body = None
        if path.endswith("/search"):
            body = json.dumps(parameters).encode()
        else:
            url += "?" + urllib.parse.urlencode(parameters)
        try:
            request = urllib.request.Request(url, data=body, headers=_headers())  # noqa: S310 -- checked to be http(s) in read_mlflow
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 -- same
                value: Mapping[str, Any] = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ReadError(
                url, f"the MLflow server does not answer as it should: {error}"
            ) from error
        return value


class _LoopError(ReadError):
    """A list of pages does not end."""


def read_mlflow(text: str, metric: str | None = None) -> Loaded:  # noqa: ARG001 -- as every reader
    """Read every metric of the runs that ``mlflow:URI`` names, but the evaluation's own timings.

    Raises:
        ReadError: the server does not answer, or there is no run.
        MissingExtraError: the URI is no server's, and MLflow is not installed.
    """
    address = Address.parse(text)
    _require_existing(text, address.uri)
    store = store_of(address.uri)
    try:
        runs = store.runs(address)
        curves = [curve for run in runs for curve in _curves_of_run(store, run, text)]
    except ReadError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        message = (
            "the answer is not one of MLflow's (is this its address?): "
            f"{type(error).__name__}: {error}"
        )
        raise ReadError(address.uri, message) from error
    if not curves:
        raise ReadError(text, f"found {len(runs)} runs, none with a metric")
    return Loaded(curves, [])


def _curves_of_run(store: Server | Library, run: Run, text: str) -> list[Curve]:
    return with_errors(
        [
            curve_of_history(store.history(run, name), source=text, trace_id=run.name, metric=name)
            for name in run.newest
            if not is_bookkeeping(name)
        ]
    )


def _require_existing(text: str, uri: str) -> None:
    """Refuse a local store that is not there: MLflow would make an empty one, folders and all.

    Raises:
        ReadError: there is none.
        MissingExtraError: MLflow is not installed.
    """
    scheme, separator, rest = uri.partition(":")
    if scheme == "sqlite":
        path = rest.removeprefix("///")  # after which an absolute path has a fourth
    elif scheme == "file" or not separator:
        path = rest.removeprefix("//") if separator else uri
    else:
        return
    if path and not Path(path).exists():
        _module()  # who lacks MLflow needs that first
        raise ReadError(text, f"there is no MLflow store at {path}")


def _module() -> Any:  # noqa: ANN401 -- an extra
    """Return MLflow itself.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module("mlflow")
    except ImportError as error:
        package = "mlflow"
        raise MissingExtraError(package, package) from error


def store_of(uri: str) -> Server | Library:
    """Return what answers for a tracking URI.

    Raises:
        MissingExtraError: it is no server's, and MLflow is not installed.
    """
    return Server(uri) if uri.startswith(("http://", "https://")) else Library(uri)


def curve_of_history(history: History, *, source: str, trace_id: str, metric: str) -> Curve:
    """Return a history as a curve in order of its own steps, attempt by attempt.

    Where every report has step 0 (a logger that never said its step) the order of time stands
    in for it: 0, 1, 2, ... A resumed run that goes back opens an attempt.
    """
    written = sorted(history.points, key=lambda point: (point[2], point[0]))
    stepless = len(written) > 1 and all(step == 0 for step, _, _ in written)
    steps = [index if stepless else step for index, (step, _, _) in enumerate(written)]
    points = sorted(
        zip(attempts_of(steps), steps, (value for _, value, _ in written), strict=True),
        key=lambda point: point[:2],
    )
    attempts = [attempt for attempt, step, _ in points if step >= 0]
    return Curve(
        trace_id=trace_id,
        source=source,
        metric=metric,
        steps=[step for _, step, _ in points if step >= 0],
        scores=[value for _, step, value in points if step >= 0],
        attempts=attempts if any(attempts) else None,
        skipped=tuple(
            SkippedPoint(step=step, reason=f"step {step} is negative")
            for _, step, _ in points
            if step < 0
        ),
        partial=history.partial,
    )


class Library:
    """A store that only MLflow itself can open; asked as `Server` is."""

    def __init__(self, uri: str) -> None:
        self._module = _module()
        self._uri = uri
        self._client: Any = self._asked(self._module.MlflowClient, tracking_uri=uri)

    def runs(self, address: Address, filter_: str = "") -> list[Run]:
        """Return the runs that the address names, those that begin last first."""
        if address.run:
            return [_run_of_entity(self._asked(self._client.get_run, address.run))]
        experiments = [
            experiment.experiment_id
            for experiment in self._all(self._client.search_experiments)
            if address.experiment in {"", experiment.name, experiment.experiment_id}
        ]
        if not experiments:
            message = f"there is no experiment {address.experiment!r}"
            raise ReadError(self._uri, message)
        found = self._all(
            self._client.search_runs,
            experiments,
            filter_string=filter_,
            order_by=[_NEWEST_FIRST],
        )
        return [_run_of_entity(run) for run in found]

    def history(self, run: Run, metric: str) -> History:
        """Return a metric's whole history."""
        reported = self._asked(self._client.get_metric_history, run.id, metric)
        points = [(point.step, float(point.value), point.timestamp) for point in reported]
        return History(points, _missing_newest(points, run.newest.get(metric, math.nan)))

    def _all(
        self, search: Callable[..., Any], *arguments: object, **options: object
    ) -> Iterator[Any]:
        token, seen = None, set()
        while True:
            page = self._asked(search, *arguments, max_results=_PAGE, page_token=token, **options)
            yield from page
            token = page.token
            if not token or token in seen:
                return
            seen.add(token)

    def _asked(self, function: Callable[..., Any], *arguments: object, **options: object) -> Any:  # noqa: ANN401 -- MLflow's entities
        try:
            return function(*arguments, **options)
        except Exception as error:  # MLflow raises what its database raises
            message = f"MLflow cannot read it: {str(error).strip().partition(chr(10))[0]}"
            raise ReadError(self._uri, message) from error


def _run_of_entity(run: Any) -> Run:  # noqa: ANN401 -- MLflow's entity
    return Run(run.info.run_id, run.info.run_name or run.info.run_id, dict(run.data.metrics))


def _run(data: Mapping[str, Any]) -> Run:
    facts = data["info"]
    metrics = data.get("data", {}).get("metrics", ())
    return Run(
        facts["run_id"],
        facts.get("run_name") or facts["run_id"],
        {metric["key"]: _value(metric.get("value", math.nan)) for metric in metrics},
    )


def _point(data: Mapping[str, Any]) -> tuple[int, float, int]:
    # Protocol buffers write 64-bit integers as text in JSON, and leave out zeros.
    return (
        int(data.get("step", 0)),
        _value(data.get("value", math.nan)),
        int(data.get("timestamp", 0)),
    )


def _value(value: object) -> float:
    """Return a metric's value; NaN and infinity arrive as text or as bare words."""
    try:
        return float(value)  # type: ignore[arg-type]  # refused just below
    except (TypeError, ValueError):
        return math.nan


def _missing_newest(points: Sequence[tuple[int, float, int]], newest: float) -> str:
    if math.isnan(newest) or any(value == newest for _, value, _ in points):
        return ""
    return f"the history read lacks the run's newest value {newest:g}"


def _headers() -> dict[str, str]:
    """Return headers with the credentials that MLflow's own clients read."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    elif user:
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers
