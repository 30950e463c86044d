"""The command line: parse, call one library function, render.

Exit codes: 0 fine, 1 failed, 2 wrong input, 3 ran and found problems.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; every expected failure is one line on stderr and an exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    import click

    from computeflow.cli.app import app
    from computeflow.errors import ComputeFlowError

    try:
        code = app.main(arguments, prog_name="computeflow", standalone_mode=False)
        return code if isinstance(code, int) else 0
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
    print("computeflow: " + " ".join(message.split()), file=sys.stderr)
    return code
