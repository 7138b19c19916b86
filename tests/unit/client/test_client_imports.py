"""What importing the client costs a training script: next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
BOUND_S = 0.050  # measured Nov 2026, idle 2-core machine: 9 ms beyond the interpreter's start

SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
began = time.process_time()
import evalstop.client
from evalstop.client import report, should_stop
took = time.process_time() - began
print(json.dumps({"took": took, "modules": sorted(set(sys.modules) - before)}))
"""


def imported() -> dict:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, str(SOURCE)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_it_takes_less_than_50_milliseconds():
    assert min(imported()["took"] for _ in range(3)) < BOUND_S


def test_it_brings_no_third_party_and_no_network_module():
    modules = imported()["modules"]
    allowed = set(sys.stdlib_module_names) | {"evalstop"}
    assert {name.split(".")[0] for name in modules} <= allowed
    assert "urllib.request" not in modules


def test_names_are_listed_and_an_unknown_one_is_answered_with_them():
    import evalstop.client

    assert {"EvalStopCallback", "report", "should_stop"} <= set(dir(evalstop.client))
    with pytest.raises(AttributeError, match=r"'reprot'.*report"):
        evalstop.client.reprot  # noqa: B018
