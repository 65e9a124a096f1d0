"""From exceptions to one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from taslak.errors import UserError

OK, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def run(command: Any, args: Sequence[str]) -> int:
    """Runs the command and returns the exit code; `--debug`, anywhere before a `--`, adds the traceback.

    command: what `typer.main.get_command` gives.
    """
    end = args.index("--") if "--" in args else len(args)
    debug = "--debug" in args[:end]
    args = [arg for arg in args[:end] if arg != "--debug"] + list(args[end:])
    try:
        status = command.main(args=args, prog_name="taslak", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else OK
    except typer.TyperException as error:  # an unknown option, a missing argument
        message = error.format_message()
        return (
            _report(f"{message} (see --help)", MISTAKE) if message else MISTAKE
        )  # bare `taslak`: help was shown
    except BrokenPipeError:
        # the reader has gone, which is its right; without this Python would complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except UserError as error:
        return _report(str(error), MISTAKE, debug)
    except MemoryError:
        return _report("not enough memory: use a smaller model, or a narrower --dtype", MISTAKE, debug)
    except Exception as error:
        return _report(f"{type(error).__name__}: {error} (--debug shows where)", FAILED, debug)


def _report(message: str, status: int, debug: bool = False) -> int:
    if debug:
        traceback.print_exc()
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return status
