"""A controller killed -9 at random moments on a real Slurm; benchmarks/reports/control_faults.md.

    python -m benchmarks.prove_control_faults                 100 kills
    python -m benchmarks.prove_control_faults --kills 10 --seed 3

Jobs sleep; actions are in the journal as approved: drain a node, then requeue its job or submit it
again. A controller is started, and killed a random number of writes of its journal and a random moment
later, again and again; then one goes on to the end. Each action must have been done exactly once: one
restart or one new job, one drain by its mark.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
REPORT = ROOT / "benchmarks" / "reports" / "control_faults.md"
NODES = 6
KILLS_PER_ACTION = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    from slurm_lab import why_not

    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    began = time.monotonic()
    faults, actions, places = run(given.kills, given.seed)
    text = report(given.kills, given.seed, actions, places, faults, time.monotonic() - began)
    print(text)
    if given.kills >= 100:
        REPORT.write_text(text)
    return 1 if faults else 0


def run(kills: int, seed: int) -> tuple[list[str], int, Counter[str]]:
    """What was done wrongly, actions, and kills by where the action was; "": not under way."""
    from control_faults import FaultyControl
    from slurm_control import control_lab, slurm_for_control

    draws = random.Random(seed)
    faults: list[str] = []
    places: Counter[str] = Counter()
    actions = done = 0
    with slurm_for_control(NODES) as slurm, tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        while done < kills:
            folder = Path(scratch) / str(actions)
            folder.mkdir(mode=0o755)
            with control_lab(slurm, folder) as lab:
                faulty = FaultyControl(lab)
                new = actions % 2 == 1
                job = faulty.job(*["--no-requeue"] * new)
                action = faulty.restart(job, faulty.jobs(job)[0][2], new=new)
                for _ in range(min(KILLS_PER_ACTION, kills - done)):
                    places[faulty.kill_at_random(action, draws)] += 1
                    done += 1
                faulty.until_done(action)
                faults += faulty.faults_of(action, new=new)
                faulty.state.close()
            actions += 1
            print(f"{done} kills, {actions} actions, {len(faults)} faults", flush=True)
    return faults, actions, places


def report(
    kills: int, seed: int, actions: int, places: Counter[str], faults: list[str], seconds: float
) -> str:
    hit = kills - places[""]
    lines = [
        "# A controller that is killed",
        "",
        "Written by `python -m benchmarks.prove_control_faults`: a real Slurm, actions of two steps",
        "(drain a node; requeue its job or submit it again), a controller killed -9 after a random",
        "number of writes of its journal and a random moment more.",
        "",
        "| kills | during an action | actions | done twice, or not at all | seconds | seed |",
        "|---|---|---|---|---|---|",
        f"| {kills} | {hit} | {actions} | {len(faults)} | {seconds:.0f} | {seed} |",
        "",
        *(f"- {fault}" for fault in faults),
        *([""] if faults else []),
        "Where the action was when its controller was killed, as the journal says:",
        "",
        "| step | kills |",
        "|---|---|",
        *(f"| {place or 'not under way'} | {count} |" for place, count in places.most_common()),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(main())
