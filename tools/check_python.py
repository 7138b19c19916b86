"""Say what is missing before an environment is made; runs under any Python 3.6 or newer."""

import importlib.util
import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- this is the check itself
    sys.exit(
        f"evalstop needs Python 3.11 or newer, this is {sys.version.split()[0]}: "
        "name one with `make PYTHON=python3.11 ...`"
    )
for module in ("venv", "ensurepip"):
    if importlib.util.find_spec(module) is None:
        sys.exit(f"evalstop needs Python's module {module}: on Debian, apt install python3-venv")
