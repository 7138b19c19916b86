"""Hold a gang over several nodes of a Ray cluster, and run one command on it.

This file is sent to the cluster as text and run there by the cluster's own Python: it may import
Ray and the standard library, and nothing of evalstop. The placement group is all or nothing; it
belongs to this driver, so that Ray removes it whatever becomes of us.

    python -c TEXT GPUS GPUS_A_BUNDLE COMMAND...

The command finds the group under ``EVALSTOP_PLACEMENT_GROUP`` (hexadecimal) and waits for it no
more: ``PlacementGroup(PlacementGroupID(bytes.fromhex(...)))``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Reserve the gang, run the command, return its exit code."""
    gpus, size, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    ray: Any = import_module("ray")
    groups: Any = import_module("ray.util.placement_group")
    ray.init(log_to_driver=False)
    bundles = [{"GPU": min(size, gpus - start)} for start in range(0, gpus, size)]
    group = groups.placement_group(bundles, strategy="PACK")
    ray.get(group.ready())
    environment = dict(os.environ) | {"EVALSTOP_PLACEMENT_GROUP": group.id.hex()}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:  # noqa: S603 -- the tenant's own command
        # After ray.init: Ray replaces handlers that are there before it.
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(process.pid, signal.SIGTERM))
        code = process.wait()
    groups.remove_placement_group(group)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
