"""What Slurm prints, as records. Pure functions; no version of Slurm is asked for.

Three forms are read: `squeue -O` with separators of our choice (the default: two hundred bytes a
job), `squeue --json` as 22.05 writes it (a state is a string, a number is a number) and as 23.11
and later do (a state is a list, a number is ``{set, infinite, number}``), and `scontrol -o -d
show job`, the one source of exact devices and exit codes. What 22.05 and 24.11 print was recorded
and is read back in the tests. Fields that are absent or strange
become "unknown", never an error: one odd job must not blind us to the others.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from msgspec import Struct

from evalstop.core.errors import ReadError

__all__ = [
    "COMPLETING",
    "ENDED",
    "FIELDS",
    "HELD_BACK",
    "JobDetail",
    "JobRecord",
    "NodeRecord",
    "expand_nodes",
    "parse_detail",
    "parse_jobs_json",
    "parse_jobs_text",
    "parse_nodes_text",
]

# From `man squeue`, JOB STATE CODES. COMPLETING is a flag on top of these and wins: processes of
# the job may still live. Whatever is neither ended nor held back, holds its nodes.
ENDED: Final = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    ]
)
HELD_BACK: Final = frozenset(
    ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"]
)

COMPLETING: Final = "COMPLETING"

SEPARATOR: Final = "\x1f"  # in no comment that anyone types
END: Final = "\x1e"
FIELDS: Final = (
    "JobArrayID",
    "State",
    "UserName",
    "Account",
    "QOS",
    "Partition",
    "Name",
    "NumNodes",
    "NumTasks",
    "NodeList",
    "RestartCnt",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "tres-alloc",
    "Reason",
    "WorkDir",
    "SubmitTime",
    "admin_comment",
    "Comment",
)
NODE_FIELDS: Final = ("NodeList", "Gres", "GresUsed", "StateLong")

_INFINITE: Final = 2**63
_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE"})
_GPU_COUNT = re.compile(r"gpu(?::[^:,=()\s]+)?[:=](\d+)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9:/_]*)=(\S*)")
_DEVICES = re.compile(r"gpu(?::[^:,=()\s]+)?:(\d+)(?:\(IDX:([^)]*)\))?")
_ON_NODES = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_NODE_GROUP = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*),?")


class JobRecord(Struct, frozen=True, kw_only=True):
    """One job of a listing.

    Attributes:
        id: as people write it: 17, or 17_3 for a task of an array.
        state: Slurm's word; COMPLETING wins over the state below it.
        nodes: names of the nodes it runs or ran on.
        gpus: GPUs it holds or asks for; 0 if it asks for none or in a way we cannot read.
        restarts: how often it was requeued.
        submitted_at: seconds since 1970 of its submission or last requeue; 0 if unknown.
        user, account, qos, partition, name, reason, work_dir, admin_comment, comment: as Slurm
            says; empty where unset.
    """

    id: str
    state: str
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    restarts: int = 0
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    name: str = ""
    reason: str = ""
    work_dir: str = ""
    submitted_at: int = 0
    admin_comment: str = ""
    comment: str = ""

    @property
    def held(self) -> bool:
        """Whether it waits and may not start until somebody releases it."""
        held = "held" in self.reason.lower() or "HOLD" in self.state
        return held and self.state in HELD_BACK


class JobDetail(Struct, frozen=True, kw_only=True):
    """What only `scontrol -d show job` knows.

    Attributes:
        devices: GPUs held on each node, as (node, indices, count); indices are empty where the
            site's GPUs have no numbers.
        exit_code: of an ended job; negative for a signal.
        requeue: whether Slurm may requeue it.
        begun: whether it runs or has run, and is not over.
        completing: whether a run of it is being ended just now.
    """

    devices: tuple[tuple[str, frozenset[int], int], ...] = ()
    exit_code: int | None = None
    requeue: bool = False
    begun: bool = False
    completing: bool = False


class NodeRecord(Struct, frozen=True, kw_only=True):
    """GPUs of one node: how many, how many allocated (and which), and whether it is in service."""

    name: str
    gpus: int
    used: int
    indices: frozenset[int]
    in_service: bool


def parse_jobs_text(text: str) -> list[JobRecord]:
    """Return the jobs that `squeue -O` printed with our fields and separators."""
    records = []
    for line in text.split(END):
        values = [value.strip() for value in line.lstrip("\n").split(SEPARATOR)]
        if len(values) != len(FIELDS):
            continue
        row = dict(zip(FIELDS, ("" if v in _NOTHING else v for v in values), strict=True))
        nodes = row["NodeList"]
        records.append(
            JobRecord(
                id=row["JobArrayID"],
                state=row["State"].upper(),
                nodes=expand_nodes(nodes),
                gpus=_gpus(
                    allocated=row["tres-alloc"],
                    per_job=row["tres-per-job"],
                    per_node=row["tres-per-node"],
                    per_task=row["tres-per-task"],
                    nodes=_number(row["NumNodes"]),
                    tasks=_number(row["NumTasks"]),
                ),
                restarts=_number(row["RestartCnt"]),
                user=row["UserName"],
                account=row["Account"],
                qos=row["QOS"],
                partition=row["Partition"],
                name=row["Name"],
                reason=row["Reason"],
                work_dir=row["WorkDir"],
                submitted_at=_number(row["SubmitTime"]),
                admin_comment=row["admin_comment"],
                comment=row["Comment"],
            )
        )
    return records


def parse_jobs_json(text: str) -> list[JobRecord]:
    """Return the jobs that `squeue --json` printed, in the form of any version.

    Raises:
        ReadError: it is not JSON, or has no jobs in it.
    """
    try:
        jobs = json.loads(text)["jobs"]
    except (ValueError, KeyError, TypeError) as error:
        source = "squeue --json"
        message = f"expected JSON with a list of jobs, got {text[:60]!r} ({error!r})"
        raise ReadError(source, message) from error
    return [_job_from_json(job) for job in jobs if isinstance(job, dict) and "job_id" in job]


def parse_detail(text: str) -> JobDetail:
    """Return what one line of `scontrol -o -d show job` says of a job."""
    pairs = dict(_PAIR.findall(text.partition(" Command=")[0]))
    devices = []
    for names, gres in _ON_NODES.findall(text):
        for count, indices in _DEVICES.findall(gres):
            devices += [(node, _indices(indices), int(count)) for node in expand_nodes(names)]
    code, _, number = pairs.get("ExitCode", "").partition(":")
    ended = pairs.get("JobState", "") in ENDED
    return JobDetail(
        devices=tuple(devices),
        exit_code=(-_number(number) or _number(code)) if ended and code.isdigit() else None,
        requeue=pairs.get("Requeue") == "1",
        begun=not ended
        and (pairs.get("JobState") not in HELD_BACK or _number(pairs.get("Restarts")) > 0),
        completing=pairs.get("JobState") == COMPLETING,
    )


def parse_nodes_text(text: str) -> list[NodeRecord]:
    """Return the nodes that `sinfo -N -O` printed; a node of several partitions is one node."""
    nodes = {}
    for line in text.split(END):
        values = line.lstrip("\n").split(SEPARATOR)
        if len(values) != len(NODE_FIELDS):
            continue
        name, gres, used, state = (value.strip() for value in values)
        devices = _DEVICES.findall(used)
        nodes[name] = NodeRecord(
            name=name,
            gpus=sum(int(count) for count in _GPU_COUNT.findall(gres)),
            used=sum(int(count) for count, _ in devices),
            indices=frozenset().union(*(_indices(indices) for _, indices in devices)),
            in_service=not re.match(r"(?i)down|drain|fail|maint|power|reboot|unk|inval", state)
            and not state.endswith("*"),
        )
    return list(nodes.values())


def expand_nodes(names: str) -> tuple[str, ...]:
    """Return the nodes of a list such as ``n[1-2,07-09],login``."""
    found: list[str] = []
    for head, inside, tail in _NODE_GROUP.findall(names):
        if not inside:
            found.append(head + tail)
            continue
        for piece in inside.split(","):
            low, dash, high = piece.partition("-")
            if dash and low.isdigit() and high.isdigit():
                width = len(low)
                numbers = [f"{n:0{width}d}" for n in range(int(low), int(high) + 1)]
            else:
                numbers = [piece]
            found += [head + number + tail for number in numbers]
    return tuple(found)


def _job_from_json(job: dict[str, Any]) -> JobRecord:
    array, task = _number(job.get("array_job_id")), job.get("array_task_id")
    has_task = task.get("set") is True if isinstance(task, dict) else isinstance(task, int)
    states = job.get("job_state")
    words = [_text(word).upper() for word in (states if isinstance(states, list) else [states])]
    comment = job.get("comment")
    nested = comment if isinstance(comment, dict) else {}  # 23.02 and later: three kinds in one
    return JobRecord(
        id=f"{array}_{_number(task)}" if array and has_task else str(_number(job["job_id"])),
        state=COMPLETING if COMPLETING in words else next(iter(words), ""),
        nodes=expand_nodes(_text(job.get("nodes"))),
        gpus=_gpus(
            allocated=_text(job.get("tres_alloc_str")),
            per_job=_text(job.get("tres_per_job")),
            per_node=_text(job.get("tres_per_node")),
            per_task=_text(job.get("tres_per_task")),
            nodes=_number(job.get("node_count")),
            tasks=_number(job.get("tasks")),
        ),
        restarts=_number(job.get("restart_cnt")),
        user=_text(job.get("user_name")),
        account=_text(job.get("account")),
        qos=_text(job.get("qos")),
        partition=_text(job.get("partition")),
        name=_text(job.get("name")),
        reason=_text(job.get("state_reason")),
        work_dir=_text(job.get("current_working_directory")),
        submitted_at=_number(job.get("submit_time")),
        admin_comment=_text(nested.get("administrator", job.get("admin_comment"))),
        comment=_text(nested.get("job", comment)),
    )


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) and value not in _NOTHING else ""


def _gpus(
    *, allocated: str, per_job: str, per_node: str, per_task: str, nodes: int, tasks: int
) -> int:
    """Return the gang's GPUs from the first request that names any.

    ``allocated`` is exact but names GPUs only at sites that account for them.
    """
    for text, times in ((allocated, 1), (per_job, 1), (per_node, nodes), (per_task, tasks)):
        counts = [int(count) for count in _GPU_COUNT.findall(text)]
        total = sum(counts)
        if "gres/gpu=" in text:
            # `gres/gpu=4,gres/gpu:h100=3,gres/gpu:a100=1` is four GPUs told twice, once by type.
            total = sum(int(count) for count in re.findall(r"gres/gpu=(\d+)", text))
        if total or (text and re.search(r"gpu(?![:=/])", text)):
            return (total or 1) * max(1, times)
    return 0


def _number(value: object) -> int:
    """Return a count in any of Slurm's forms; 0 where there is none."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) else None
    if isinstance(value, str):
        digits = re.match(r"\s*([0-9]+)", value)
        value = int(digits.group(1)) if digits else None
    return int(value) if isinstance(value, int | float) and abs(value) < _INFINITE else 0


def _indices(text: str) -> frozenset[int]:
    found: set[int] = set()
    for piece in text.split(","):
        low, _, high = piece.partition("-")
        if low.isdigit():
            found.update(range(int(low), int(high or low) + 1) if (high or low).isdigit() else ())
    return frozenset(found)
