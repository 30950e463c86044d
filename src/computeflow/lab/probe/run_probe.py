"""Runs of the probe: measure, repeat, grade; on one rank or all that a launcher started. Start with
`probe`.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from computeflow.catalog import Accelerator
from computeflow.lab.probe import kernels
from computeflow.lab.probe.collectives import CollectiveTiming, fit, sweep
from computeflow.lab.probe.dataset import check_exists, probe_dataset
from computeflow.lab.probe.expected_figures import expected_range
from computeflow.lab.probe.grading import ProbeFigure, against_baseline, outliers
from computeflow.lab.probe.host_cpus import ProbedHost, examine_host
from computeflow.lab.probe.profiler_cost import ProfilerCost, profiler_costs
from computeflow.lab.probe.result import SCHEMA, Measurements, Probe, ProbedRanks
from computeflow.lab.probe.storage import check_writable, storage_rates
from computeflow.lab.sensors import Readings, Sensors, describe_device

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    quick: bool = False
    soak_seconds: float = 0.0
    repeats: int = 1
    data: Path | None = None
    needed_tokens_per_second: float | None = None
    storage_folder: Path | None = None
    storage_bytes: int = 256 << 20
    device: str = "auto"
    baseline: dict[str, float] | None = None
    slack: float = 0.25


def probe(options: ProbeOptions, accelerator: Accelerator | None, say: Say) -> ProbedRanks:
    """Probe this rank and, under a launcher, its peers; the result is complete on rank 0."""
    _check_folders(options)
    _from_slurm()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device(options.device)
    host = None
    if os.environ.get("LOCAL_RANK", "0") == "0":  # its peers wait in the rendezvous meanwhile
        say("host")
        host = examine_host(0.2 if options.quick else 0.5)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        probes = _gathered(_probe_rank(options, accelerator, device, host, say), world)
    finally:
        if world > 1:
            dist.destroy_process_group()
    nodes = {f"{p.node}:{p.rank}": p.items for p in probes}
    return ProbedRanks(probes=probes, outliers=tuple(outliers(nodes)))


def _check_folders(options: ProbeOptions) -> None:
    """Refuse wrong folders before some minutes of measuring."""
    check_writable(options.storage_folder or Path.cwd())
    if options.data is not None:
        check_exists(options.data)


def pick_device(wanted: str) -> torch.device:
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def driver_name(device: torch.device) -> str | None:
    """The driver's name of the device; None for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _from_slurm() -> None:
    """Set torch's variables from Slurm's, under `srun` without torchrun."""
    if "SLURM_PROCID" not in os.environ or "RANK" in os.environ:
        return
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ.get("SLURM_NTASKS", "1")
    os.environ["LOCAL_RANK"] = os.environ.get("SLURM_LOCALID", "0")
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST", "127.0.0.1")
    os.environ.setdefault("MASTER_ADDR", first_host(nodes))
    os.environ.setdefault("MASTER_PORT", "29512")


def first_host(nodes: str) -> str:
    """The first of Slurm's host list: `gpu[03-07,09],login1` begins with gpu03."""
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return "".join(match.groups(default="")) if match else nodes


def _probe_rank(
    options: ProbeOptions,
    accelerator: Accelerator | None,
    device: torch.device,
    host: ProbedHost | None,
    say: Say,
) -> Probe:
    rounds = []
    for number in range(options.repeats):
        say(f"pass {number + 1} of {options.repeats}")
        rounds.append(_measure(options, device, say))
    say("profiler")
    rounds = _with_profiler_costs(rounds, device)
    items = [*(_host_items(host) if host else []), *_items(rounds)]
    if accelerator is not None and device.type == "cuda":
        items = [expected_range(item, accelerator) for item in items]
    if options.baseline:
        items = against_baseline(items, options.baseline, options.slack)
    dataset = None
    if options.data is not None:
        say(f"data in {options.data}")
        dataset = probe_dataset(options.data, needed=options.needed_tokens_per_second)
    return Probe(
        schema=SCHEMA,
        environment=_environment(device),
        node=platform.node(),
        rank=int(os.environ.get("RANK", "0")),
        world=int(os.environ.get("WORLD_SIZE", "1")),
        repeats=options.repeats,
        items=tuple(items),
        measurements=tuple(rounds),
        host=host,
        fits=tuple(fit(list(rounds[-1].collectives))),
        dataset=dataset,
        unavailable=_unavailable(device, rounds[-1]),
    )


