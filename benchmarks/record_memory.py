"""Record snapshots of PyTorch's allocator, healthy and with planted faults, on a machine with a GPU:
`python -m benchmarks.record_memory FOLDER [PART]`; PART is a part of names. Needs torch only.

Every snapshot is the pickle of `torch.cuda.memory._snapshot()`, compressed; `index.json` has what was
planted and what the allocator itself counted (`torch.cuda.memory_stats`), which nothing in a snapshot
says.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from computeflow.lab.trainer.process_rank import join_ranks
from computeflow.lab.trainer.trainer_settings import TrainerSettings
from computeflow.lab.trainer.training_loop import Trainer, _set_precision

MIB = 1 << 20
Knobs = dict[str, Any]
BASE: Knobs = {
    "layers": 4, "hidden": 512, "heads": 8, "vocab": 8192, "seq_len": 1024, "micro_batch": 4,
    "steps": 10, "warmup": 1, "quiet": True,
}  # fmt: skip
LENGTHS = ("unequal-lengths:0.6",)
PLAIN, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"


@dataclass(frozen=True, kw_only=True)
class Case:
    label: str
    knobs: Knobs = field(default_factory=dict)
    plant: Callable[[Trainer], None] | None = None
    limit: float | None = None
    """Limit as a share of the bytes that the run needs without one, or above 16: MiB beyond what is
    reserved when the model is built and the fault planted."""
    settings: str = PLAIN
    stacks: str = "python"


def leak(bytes_per_step: int) -> Callable[[Trainer], None]:
    """Keep the last block's output, or a part of it, in every step, as a list of losses or outputs
    for a log, as it is often written.
    """

    def plant(trainer: Trainer) -> None:
        kept: list[torch.Tensor] = []

        def keep_output(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            part = output.detach().flatten()
            kept.append(part[: bytes_per_step // part.element_size()].clone())

        trainer.model.blocks[-1].register_forward_hook(keep_output)  # type: ignore[union-attr,index]

    return plant


def fragment(segments: int) -> Callable[[Trainer], None]:
    """Fill segments of 20 MiB with three blocks each, and keep one of the three."""

    def plant(trainer: Trainer) -> None:
        def six() -> torch.Tensor:
            return torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")

        blocks = [six() for _ in range(3 * segments)]
        trainer.held = blocks[::3]  # type: ignore[attr-defined]

    return plant


CASES: dict[str, Case] = {
    "healthy-base": Case(label="healthy"),
    "healthy-parts": Case(label="healthy", knobs={"accumulation": 3, "steps": 6}),
    "healthy-recompute": Case(label="healthy", knobs={"recompute": "full", "precision": "amp"}),
    "healthy-lengths": Case(label="healthy", knobs={"fault": LENGTHS, "steps": 14}),
    "healthy-expandable": Case(label="healthy", settings=EXPANDABLE),
    "healthy-foreach": Case(label="healthy", knobs={"optimizer": "foreach"}),
    "healthy-fsdp": Case(label="healthy", knobs={"sharding": "fsdp", "precision": "amp"}),
    "leak-outputs": Case(label="leak", plant=leak(4 * MIB), knobs={"steps": 12}),
    "leak-small": Case(label="leak", plant=leak(MIB // 4), knobs={"steps": 12}),
    "leak-lengths": Case(label="leak", plant=leak(MIB), knobs={"fault": LENGTHS, "steps": 20}),
    "fragmented": Case(label="fragmentation", plant=fragment(120), knobs={"steps": 5}),
    "oom-lengths": Case(label="oom", knobs={"fault": LENGTHS, "steps": 14}, limit=1.04),
    "retries": Case(label="retries", knobs={"fault": LENGTHS, "steps": 14}, limit=1.15),
    "oom-too-big": Case(label="oom", limit=0.7, knobs={"steps": 4}),
    "oom-fragmented": Case(label="oom", plant=fragment(120), limit=40, knobs={"steps": 4}),
    "healthy-native": Case(label="healthy", knobs={"steps": 4, "layers": 2}, stacks="all"),
}


@contextlib.contextmanager
def limited(extra: float | None, needed: int) -> Iterator[int | None]:
    """Limit what the process may reserve."""
    if extra is None:
        yield None
        return
    total = torch.cuda.get_device_properties(0).total_memory
    limit = int(torch.cuda.memory_reserved() + extra * MIB if extra > 16 else extra * needed)
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        yield limit
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def run(case: Case, needed: int, settings: str, *, recorded: bool) -> dict[str, Any]:
    """One run; the snapshot is taken when memory runs out, or at the end."""
    clear(settings)
    knobs = TrainerSettings(**(BASE | case.knobs))
    result: dict[str, Any] = {"snapshot": None, "out_of_memory": False}
    if recorded:
        torch.cuda.memory._record_memory_history(
            "all", stacks=case.stacks, max_entries=100_000, clear_history=True
        )
    with join_ranks(knobs) as ranks:
        torch.manual_seed(knobs.seed)
        _set_precision(knobs)
        trainer = Trainer(knobs, ranks)
        if case.plant is not None:
            case.plant(trainer)
        with limited(case.limit, needed) as limit:
            try:
                trainer.run()
            except torch.cuda.OutOfMemoryError as error:
                result["out_of_memory"] = True
                result["message"] = str(error)
            stats = torch.cuda.memory_stats()
            if recorded:
                result["snapshot"] = torch.cuda.memory._snapshot()
        result |= {"limit_bytes": limit, "sizes": sizes(trainer)}
        del trainer
    torch.cuda.memory._record_memory_history(None)
    names = ("allocated_bytes.all", "reserved_bytes.all", "active_bytes.all")
    result["stats"] = {
        f"{name}.{which}": stats[f"{name}.{which}"]
        for name in names
        for which in ("peak", "current")
    } | {name: stats[name] for name in ("num_alloc_retries", "num_ooms")}
    return result


def sizes(trainer: Trainer) -> dict[str, int]:
    """Bytes of the tensors that the program itself can name."""
    model, optimizer = trainer.model, trainer.optimizer

    def local(tensor: Any) -> int:
        whole = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return int(whole.untyped_storage().nbytes()) if whole.is_cuda else 0

    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    return {
        "parameter_bytes": sum(local(p) for p in model.parameters()),
        "optimizer_bytes": sum(local(t) for t in state),
        "kept_bytes": sum(local(t) for t in getattr(trainer, "held", [])),
    }


def clear(settings: str) -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(settings)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def shortened(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Shorten file names in the stacks to start at the package, without where it was installed."""
    seen: set[int] = set()

    def shorten(frames: list[dict[str, Any]]) -> None:
        for frame in frames:
            if id(frame) not in seen:
                seen.add(id(frame))
                parts = Path(frame["filename"]).parts
                roots = [i for i, part in enumerate(parts) if part in ("site-packages", "src")]
                kept = parts[roots[-1] + 1 :] if roots else parts[-2:]
                frame["filename"] = "/".join(part for part in kept if part != "/")

    for trace in snapshot["device_traces"]:
        for entry in trace:
            shorten(entry.get("frames", []))
    for segment in snapshot["segments"]:
        shorten(segment.get("frames", []))
        for block in segment["blocks"]:
            shorten(block.get("frames", []))
    return snapshot


