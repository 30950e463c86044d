"""The words that a launch script hands to the training program, found by running it in bash.

Programs that a launch starts (torchrun, srun, nemo, ...) are stand-ins that note their words and
leave; `srun` and `sbatch` run what they are given. Everything happens in an empty folder.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

NOTE = '#!/bin/bash\nprintf "%s\\0" "$@" > "$PROOF_WORDS"\n'
PASS_ON = """#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in bash|sh|python|torchrun) exec "$@";; esac
    shift
done
"""
STAND_INS = {
    "torchrun": NOTE,
    "python": NOTE,
    "nemo": NOTE,
    "srun": PASS_ON,
    "sbatch": '#!/bin/bash\nexec bash "$@"\n',
    "scontrol": "#!/bin/bash\necho node0\n",
    "clear": "#!/bin/bash\n",
}
VARIABLES = {
    "SLURM_NNODES": "1", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "node0",
    "LOGS_PATH": ".", "LOGS": "logs", "MEGATRON_PATH": ".", "DATA_ARG": "data",
}  # fmt: skip
"""What sites set outside of the scripts."""


def launch_words(script: Path) -> list[str]:
    """Words behind the training program's name; a script that starts none is an error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        for program, text in STAND_INS.items():
            (folder / "bin" / program).write_text(text)
            (folder / "bin" / program).chmod(0o755)
        noted = folder / "words"
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(script.resolve()), "checkpoints", "vocab"],
            cwd=folder,
            env={"PATH": path, "PROOF_WORDS": str(noted), **VARIABLES},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if not noted.exists():
            raise ValueError(f"starts no training program: {done.stderr[-200:]}")
        words = noted.read_text().split("\0")[:-1]
    start = next((n for n, word in enumerate(words, start=1) if word.endswith(".py")), 0)
    return words[start:]