def _measure_kernels(
    options: ProbeOptions, device: torch.device, seconds: float, say: Say
) -> tuple[tuple[kernels.Gemm, ...], tuple[kernels.AttentionTiming, ...], dict[str, Any]]:
    """Rates of matmuls and attention, and the sensors' readings meanwhile."""
    shapes, attention_shapes, precision = kernels.CPU_GEMMS, kernels.CPU_ATTENTION, "fp32"
    if device.type == "cuda":
        shapes = kernels.QUICK_GEMMS if options.quick else kernels.FULL_GEMMS
        attention_shapes = kernels.QUICK_ATTENTION if options.quick else kernels.FULL_ATTENTION
        precision = "bf16"
    say("matmuls")
    gemms: list[kernels.Gemm] = []
    readings: dict[str, Any] = {}
    for gemm_precision in _precisions(device):
        with Sensors(device.index or 0) as sensors:
            chosen = (
                shapes if gemm_precision in ("bf16", "fp8") else shapes[: len(kernels.QUICK_GEMMS)]
            )
            gemms += kernels.gemms(device, gemm_precision, chosen, seconds)
        readings[f"matmul {gemm_precision}"] = asdict(sensors.readings)
    say("attention")
    with Sensors(device.index or 0) as sensors:
        attention = tuple(kernels.attention(device, precision, attention_shapes, seconds))
    readings["attention"] = asdict(sensors.readings)
    return tuple(gemms), attention, readings


def _gathered(own: Probe, world: int) -> tuple[Probe, ...]:
    """The probes of all ranks."""
    if world == 1:
        return (own,)
    probes: list[Probe | None] = [None] * world
    dist.all_gather_object(probes, own)
    return tuple(probe for probe in probes if probe is not None)


def _measure(options: ProbeOptions, device: torch.device, say: Say) -> Measurements:
    on_gpu = device.type == "cuda"
    seconds = 0.05 if options.quick or not on_gpu else 0.25
    gemms, attention, readings = _measure_kernels(options, device, seconds, say)
    say("memory, launches, copies")
    memory = kernels.memory_rates(device, (1 << 30) if on_gpu else (1 << 24), seconds)
    launch = kernels.launch_seconds(device)
    copies = kernels.copy_rates(device, 256 << 20, seconds) if on_gpu else {}
    say("storage")
    folder = options.storage_folder or Path.cwd()
    storage = storage_rates(folder, options.storage_bytes >> (2 if options.quick else 0))
    collectives = _collectives(options, device, say)
    line, soaked = _soak(options, device, say)
    if soaked is not None:
        readings["soak"] = asdict(soaked)
    return Measurements(
        gemms=gemms,
        attention=attention,
        memory=memory,
        launch_seconds=launch,
        copies=copies,
        storage=storage,
        collectives=tuple(collectives),
        soak=tuple(line),
        readings=readings,
    )


def _with_profiler_costs(rounds: list[Measurements], device: torch.device) -> list[Measurements]:
    """The passes with the profiler's cost, which is measured when all of them are done."""
    costs = profiler_costs(device, len(rounds))
    if not costs:
        return rounds
    return [replace(m, profiler=cost) for m, cost in zip(rounds, costs, strict=True)]


def _precisions(device: torch.device) -> list[str]:
    if device.type != "cuda":
        return ["fp32"]
    precisions = ["bf16", "tf32", "fp32"]
    if torch.cuda.get_device_capability(device) >= (8, 9):
        precisions.insert(1, "fp8")
    return precisions


def _collectives(options: ProbeOptions, device: torch.device, say: Say) -> list[CollectiveTiming]:
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return []
    say("collectives")
    most = 20 if options.quick or device.type == "cpu" else 28
    return list(sweep(device, [1 << power for power in range(10, most + 1, 3)]))


def _soak(
    options: ProbeOptions, device: torch.device, say: Say
) -> tuple[list[tuple[float, float]], Readings | None]:
    if options.soak_seconds <= 0:
        return [], None
    say(f"soak, {options.soak_seconds:g} s")
    with Sensors(device.index or 0) as sensors:
        line = kernels.soak(
            device, options.soak_seconds, "bf16" if device.type == "cuda" else "fp32"
        )
    return line, sensors.readings


def _items(rounds: list[Measurements]) -> list[ProbeFigure]:
    """The figures by which a machine is judged: the median of the repeats and half their range."""
    passes = [{item.name: item for item in _figures(m)} for m in rounds]
    items = []
    for name, first in passes[0].items():
        values = [p[name].value for p in passes if name in p]
        spread = (max(values) - min(values)) / 2 if len(values) > 1 else None
        items.append(replace(first, value=statistics.median(values), spread=spread))
    return items


