"""`evalstop submit` under Slurm: a thin sbatch.

The script exports what the training side reads (`EVALSTOP_JOB_ID` and the variables of the
launch) and then becomes the command, so that a signal to the batch script reaches the trainer.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from evalstop.backends.slurm.optin import KEYS, write_comment
from evalstop.core.errors import InputError

if TYPE_CHECKING:
    from evalstop.core.job import JobSpec
    from evalstop.ports import Launch

__all__ = ["PASSED_ON", "batch_script", "sbatch_options"]

PASSED_ON = frozenset(
    [
        "account",
        "begin",
        "constraint",
        "cpus-per-gpu",
        "cpus-per-task",
        "dependency",
        "error",
        "exclude",
        "exclusive",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "licenses",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "nice",
        "nodelist",
        "nodes",
        "no-requeue",
        "ntasks",
        "ntasks-per-node",
        "output",
        "partition",
        "qos",
        "requeue",
        "reservation",
        "signal",
        "time",
        "wckey",
    ]
)
"""Options of sbatch that a job may set. Not among them: what runs as somebody else (uid, gid),
reads another script (wrap), or would hide our comment."""

_GPU_OPTIONS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gres"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def batch_script(launch: Launch) -> str:
    """Return the script that sbatch gets on its standard input.

    Raises:
        InputError: there is no command, or a variable's name is not one.
    """
    if not launch.command:
        message = 'expected a command to run, got none: set command = ["python", "train.py"]'
        raise InputError(message)
    lines = ["#!/bin/sh"]
    for name, value in launch.environment.items():
        if not _NAME.fullmatch(name):
            message = f"expected the name of an environment variable, got {name!r}"
            raise InputError(message)
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(
        'export EVALSTOP_JOB_ID="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}'
        '${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
    )
    lines.append(f"exec {shlex.join(launch.command)}")
    return "\n".join(lines) + "\n"


def sbatch_options(job: JobSpec, launch: Launch) -> list[str]:
    """Return sbatch's options for a job: its own, its GPUs, its name and its opt-in comment.

    Raises:
        InputError: an option is not passed on, or a value of the comment cannot be written.
    """
    options = []
    for name, value in launch.options.items():
        if name not in PASSED_ON:
            known = ", ".join(sorted(PASSED_ON))
            message = f"the option {name!r} is not passed on to sbatch; those that are: {known}"
            raise InputError(message)
        options.append(f"--{name}={value}" if value else f"--{name}")
    if not _GPU_OPTIONS & launch.options.keys():
        options.append(f"--gres=gpu:{job.gpus}")
    if launch.cwd:
        options.append(f"--chdir={launch.cwd}")
    said = {
        **{key: value for key, value in job.labels.items() if key in KEYS},
        "job_type": job.job_type,
        "tenant": job.tenant,
        "checkpoints": launch.checkpoints,
        "save_signal": launch.save_signal,
        "estimated_s": f"{job.estimated_s:g}" if job.estimated_s else "",
        "grace_s": f"{launch.grace_s:g}",
    }
    comment = write_comment({key: value for key, value in said.items() if value})
    return [*options, f"--job-name={job.labels.get('name') or job.id}", f"--comment={comment}"]
