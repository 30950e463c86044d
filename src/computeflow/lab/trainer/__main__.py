"""Command line of the reference trainer: `python -m computeflow.lab.trainer --help`; for several
ranks, `torchrun -m`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from computeflow.errors import ComputeFlowError
from computeflow.files.writing import write_file
from computeflow.lab.trainer.trainer_settings import parse_settings


def main() -> int:
    try:
        settings = parse_settings()
        from computeflow.lab.trainer.training_loop import train

        summary = train(settings)
    except ComputeFlowError as error:
        print(f"computeflow.lab.trainer: {error}", file=sys.stderr)
        return error.exit_code
    if settings.output:
        path = Path(settings.output)
        if summary.world > 1:
            path = path.with_name(f"{path.stem}_{summary.rank}{path.suffix}")
        text = json.dumps(summary.to_data(), indent=1) + "\n"
        write_file(path, text, "--output", force=True, make_folder=True)
    elif summary.rank == 0:
        print(json.dumps(summary.to_data()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
