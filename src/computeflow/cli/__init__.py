"""The command line: parse, call one library function, render.

Exit codes: 0 fine, 1 failed, 2 wrong input, 3 ran and found problems.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

__all__ = ["main", "run"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; every expected failure is one line on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # numpy's BLAS starts a thread per core, and each spins up to a tenth of a second before it
    # sleeps; with the shortest wait (2**4 cycles) they cost nothing until a matrix needs them.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    if "_COMPUTEFLOW_COMPLETE" in os.environ:  # the shell asks what could follow
        from computeflow.cli.app import app

        app.main(prog_name="computeflow")
    code = 0
    try:
        code = run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (`| head`): not our failure
        _silence()
    except OSError as error:
        code = _failed(f"cannot write the answer: {error.strerror}", 1)
        _silence()
    sys.exit(code)


def _silence() -> None:
    from computeflow.cli.output import silence_stdout

    silence_stdout()


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


def _failed(message: str, code: int) -> int:
    print(f"computeflow: {' '.join(message.split())}", file=sys.stderr)
    return code
