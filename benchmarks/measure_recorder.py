"""What the recorder costs on a GPU: on and off in one process, block by block.

    python3 -m benchmarks.measure_recorder OUT [--pairs 64] [--block 0.5] [--tiny]   on the device
    python -m benchmarks.measure_recorder --report     benchmarks/reports/recorder.md, from KEPT

A block is half a second of steps; pairs of blocks, one with the recorder and one without, alternate
in order. "Off" is torch as it was before: every function that the recorder replaced is put back, and
its hooks are taken out. Run folders and full profiler traces of the same loops, with and without a
mistake, are kept for the comparison of ledgers.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parent / "reports" / "recorder.md"
KEPT = Path(__file__).parent / "data" / "recorder_h200.json"
"""What the last measurement on the device gave (`recorder.json` in OUT)."""
SIZES = {
    "0.3B": {"hidden_size": 1536, "layers": 8, "batch": 8, "length": 1024},
    "1B": {"hidden_size": 3072, "layers": 8, "batch": 8, "length": 1024},
    "tiny": {"hidden_size": 64, "layers": 2, "batch": 2, "length": 32},
}
WAYS = ("eager", "ddp", "compiled", "graphs")
CASES = ("plain", "slow-loader", "python-between", "saves")


def model_of(torch: Any, size: str, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = SIZES[size]
    hidden = shape["hidden_size"]
    config = LlamaConfig(
        num_hidden_layers=shape["layers"],
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_attention_heads=max(1, hidden // 64),
        num_key_value_heads=max(1, hidden // 128),
        vocab_size=32000 if size != "tiny" else 100,
        attn_implementation="sdpa",
    )
    with torch.device(device):
        return LlamaForCausalLM(config)


class Loop:
    """A training loop as people write it; `run(n)` does n steps."""

    def __init__(self, torch: Any, size: str, way: str, device: str, case: str = "plain") -> None:
        self.torch, self.device, self.case, self.way = torch, device, case, way
        shape = SIZES[size]
        self.model = model_of(torch, size, device)
        fused = device == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, fused=fused, capturable=way == "graphs"
        )
        self.called = torch.compile(self.model) if way == "compiled" else self.model
        if way == "ddp":
            self.called = self._parallel()
        self.batches = _forever(torch, shape["batch"], shape["length"], size, case)
        self.replay: Callable[[], None] | None = None
        if way == "graphs":
            self._capture()

    def _parallel(self) -> Any:
        """NCCL at a world size of one: its collectives are there, nobody is waited for."""
        torch = self.torch
        backend = "nccl" if self.device == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, init_method="tcp://127.0.0.1:29513", rank=0, world_size=1
        )
        return torch.nn.parallel.DistributedDataParallel(self.model)

    def _forward_backward(self, ids: Any) -> Any:
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16):
            loss = self.called(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    def _capture(self) -> None:
        """The whole step as one CUDA graph, as PyTorch's notes on it describe."""
        torch = self.torch
        self.static = next(self.batches).to(self.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                self._forward_backward(self.static)
                self.optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._forward_backward(self.static)
            self.optimizer.step()
        self.replay = graph.replay

    def run(self, steps: int) -> None:
        for number in range(steps):
            batch = next(self.batches)
            if self.replay is not None:
                self.static.copy_(batch, non_blocking=True)
                self.replay()
                continue
            self._forward_backward(batch.to(self.device, non_blocking=True))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.case == "python-between":
                end = time.perf_counter() + 0.03
                while time.perf_counter() < end:
                    pass
            elif self.case == "saves" and number % 10 == 9:
                self.torch.save(self.model.state_dict(), "/tmp/measure-recorder.pt")

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def _forever(torch: Any, batch: int, length: int, size: str, case: str) -> Iterator[Any]:
    vocabulary = 32000 if size != "tiny" else 100

    class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> Any:
            if case == "slow-loader" and index % batch == 0:
                time.sleep(0.05 if size != "tiny" else 0.005)
            return torch.randint(0, vocabulary, (length,))

    workers = 0 if case == "slow-loader" or size == "tiny" else 2
    loader = torch.utils.data.DataLoader(
        Tokens(), batch_size=batch, num_workers=workers, pin_memory=torch.cuda.is_available()
    )
    while True:
        yield from loader


class Switch:
    """Takes everything that the recorder put into torch out, and puts it back."""

    def __init__(self, torch: Any, before: dict[Any, dict[str, Any]]) -> None:
        import torch.optim.optimizer as hooks

        self._changed = [
            (owner, name, old[name], vars(owner)[name])
            for owner, old in before.items()
            for name in old
            if name in vars(owner) and vars(owner)[name] is not old[name]
        ]
        self._dicts: list[dict[Any, Any]] = [
            hooks._global_optimizer_pre_hooks,
            hooks._global_optimizer_post_hooks,
        ]
        self._kept: list[dict[Any, Any]] = [dict(each) for each in self._dicts]

    def add_model(self, model: Any) -> None:
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                if hooks and not any(hooks is each for each in self._dicts):
                    self._dicts.append(hooks)
                    self._kept.append(dict(hooks))

    def turn(self, on: bool) -> None:
        for owner, name, old, new in self._changed:
            setattr(owner, name, new if on else old)
        for hooks, kept in zip(self._dicts, self._kept, strict=True):
            hooks.clear()
            if on:
                hooks.update(kept)


def owners(torch: Any) -> list[Any]:
    from torch.amp.grad_scaler import GradScaler
    from torch.utils.data import dataloader

    return [
        torch,
        torch.autograd,
        torch.serialization,
        torch.nn.Module,
        torch.cuda.CUDAGraph,
        GradScaler,
        dataloader._BaseDataLoaderIter,
    ]


def measure(torch: Any, size: str, way: str, device: str, folder: Path, options: Any) -> Any:
    """Seconds per step of blocks: [(on, off), ...]. In a process of its own."""
    from computeflow.recorder import process_recorder, tape, torch_hooks

    tape.FLUSH_SECONDS = 0.1  # four times as often: none is left for the next block
    before = {owner: dict(vars(owner)) for owner in owners(torch)}
    recorder = process_recorder.make(folder)
    torch_hooks.install(torch)
    switch = Switch(torch, before)
    loop = Loop(torch, size, way, device)
    loop.run(10)
    loop.synchronize()
    switch.add_model(loop.model)
    began = time.perf_counter()
    loop.run(5)
    loop.synchronize()
    steps = max(3, round(options.block / ((time.perf_counter() - began) / 5)))
    pairs: list[tuple[float, float]] = []
    for number in range(options.pairs):
        seconds = {}
        for on in (True, False) if number % 2 else (False, True):
            switch.turn(on)
            loop.run(1)
            loop.synchronize()
            began = time.perf_counter()
            loop.run(steps)
            loop.synchronize()
            seconds[on] = (time.perf_counter() - began) / steps
        pairs.append((seconds[True], seconds[False]))
    switch.turn(True)
    own = own_time(torch, loop, recorder)
    recorder.close()
    count = recorder.watch.steps
    file = next(folder.glob("rank-*.cfr"))
    return {
        "size": size,
        "way": way,
        "steps_per_block": steps,
        "pairs": pairs,
        "steps": count,
        "own_seconds_per_step": own,
        "bytes": file.stat().st_size,
    }


def own_time(torch: Any, loop: Loop, recorder: Any) -> float:
    """Seconds a step inside of the recorder's calls on the training thread, its events included."""
    spent, depth = 0.0, 0
    watch = recorder.watch
    begin, end, boundary = watch.begin, watch.end, watch.boundary

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent, depth
            depth += 1
            began = time.perf_counter()
            try:
                return act(*arguments)
            finally:
                depth -= 1
                if not depth:
                    spent += time.perf_counter() - began

        return call

    watch.begin, watch.end, watch.boundary = timed(begin), timed(end), timed(boundary)
    loop.run(30)
    loop.synchronize()
    watch.begin, watch.end, watch.boundary = begin, end, boundary
    return spent / 30


def keep_case(torch: Any, size: str, case: str, device: str, folder: Path) -> Any:
    """A run folder with a sampled window, a full trace of the same loop, and its unprofiled step."""
    from torch.profiler import ProfilerActivity, profile, schedule

    from computeflow.recorder import process_recorder, torch_hooks

    (folder / "control").mkdir(parents=True)
    process_recorder.make(folder)
    torch_hooks.install(torch)
    loop = Loop(torch, size, "eager", device, case)
    loop.run(20)
    (folder / "control" / "1.json").write_text(json.dumps({"do": "window", "step": 22, "steps": 3}))
    loop.run(20)
    loop.synchronize()
    began = time.perf_counter()
    loop.run(40)
    loop.synchronize()
    seconds = (time.perf_counter() - began) / 40
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=2, active=4, repeat=1),
        record_shapes=True,
    ) as profiler:
        for _ in range(7):
            loop.run(1)
            profiler.step()
    current = process_recorder.current()
    if current is not None:
        current.close()
    time.sleep(1)
    trace = folder / "full.json.gz"
    profiler.export_chrome_trace(str(trace))
    return {"size": size, "case": case, "step_seconds": seconds}


