"""A Slurm job as policies and custody may see it: from its record and what its comment says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evalstop.core.job import JobSpec
from evalstop.ports import Launch

if TYPE_CHECKING:
    from evalstop.backends.slurm.optin import OptIn
    from evalstop.backends.slurm.records import JobRecord
    from evalstop.backends.slurm.tenants import Tenants

__all__ = ["job_launch", "job_spec", "resolve"]

_KIND = re.compile(r"([a-z]{3,}:)?(.*)", re.DOTALL)
_TRACKERS = ("mlflow:", "wandb:")


def job_spec(name: str, record: JobRecord, optin: OptIn, tenants: Tenants) -> JobSpec:
    """Return the job as policies may see it; what Slurm knows of it becomes labels."""
    values = optin.values
    tenant, not_theirs = tenants.of(record, values.get("tenant", ""))
    slurm = {
        "partition": record.partition,
        "account": record.account,
        "qos": record.qos,
        "user": record.user,
        "name": record.name,
        "refused": optin.problem,
        "tenant_refused": not_theirs,
    }
    asked = {key: values.get(key, "") for key in ("metric", "direction", "rule", "evals")}
    asked["evals"] = resolve(asked["evals"], name, record)
    if optin.problem or values.get("optout", "").lower() in {"true", "yes", "1"}:
        asked["evalstop"] = "off"  # the label that guards protect
    return JobSpec(
        id=name,
        tenant=tenant,
        job_type=values.get("job_type", "other"),
        gpus=max(1, record.gpus),
        estimated_s=float(values["estimated_s"]) if values.get("estimated_s") else None,
        labels={key: value for key, value in {**slurm, **asked}.items() if value},
    )


def job_launch(name: str, record: JobRecord, optin: OptIn) -> Launch:
    """Return what is known of how the job runs; its command is its owner's business."""
    values = optin.values
    return Launch(
        command=(),
        cwd=record.work_dir,
        checkpoints=resolve(values.get("checkpoints", ""), name, record),
        save_signal=values.get("save_signal", ""),
        grace_s=float(values.get("grace_s", "30")),
    )


def resolve(place: str, name: str, record: JobRecord) -> str:
    """Return a place of a comment in full: %j is the job's id, a path is under its folder.

    A place may be a path, a kind and a path (``tensorboard:runs``), a tracker's address or a URL.
    """
    kind, path = _KIND.fullmatch(place.replace("%j", name)).groups()  # type: ignore[union-attr]  # fits all
    if not path or path.startswith("/") or kind in _TRACKERS or "://" in path:
        return f"{kind or ''}{path}"
    return f"{kind or ''}{record.work_dir}/{path}"