def record(folder: Path, name: str, case: Case) -> dict[str, Any]:
    needed = 0
    if case.limit is not None:
        free = run(Case(label="", knobs=case.knobs, plant=case.plant), 0, PLAIN, recorded=False)
        needed = free["stats"]["allocated_bytes.all.peak"]
    result = run(case, needed, case.settings, recorded=True)
    snapshot = shortened(result.pop("snapshot"))
    path = folder / f"{name}.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot), 9, mtime=0))
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    print(name, path.stat().st_size, len(entries), sorted(snapshot), result["stats"], flush=True)
    print("  ", sorted({entry["action"] for entry in entries}), result["out_of_memory"], flush=True)
    if case.limit is not None:
        result["unlimited"] = {k: free[k] for k in ("stats", "out_of_memory")}
        again = run(case, needed, EXPANDABLE, recorded=False)
        result["expandable"] = {k: again[k] for k in ("stats", "out_of_memory")}
    return {
        "label": case.label,
        "knobs": BASE | case.knobs,
        "allocator": case.settings,
        "limit": case.limit,
        "stacks": case.stacks,
    } | result


def main(folder: Path, part: str = "") -> int:
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
    }
    run(Case(label="", knobs={"steps": 3}), 0, PLAIN, recorded=False)  # libraries load
    for name, case in CASES.items():
        if part not in name:
            continue
        try:
            index[name] = record(folder, name, case)
        except Exception:
            traceback.print_exc()
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
