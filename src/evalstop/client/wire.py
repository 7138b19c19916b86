"""What goes over the wire, and where to: the environment, one report, one batch.

The server's side is ``POST {EVALSTOP_URL}/api/v1/jobs/{EVALSTOP_JOB_ID}/evals`` with the body
``{"evals": [report, ...]}``, ``Authorization: Bearer {EVALSTOP_TOKEN}`` and an
``Idempotency-Key`` that stays the same when a batch is sent again. Its answer may say
``{"stop": true}``, and so may ``GET {EVALSTOP_URL}/api/v1/jobs/{EVALSTOP_JOB_ID}``, asked by jobs
that want to know. Without a server the same reports go into a JSONL file in the long form that
``evalstop replay`` reads.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Destination", "Report", "batch_body", "is_first_rank", "make_report"]

Report = dict[str, "str | int | float | bool | dict[str, float] | None"]
"""One evaluation as plain data; absent values are left out."""


class Destination(NamedTuple):
    """Where reports go. No dataclass: that module takes longer to import than all of ours.

    Attributes:
        url: base address of the server; empty for none.
        job: this job's name; ``trace_id`` in the file.
        token: bearer token; empty for none.
        file: JSONL file for reports that reach no server.
    """

    url: str
    job: str
    token: str
    file: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Destination:
        """Read EVALSTOP_URL, EVALSTOP_JOB_ID, EVALSTOP_TOKEN and EVALSTOP_FILE.

        A job id is needed to use the server: without one everything goes into the file, by
        default ``evalstop-evals.jsonl`` in the working directory.
        """
        job = environment.get("EVALSTOP_JOB_ID", "")
        return cls(
            url=environment.get("EVALSTOP_URL", "").rstrip("/") if job else "",
            job=job or "run",
            token=environment.get("EVALSTOP_TOKEN", ""),
            file=environment.get("EVALSTOP_FILE", "") or "evalstop-evals.jsonl",
        )

    @property
    def job_address(self) -> str:
        """Where the server keeps this job."""
        from urllib.parse import quote  # noqa: PLC0415 -- the training script need not pay for it

        return f"{self.url}/api/v1/jobs/{quote(self.job, safe='')}"

    @property
    def address(self) -> str:
        """Where batches are posted."""
        return f"{self.job_address}/evals"

    def headers(self, key: str = "") -> dict[str, str]:
        """Return the headers of a request, of a batch with the idempotency key ``key``."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return headers


def is_first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether this process is the one of its job that reports (RANK unset or 0)."""
    return environment.get("RANK", "0") in {"", "0"}


def _number(value: object) -> float | None:
    """Return a float of anything that converts to one (numpy, torch), or None."""
    if value is None:
        return None
    return float(value)  # type: ignore[arg-type] # whoever cannot be converted raises, and is caught


def _finite_numbers(given: object) -> dict[str, float]:
    """Return the named values that are finite numbers."""
    numbers = {str(name): _number(value) for name, value in dict(given).items()}  # type: ignore[call-overload] # whoever is no mapping raises, and is caught
    return {name: x for name, x in numbers.items() if x is not None and math.isfinite(x)}


def make_report(
    *,
    step: object,
    score: object,
    optional: Mapping[str, object],
    reported_at: float,
) -> Report:
    """Return one evaluation as JSON-safe data.

    A score that is not finite travels as null with ``not_finite`` set (JSON holds no NaN).

    Raises:
        TypeError, ValueError: if ``step`` or ``score`` is no number.
    """
    value = _number(score)
    whole = int(step)  # type: ignore[call-overload] # as above
    if whole != _number(step):
        message = f"step must be a whole number, but it is {step!r}"
        raise ValueError(message)
    made: Report = {"step": whole, "reported_at": reported_at}
    if value is None or math.isfinite(value):
        made["score"] = value
    else:
        made["score"] = None
        made["not_finite"] = str(value)
    for name, given in optional.items():
        if given is None or given == "":
            continue
        if isinstance(given, str):
            made[name] = given
        elif name == "signals":
            made[name] = _finite_numbers(given)
        elif name in {"n_items", "attempt"}:
            made[name] = int(given)  # type: ignore[call-overload] # as above
        else:
            number = _number(given)
            if number is not None and math.isfinite(number):
                made[name] = number
    return made


def batch_body(reports: Sequence[Report]) -> bytes:
    """Return the body of a batch."""
    return json.dumps({"evals": list(reports)}, allow_nan=False).encode()


def file_line(job: str, report: Report) -> str:
    """Return one line of the JSONL file: the long form that ``evalstop replay`` reads."""
    line: Report = {"trace_id": job, **report}
    direction = line.pop("direction", None)
    if direction in {"max", "min"}:
        line["greater_is_better"] = direction == "max"
    return json.dumps(line, allow_nan=False) + "\n"
