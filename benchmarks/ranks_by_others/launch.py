"""Fork the ranks of one case, wait for them, stop what is left after the time limit."""

import importlib
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from benchmarks.ranks_by_others.drill import Case, Drill

LIMIT_SECONDS = 150.0


def run_rank(case: Case, rank: int, port: int, work: Path) -> None:
    """Run the script on one rank, as a launcher would start it."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(case.ranks),
        LOCAL_WORLD_SIZE=str(case.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    drill = Drill(case=case, rank=rank)
    script = importlib.import_module(f"benchmarks.ranks_by_others.scripts.{module_of(case)}")
    try:
        script.main(drill, work / "traces")
        drill.write(work)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def module_of(case: Case) -> str:
    """Return the module of a script; several pipelines share one."""
    return "pipe_library" if case.script in PIPE_LIBRARY else case.script


PIPE_LIBRARY = ("pipe_gpipe", "pipe_1f1b", "pipe_interleaved")


def wait_for(processes: list[BaseProcess]) -> bool:
    """Wait until all have ended well; stop all at the first failure or at the time limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        if any(process.exitcode not in (None, 0) for process in processes):
            break
        time.sleep(0.1)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()
    return all(process.exitcode == 0 for process in processes)


def main() -> int:
    """Run the case pickled in the working folder."""
    work, port = Path(sys.argv[1]), int(sys.argv[2])
    case: Case = pickle.loads((work / "case.pickle").read_bytes())
    (work / "traces").mkdir()
    importlib.import_module(f"benchmarks.ranks_by_others.scripts.{module_of(case)}")
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = []
    for rank in range(case.ranks):
        process = context.Process(target=run_rank, args=(case, rank, port, work))
        process.start()
        processes.append(process)
    return 0 if wait_for(processes) else 1


if __name__ == "__main__":
    sys.exit(main())
