"""What a job's comment says to evalstop: ``evalstop:metric=...,direction=max[,key=value...]``.

A job opts in by `sbatch --comment=evalstop:...`; the rest of the cluster is left alone. A rule is
written as everywhere, with its own commas, so a piece whose key is none of `KEYS` belongs to the
value before it; whoever finds that too clever separates the pairs by ``;``.
"""

from __future__ import annotations

import re

from msgspec import Struct

from evalstop.core.errors import InputError

__all__ = ["KEYS", "PREFIX", "OptIn", "parse_comment", "write_comment"]

PREFIX = "evalstop:"

KEYS = {
    "metric": "name of the score that is watched",
    "direction": "max where a higher score is better, min where a lower one is",
    "rule": "one of the rules that policy.job_may_choose allows, or a label for [[rules]]",
    "job_type": "rlhf, dpo, lora, other, or whatever the rules name",
    "tenant": "who pays, of those that cluster.tenants allows; else the account, else the user",
    "checkpoints": "directory of the job's checkpoints",
    "evals": "JSONL file into which the job writes its scores",
    "estimated_s": "estimate of the whole run in seconds",
    "save_signal": "signal that makes the trainer save a checkpoint, USR1 say",
    "grace_s": "seconds between SIGTERM and SIGKILL",
    "optout": "true: watch and report, never stop",
}
_SEPARATOR = re.compile(r"[,\n]")


class OptIn(Struct, frozen=True, kw_only=True):
    """What one job asks for.

    Attributes:
        values: the pairs as written, by key.
        problem: why the job cannot be guarded as it stands; empty if it can.
    """

    values: dict[str, str]
    problem: str = ""


def parse_comment(comment: str) -> OptIn | None:
    """Return what a Slurm comment says to evalstop; None where it says nothing."""
    at = comment.find(PREFIX)
    if at < 0:
        return None
    text = comment[at + len(PREFIX) :].strip()
    values: dict[str, str] = {}
    last = ""
    for piece in text.split(";") if ";" in text else _SEPARATOR.split(text):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if equals and key in KEYS:
            last = key
            values[key] = value
        elif last and piece.strip():
            values[last] += f",{piece.strip()}"
        elif piece.strip():
            known = ", ".join(KEYS)
            return OptIn(values={}, problem=f"unknown key {key!r}; known keys: {known}")
    return OptIn(values=values, problem=_problem(values))


def write_comment(values: dict[str, str]) -> str:
    """Return the comment that `parse_comment` reads back.

    Raises:
        InputError: a key is unknown, or a value holds a separator.
    """
    for key, value in values.items():
        if key not in KEYS:
            message = f"unknown key {key!r} in an evalstop comment; known keys: {', '.join(KEYS)}"
            raise InputError(message)
        if ";" in value or "\n" in value:
            message = f"{key}: a value in an evalstop comment cannot hold ; or a line break"
            raise InputError(message)
    return PREFIX + ";".join(f"{key}={value}" for key, value in values.items()) + ";"


def _problem(values: dict[str, str]) -> str:
    """Return what is wrong, and take numbers that are none out of ``values``."""
    for key in ("estimated_s", "grace_s"):
        if key in values and not re.fullmatch(r"\d+(\.\d+)?", values[key]):
            return f"{key}={values.pop(key)} is not a number of seconds"
    if not values.get("metric"):
        return "the comment names no metric: add metric=NAME"
    if values.get("direction") not in {"max", "min"}:
        came = values.get("direction")
        said = f"direction={came} is neither" if came else "no direction: add"
        return f"{said} direction=max (higher is better) or direction=min"
    return ""
