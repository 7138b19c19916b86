"""``evalstop rules``: the stop rules there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evalstop.cli.output import print_table, write_json

__all__ = ["rules"]


def rules(
    *, as_json: Annotated[bool, typer.Option("--json", help="Machine output on stdout.")] = False
) -> None:
    """List the stop rules, their parameters with units, and how often they are wrong.

    Write a rule as NAME[:key=value,...], or one a job type: rlhf=consecutive:k=2;dpo=none;*=scan.
    """
    from evalstop.config.rules import PAPER, RULES  # noqa: PLC0415 -- after the options are read

    listed: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "summary": entry.summary,
            "parameters": [
                {
                    "name": parameter.name,
                    "type": parameter.type,
                    "default": parameter.default,
                    "unit": parameter.unit,
                }
                for parameter in entry.parameters
            ],
            "false_alarms": entry.false_alarms,
        }
        for entry in RULES.values()
    ]
    listed.append(
        {
            "name": "paper",
            "summary": f"the paper's map of job types: {PAPER}",
            "parameters": [],
            "false_alarms": "as consecutive",
        }
    )
    if as_json:
        write_json({"rules": listed})
        return
    rows = [
        [rule["name"], rule["summary"], _parameters(rule["parameters"]), rule["false_alarms"]]
        for rule in listed
    ]
    print_table("Rules", ["name", "what it does", "parameters", "false alarms"], rows, right="wlll")


def _parameters(parameters: list[dict[str, Any]]) -> str:
    return "; ".join(f"{p['name']}={p['default']} ({p['unit'] or p['type']})" for p in parameters)
