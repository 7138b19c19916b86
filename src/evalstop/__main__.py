"""``python -m evalstop`` is ``evalstop``."""

from __future__ import annotations

import sys

from evalstop.cli import main

if __name__ == "__main__":
    sys.exit(main())