def in_a_child(act: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a forked process: what the recorder changes in torch is gone with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            with os.fdopen(writing, "w") as file:
                json.dump(act(*arguments), file)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def across(out: Path, device: str, size: str, steps: int) -> list[Any]:
    """Whole processes, with and without the recorder, in turn."""
    rows = []
    for number in range(6):
        on = number % 2 == 0
        folder = out / "runs" / f"across-{number}"

        def once(on: bool = on, folder: Path = folder) -> float:
            import torch

            if on:
                from computeflow.recorder import process_recorder, torch_hooks

                process_recorder.make(folder)
                torch_hooks.install(torch)
            loop = Loop(torch, size, "eager", device)
            loop.run(15)
            loop.synchronize()
            began = time.perf_counter()
            loop.run(steps)
            loop.synchronize()
            return (time.perf_counter() - began) / steps

        rows.append({"on": on, "seconds": in_a_child(once)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=KEPT)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--block", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--ways", nargs="*", default=WAYS)
    parser.add_argument("--no-cases", action="store_true")
    parser.add_argument("--across", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report:
        REPORT.write_text(report(json.loads(options.out.read_text())))
        return 0
    import torch
    import transformers

    assert transformers.LlamaForCausalLM
    device = "cpu" if options.tiny else "cuda"
    sizes = ("tiny",) if options.tiny else ("0.3B", "1B")
    ways = ("eager",) if options.tiny else options.ways
    kept = options.out / "runs"
    kept.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    result: dict[str, Any] = {"torch": torch.__version__, "overhead": [], "cases": []}
    for case in () if options.no_cases else CASES:
        for size in sizes[:1] if case != "plain" else sizes:
            folder = kept / f"{size}-{case}"
            result["cases"].append(in_a_child(keep_case, torch, size, case, device, folder))
            print(result["cases"][-1], f"{time.monotonic() - began:.0f} s", flush=True)
    for size in sizes:
        for way in ways:
            if time.monotonic() - began > options.seconds:
                print("no time for", size, way)
                continue
            folder = Path("/tmp/measure-recorder") / f"{size}-{way}-{os.getpid()}"
            row = in_a_child(measure, torch, size, way, device, folder, options)
            if row:
                result["overhead"].append(row)
                print(
                    size, way, bound(row["pairs"]), f"{time.monotonic() - began:.0f} s", flush=True
                )
            (options.out / "recorder.json").write_text(json.dumps(result))
            gc.collect()
    if options.across:
        result["across"] = across(options.out, device, sizes[0], 100 if not options.tiny else 5)
    (options.out / "recorder.json").write_text(json.dumps(result))
    return 0


def bound(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The slowdown and its upper 95 % bound: the mean of the pairs' ratios without the fifth at
    either end, for the machine has other guests; the bound by drawing the pairs anew.
    """
    logs = [math.log(on / off) for on, off in pairs]
    draw = random.Random(1)
    drawn = sorted(trimmed(draw.choices(logs, k=len(logs))) for _ in range(2000))
    return math.expm1(trimmed(logs)), math.expm1(drawn[int(0.975 * len(drawn))])


def trimmed(values: list[float]) -> float:
    ordered = sorted(values)
    cut = len(ordered) // 5
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def report(result: Any) -> str:
    lines = [
        "# What the recorder costs",
        "",
        f"One H200 (700 W), torch {result['torch']}, made by",
        "`python -m benchmarks.measure_recorder`. Blocks of 0.4 s of steps in one process, with the",
        "recorder and with torch as it was before, in turn. The slowdown is the mean of the pairs",
        "without the fifth at either end; its bound is by drawing the pairs anew. `ddp` is NCCL at a",
        "world size of one, for there is one GPU: its flight recorder is read, nobody is waited for.",
        "Own time is that inside of the recorder's calls on the training thread, what they wait for in",
        "CUDA and for the interpreter included: a loop that its host limits may lose up to so much.",
        "The file is written four times as often as usual.",
        "",
        "| model | loop | step, ms | pairs of blocks | slowdown | upper 95 % bound | "
        "own time, µs | of the step | bytes per step |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    every: list[tuple[float, float]] = []
    for row in result["overhead"]:
        mean, high = bound(row["pairs"])
        every += row["pairs"]
        step = statistics.median(off for _, off in row["pairs"])
        lines.append(
            f"| {row['size']} | {row['way']} | {1e3 * step:.1f} | {len(row['pairs'])} | "
            f"{100 * mean:+.3f} % | {100 * high:+.3f} % | {1e6 * row['own_seconds_per_step']:.0f} | "
            f"{100 * row['own_seconds_per_step'] / step:.3f} % | {row['bytes'] / row['steps']:.0f} |"
        )
    if every:
        mean, high = bound(every)
        lines.append(
            f"| all |  |  | {len(every)} | {100 * mean:+.3f} % | {100 * high:+.3f} % |  |  |  |"
        )
    if result.get("across"):
        on = [row["seconds"] for row in result["across"] if row["on"] and row["seconds"]]
        off = [row["seconds"] for row in result["across"] if not row["on"] and row["seconds"]]
        change = statistics.median(on) / statistics.median(off) - 1
        spread = max(off) / min(off) - 1
        lines += [
            "",
            f"Across processes ({len(on)} with, {len(off)} without): {100 * change:+.2f} % at the "
            f"median; processes without it differ by {100 * spread:.2f} % among themselves.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
