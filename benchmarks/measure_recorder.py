"""What the recorder costs on a GPU: on and off in one process, block by block.

    python3 -m benchmarks.measure_recorder OUT [--pairs 64] [--block 0.5] [--tiny]   on the device
    python -m benchmarks.measure_recorder OUT --compare    ledgers of the kept runs, into recorder.json
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
    "host": {"hidden_size": 512, "layers": 16, "batch": 2, "length": 256},
    "tiny": {"hidden_size": 64, "layers": 2, "batch": 2, "length": 32},
}
"""`host` is so small a batch that the host's launches take longer than the device's work."""
WAYS = ("eager", "ddp", "compiled", "graphs")
CASES = ("plain", "slow-loader", "python-between", "saves")
OWN_STEPS = 30
TRACE = ".trace.json.gz"
TRACED_STEPS = 10
STEADY_STEPS = (45, 80)
"""Steps of a kept run that no profiler saw, after its warm-up and its window."""


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
        self.done = 0
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
        for _ in range(steps):
            batch = next(self.batches)
            self.done += 1
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
            elif self.case == "saves" and self.done % 10 == 0:
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
        "own_seconds_per_step": sum(seconds for _, seconds in own.values()),
        "own_calls": own,
        "bytes": file.stat().st_size,
    }


def own_time(torch: Any, loop: Loop, recorder: Any) -> dict[str, list[float]]:
    """Calls and seconds a step inside of the recorder's calls on the training thread, events included;
    calls within others are theirs.
    """
    spent: dict[str, list[float]] = {}
    depth = 0
    watch = recorder.watch
    names = ("begin", "end", "boundary")

    def timed(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        mine = spent.setdefault(name, [0.0, 0.0])

        def call(*arguments: Any) -> Any:
            nonlocal depth
            depth += 1
            began = time.perf_counter()
            try:
                return act(*arguments)
            finally:
                depth -= 1
                if not depth:
                    mine[0] += 1 / OWN_STEPS
                    mine[1] += (time.perf_counter() - began) / OWN_STEPS

        return call

    before = {name: getattr(watch, name) for name in names}
    for name in names:
        setattr(watch, name, timed(name, before[name]))
    loop.run(OWN_STEPS)
    loop.synchronize()
    for name in names:
        setattr(watch, name, before[name])
    return spent


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
        schedule=schedule(wait=0, warmup=2, active=TRACED_STEPS, repeat=1),
        record_shapes=True,
    ) as profiler:
        for _ in range(TRACED_STEPS + 3):
            loop.run(1)
            profiler.step()
    current = process_recorder.current()
    if current is not None:
        current.close()
    time.sleep(1)
    profiler.export_chrome_trace(str(folder.with_name(folder.name + TRACE)))
    return {"size": size, "case": case, "step_seconds": seconds}


def compare(kept: Path) -> list[Any]:
    """Shares of accounts by the recorder's phases with its one window, and by the full trace."""
    from computeflow import audit

    rows = []
    for trace in sorted(kept.glob("*" + TRACE)):
        folder = kept / trace.name.removesuffix(TRACE)
        full = audit([trace]).to_dict()
        seconds, accounts = recorded(folder)
        rows.append(
            {
                "name": folder.name,
                "step_seconds": seconds,
                "unprofiled_seconds": full["step_seconds_unprofiled"],
                "profiled_seconds": full["ledger"]["wall_seconds"] / TRACED_STEPS,
                "full": shares((full["ledger_unprofiled"] or full["ledger"])["accounts"]),
                "run": shares(accounts),
            }
        )
        print(json.dumps(rows[-1], indent=1))
    return rows


def recorded(folder: Path) -> tuple[float, dict[str, float]]:
    """The mean step and the accounts of the steps between the recorder's window and the full trace."""
    from dataclasses import replace

    from computeflow.catalog import load_catalog
    from computeflow.telemetry.run_folders.rank_file import cut
    from computeflow.telemetry.run_folders.rank_reading import read_rank_file
    from computeflow.telemetry.run_folders.run_folder_source import (
        describe,
        measure_run,
        report_run,
    )
    from computeflow.telemetry.run_folders.window_split import read_window
    from computeflow.telemetry.source_reports import SourceRequest

    catalog, left_out = load_catalog(), list[str]()
    whole = read_rank_file(next(folder.glob("rank-*.cfr")), 1 << 30)
    first, last = STEADY_STEPS
    chosen = (whole.steps.number >= first) & (whole.steps.number <= last)
    ends = whole.steps.end[chosen].tolist()
    file = cut(whole, ends[0], ends[-1])
    file = replace(file, start=replace(whole.start, epoch=int(file.steps.begin[0]), began=0))
    split = read_window(sorted((folder / "kineto").iterdir()), catalog, left_out)
    report = report_run(
        measure_run([file], left_out),
        describe(folder, left_out),
        SourceRequest(catalog=catalog),
        split=split,
    )
    assert report.ledger is not None and split is not None, left_out
    accounts: dict[str, float] = {}
    for entry in report.ledger.entries:
        accounts[entry.account] = accounts.get(entry.account, 0.0) + entry.gpu_seconds
    return (ends[-1] - ends[0]) / 1e6 / (len(ends) - 1), accounts