def _host_items(host: ProbedHost) -> list[ProbeFigure]:
    share = host.share
    quota = float(host.cpus) if host.quota_cpus is None else host.quota_cpus
    taken = "" if share.others < 0.05 else f", {share.others:.1f} taken by other work"
    return [
        ProbeFigure(
            name="host cpus",
            value=share.delivered,
            unit="CPU",
            of_peak=float(host.cpus),
            expected_low=max(0.8 * host.cpus - share.others, 0.0),
            expected_high=1.05 * host.cpus,
            reason=f"{host.cpus} CPUs are visible{taken}",
        ),
        ProbeFigure(
            name="host quota",
            value=min(quota, float(host.cpus)),
            unit="CPU",
            expected_low=float(host.cpus),
            expected_high=float(host.cpus),
            reason=f"{host.cpus} CPUs are visible; a control group may allow less",
        ),
        ProbeFigure(
            name="host steal",
            value=share.stolen,
            unit="CPU",
            better="less",
            expected_low=0.0,
            expected_high=0.05 * host.cpus,
            reason="time withheld by the hypervisor",
        ),
        ProbeFigure(name="host loop", value=host.loop_seconds, unit="s", better="less"),
    ]


def _figures(measured: Measurements) -> Iterable[ProbeFigure]:
    yield from _matmul_figures(measured)
    for part in ("forward", "backward"):
        rates = [a.flops for a in measured.attention if a.part == part]
        if rates:
            yield ProbeFigure(
                name=f"attention {part}", value=statistics.median(rates), unit="FLOP/s"
            )
    yield from _rate_figures(measured)
    if measured.profiler is not None:
        yield from _profiler_figures(measured.profiler)
    yield from _collective_figures(measured)
    if measured.soak:
        last = [rate for _, rate in measured.soak[len(measured.soak) // 2 :]]
        yield ProbeFigure(name="soak", value=statistics.median(last), unit="FLOP/s")


def _rate_figures(measured: Measurements) -> Iterable[ProbeFigure]:
    for name, rate in measured.memory.items():
        yield ProbeFigure(name=f"memory {name}", value=rate, unit="B/s")
    yield ProbeFigure(name="launch", value=measured.launch_seconds, unit="s", better="less")
    for name, rate in measured.copies.items():
        yield ProbeFigure(name=name, value=rate, unit="B/s")
    if measured.storage is not None:
        yield ProbeFigure(
            name="storage read", value=measured.storage.read_bytes_per_second, unit="B/s"
        )
        yield ProbeFigure(
            name="storage write", value=measured.storage.write_bytes_per_second, unit="B/s"
        )


def _profiler_figures(cost: ProfilerCost) -> Iterable[ProbeFigure]:
    yield ProbeFigure(name="profiler step", value=cost.ratio, unit="ratio", better="less")
    yield ProbeFigure(
        name="profiler operator", value=cost.added_operator_seconds, unit="s", better="less"
    )
    if cost.launch_call_seconds is not None:
        yield ProbeFigure(
            name="profiler launch", value=cost.launch_call_seconds, unit="s", better="less"
        )


def _matmul_figures(measured: Measurements) -> Iterable[ProbeFigure]:
    """Matmul rates by precision, from the large shapes where there are any."""
    for precision in dict.fromkeys(g.precision for g in measured.gemms):
        gemms = [g for g in measured.gemms if g.precision == precision]
        large = [g for g in gemms if g.m * g.n * g.k > 1e11]
        rate = statistics.median(g.flops for g in large or gemms)
        yield ProbeFigure(name=f"matmul {precision}", value=rate, unit="FLOP/s")


def _collective_figures(measured: Measurements) -> Iterable[ProbeFigure]:
    """Rate of every operation at its largest payload."""
    for operation in dict.fromkeys(c.operation for c in measured.collectives):
        timings = [c for c in measured.collectives if c.operation == operation]
        largest = max(timings, key=lambda timing: timing.payload_bytes)
        rate = largest.bus_bytes_per_second
        yield ProbeFigure(name=f"{operation} x{largest.ranks}", value=rate, unit="B/s")


def _unavailable(device: torch.device, last: Measurements) -> dict[str, str]:
    missing = {}
    if device.type != "cuda":
        missing["copies, fp8, bf16, profiler launch"] = "a CUDA device"
    elif last.profiler is not None and last.profiler.launch_call_seconds is None:
        missing["profiler launch"] = "CUPTI: the profiler recorded no launch"
    if last.profiler is None:
        missing["profiler"] = "a torch that was built with Kineto"
    if not last.collectives:
        missing["collectives"] = "two ranks or more: run it under torchrun or srun"
    for name, reading in last.readings.items():
        if reading.get("unavailable"):
            missing[f"power and clocks ({name})"] = reading["unavailable"]
            break
    return missing


def _environment(device: torch.device) -> dict[str, Any]:
    environment: dict[str, Any] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": "cpu",
        "machine": platform.machine(),
    }
    if device.type == "cuda":
        environment |= {"device": driver_name(device), "cuda": torch.version.cuda}
        environment |= {f"nvml_{k}": v for k, v in describe_device(device.index or 0).items()}
    return environment
