"""What importing the client costs a training script: next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
BOUND = 2.0
"""In starts of the interpreter (with json), so that a slow machine is no fault: 40 ms on an idle
2-core machine, where in Nov 2026 a start takes 20 ms of CPU and the import 9 ms.
"""

SCRIPT = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
began = time.process_time()  # so much took the interpreter's own start
import evalstop.client
from evalstop.client import report, should_stop
took = time.process_time() - began
print(json.dumps({"starts": took / began, "modules": sorted(set(sys.modules) - before)}))
"""


def imported() -> dict:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, str(SOURCE)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_it_takes_no_longer_than_two_starts_of_the_interpreter():
    assert min(imported()["starts"] for _ in range(5)) < BOUND


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
