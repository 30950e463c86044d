"""The command line: parse, call one library function, render.

Exit codes: 0 success, 1 failure, 2 wrong input, 3 ran and found problems, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; every expected failure is one line on stderr and an exit code."""
    # numpy's BLAS starts a thread per core, and each spins up to a tenth of a second before it
    # sleeps; with the shortest wait (2**4 cycles) they cost nothing until a matrix needs them.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    try:
        code = _main(arguments)
    except KeyboardInterrupt:
        code = _failed("interrupted", 130)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing handles it from here on
    sys.exit(code)


def _main(arguments: Sequence[str] | None) -> int:
    from computeflow.cli.streams import prepare_streams, silence

    if not prepare_streams():
        return _failed("standard output is closed: the answer would be lost", 1)
    if "_COMPUTEFLOW_COMPLETE" in os.environ:  # the shell completes a line
        from computeflow.cli.app import app

        app.main(prog_name="computeflow")
    try:
        code = run(arguments)
    except BrokenPipeError:  # the reader has gone (`| head`): not our failure
        code = 0
    except Exception:
        code = _crashed()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        code = _failed(f"cannot write the answer: {error.strerror}", 1)
    return code


def run(arguments: Sequence[str] | None = None) -> int:
    import click

    from computeflow.cli.app import app
    from computeflow.errors import ComputeFlowError

    try:
        context = app.make_context(
            "computeflow", list(sys.argv[1:] if arguments is None else arguments)
        )
        with context:
            code = app.invoke(context)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except ComputeFlowError as error:
        return _failed(str(error), error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "computeflow"
        return _failed(f"{error.format_message()} (see {where} --help)", 2)
    except click.ClickException as error:
        return _failed(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _failed("interrupted", 130)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}", 1)
    except MemoryError:
        return _failed("not enough memory: try a smaller request", 1)


def _failed(message: str, code: int) -> int:
    from computeflow.cli.streams import say
    from computeflow.files.names import one_line

    say(f"computeflow: {one_line(message)}")
    return code


def _crashed() -> int:
    """Show a bug's whole traceback, without control characters."""
    import traceback

    from computeflow.cli.streams import say
    from computeflow.files.names import printable

    say(printable(traceback.format_exc()))
    return _failed("this is a bug in ComputeFlow: please report the lines above", 1)