def shares(accounts: Any) -> dict[str, float]:
    """Shares by account, parts of one together; a window's first step would be its start-up."""
    totals: dict[str, float] = {}
    for name, seconds in accounts.items():
        owner = name.partition(".")[0]
        if owner != "startup":
            totals[owner] = totals.get(owner, 0.0) + seconds
    whole = sum(totals.values())
    return {name: seconds / whole for name, seconds in totals.items()}


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
    parser.add_argument("--sizes", nargs="*", default=("0.3B", "1B"))
    parser.add_argument("--cases", nargs="*", default=CASES)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--across", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report:
        REPORT.write_text(report(json.loads(options.out.read_text())))
        return 0
    if options.compare:
        kept = json.loads((options.out / "recorder.json").read_text())
        kept["ledgers"] = compare(options.out / "runs")
        (options.out / "recorder.json").write_text(json.dumps(kept))
        return 0
    import torch
    import transformers

    assert transformers.LlamaForCausalLM
    device = "cpu" if options.tiny else "cuda"
    sizes = ("tiny",) if options.tiny else options.sizes
    ways = ("eager",) if options.tiny else options.ways
    kept = options.out / "runs"
    kept.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    result: dict[str, Any] = {"torch": torch.__version__, "overhead": [], "cases": []}
    for case in options.cases:
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
        every += row["pairs"] if row["size"] != "host" else []
        step = statistics.median(off for _, off in row["pairs"])
        lines.append(
            f"| {row['size']} | {row['way']} | {1e3 * step:.1f} | {len(row['pairs'])} | "
            f"{100 * mean:+.3f} % | {100 * high:+.3f} % | {1e6 * row['own_seconds_per_step']:.0f} | "
            f"{100 * row['own_seconds_per_step'] / step:.3f} % | {row['bytes'] / row['steps']:.0f} |"
        )
    if every:
        mean, high = bound(every)
        lines.append(
            f"| 0.3B and 1B |  |  | {len(every)} | {100 * mean:+.3f} % | {100 * high:+.3f} % |  |  |  |"
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
            "",
            "`host`: 16 small layers and two sequences of 256 tokens: launches take longer than",
            "the device's work; such steps vary by several per cent from block to block on this",
            "machine, more than the recorder costs. Its own time bounds it: 0.7 to 1.4 % of the step.",
        ]
    return "\n".join(lines + ledger_lines(result.get("ledgers", []))) + "\n"


def ledger_lines(rows: list[Any]) -> list[str]:
    lines = [
        "",
        "## The ledger from phases and one window, against a full trace",
        "",
        "The same loop in one process: 36 steps that no profiler saw, split by the recorder's phases",
        "and its one window of three steps; then ten steps under a profiler, corrected for what it",
        "costs (`ledger_unprofiled`). Shares of the step in per cent: recorder / full trace. A trace",
        "has no name for a save without an annotation: there it is host and copy.",
        "",
        "| loop | step, ms | by the trace, ms | accounts | farthest apart, points |",
        "|---|---:|---:|---|---:|",
    ]
    for row in rows:
        names = sorted({*row["run"], *row["full"]} - {"unexplained"})
        pairs = {name: (row["run"].get(name, 0.0), row["full"].get(name, 0.0)) for name in names}
        shown = ", ".join(
            f"{name} {100 * mine:.1f} / {100 * full:.1f}"
            for name, (mine, full) in pairs.items()
            if max(mine, full) >= 0.001
        )
        apart = max(100 * abs(mine - full) for mine, full in pairs.values())
        by_trace = row["unprofiled_seconds"] or row["profiled_seconds"]
        lines.append(
            f"| {row['name']} | {1e3 * row['step_seconds']:.1f} | {1e3 * by_trace:.1f} | {shown} | "
            f"{apart:.1f} |"
        )
    return lines if rows else []


if __name__ == "__main__":
    sys.exit(main())
