"""Shell launch files: bash parses all of them, torchrun's parser the line in torchrun.sh."""

from __future__ import annotations

import os
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.parsers.answers import Asked, answer, expect

STUB = '#!/bin/bash\nprintf "%s\\0" "$@" > "$TOLD"\n'


def take(request: Asked) -> None:
    (script,) = Path(request.folder).iterdir()
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    expect(not done.returncode, done.stderr)
    if script.name == "torchrun.sh":
        _check_torchrun(script, request)


def _check_torchrun(script: Path, request: Asked) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "torchrun").write_text(STUB)
        (folder / "torchrun").chmod(0o755)
        record = folder / "told"
        rank = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "TOLD": str(record)}
        path = f"{folder}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", str(script)],
            cwd=folder,
            env=os.environ | rank | {"PATH": path},
            check=True,
            capture_output=True,
        )
        words = record.read_text().split("\0")[:-1]
    args = import_module("torch.distributed.run").parse_args(words)
    nodes = int(args.nnodes.partition(":")[0])
    expect(
        nodes * int(args.nproc_per_node) == request.gpus, f"{nodes} x {args.nproc_per_node} ranks"
    )
    expect(args.training_script == "python", f"{args.training_script} is started")


if __name__ == "__main__":
    answer(take)
