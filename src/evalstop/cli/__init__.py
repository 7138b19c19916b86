"""The command line: parse, call, print; one small module a command.

Belongs here: options, tables and progress of the commands. Never here: anything that decides,
reads a trace or computes a figure.

To add a command:

1. write ``cli/NAME.py`` with a function whose parameters are Typer options (or a ``typer.Typer``
   called ``app`` for a group of commands); import what is heavy inside the function, after its
   options are checked;
2. add one line to `evalstop.cli.commands.COMMANDS`: name, ``module:attribute``, short help;
3. print through `evalstop.cli.output`: JSON alone on stdout, progress and warnings on stderr;
4. raise `evalstop.core.errors.EvalStopError` for what a user can mend (`main` prints it and
   exits 2, or 1 for a failure at run time), and ``typer.Exit(1)`` for partial results.

Only the module of the command that runs is imported, so that ``evalstop --help`` stays quick.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from evalstop.core.errors import EvalStopError, InputError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_USAGE = 2
_FAILURE = 1
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (run-time failure) or 2 (usage, input).

    Args:
        arguments: the command line without the program's name; ``sys.argv[1:]`` by default.
    """
    from evalstop.cli.commands import application  # noqa: PLC0415 -- quick to import main alone
    from evalstop.cli.output import spare_words, tell  # noqa: PLC0415 -- same

    spare_words()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        application(words)(args=words, prog_name="evalstop")
        sys.stdout.flush()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else _FAILURE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would complain again while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILURE
    except (EvalStopError, OSError) as error:
        tell(f"evalstop: {error}")
        return _USAGE if isinstance(error, (InputError, MissingExtraError)) else _FAILURE
    except Exception as error:  # a user sees one line, not our stack
        if os.environ.get("EVALSTOP_TRACEBACK"):
            raise
        tell(
            f"evalstop: unexpected {type(error).__name__}: {error}\n"
            "This is a bug in evalstop. Set EVALSTOP_TRACEBACK=1 to see where, and report it."
        )
        return _FAILURE
    return 0
