"""Small traces of made-up jobs, as Kineto would write them: for tests that need several ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Maker:
    """One rank: a host that launches ahead, a device that runs behind, in microseconds."""

    rank: int = 0
    world: int = 1
    clock: float = 0.0
    """Offset of the rank's clock, added to every time."""
    groups: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """Description and ranks of each process group, by name."""
    events: list[dict[str, Any]] = field(default_factory=list)
    host: float = 1000.0
    device: float = 1000.0
    _next: int = 1

    def span(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": start + self.clock,
                "dur": length,
                "args": args,
            }
        )

    def kernel(self, name: str, length: float, *, stream: int = 7, **args: Any) -> None:
        """Add a kernel that runs as soon as the device is free."""
        correlation, self._next = self._next, self._next + 1
        self.span("cuda_runtime", "cudaLaunchKernel", self.host, 1.0, correlation=correlation)
        self.host += 2.0
        start = max(self.device, self.host)
        self.device = start + length
        self.events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start + self.clock,
                "dur": length,
                "args": {"correlation": correlation, "stream": stream, "device": 0, **args},
            }
        )

    def product(self, m: int, k: int, n: int, length: float) -> None:
        start = self.host
        self.kernel("gemm", length)
        self.span(
            "cpu_op",
            "aten::mm",
            start,
            self.host - start - 0.5,
            **{
                "Input Dims": [[m, k], [k, n]],
                "Input type": ["c10::BFloat16"] * 2,
                "Sequence number": 1,
                "Fwd thread id": 0,
            },
        )

    def collective(self, name: str, group: str, until: float) -> None:
        """Add a collective from when the device is free to `until` on the common clock."""
        doc, ranks = self.groups[group]
        self.host += 2.0
        start = max(self.device, self.host + 2.0)
        said: dict[str, Any] = {
            "Collective name": name,
            "Process Group Name": group,
            "Process Group Description": doc,
            "Process Group Ranks": str(ranks),
            "Group size": len(ranks),
            "In msg nelems": 1000,
            "dtype": "BFloat16",
        }
        self.kernel(f"ncclDevKernel_{name}", max(until - start, 1.0), **said)

    def step(self, number: int, start: float) -> None:
        self.span("user_annotation", f"ProfilerStep#{number}", start, self.host - start)

    def data(self) -> dict[str, Any]:
        config = [
            {"pg_name": name, "pg_desc": doc, "ranks": ranks}
            for name, (doc, ranks) in self.groups.items()
        ]
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world,
                "pg_config": config,
            },
            "traceEvents": self.events,
        }

    def write(self, folder: Path) -> Path:
        path = folder / f"rank_{self.rank}.json"
        path.write_text(json.dumps(self.data()))
        return path


def data_parallel_job(
    folder: Path,
    ranks: int = 4,
    *,
    slow: dict[int, float] | None = None,
    longer: dict[int, float] | None = None,
    clocks: dict[int, float] | None = None,
    steps: int = 3,
    layers: int = 10,
) -> list[Path]:
    """Traces of ranks that compute and then reduce together. `slow` multiplies kernel times, `longer`
    the work.
    """
    slow, longer, clocks = slow or {}, longer or {}, clocks or {}
    makers = [
        Maker(
            rank=rank,
            world=ranks,
            clock=clocks.get(rank, 0.0),
            groups={"0": ("mesh_dp", list(range(ranks)))},
        )
        for rank in range(ranks)
    ]
    for number in range(1, steps + 1):
        starts = [maker.host for maker in makers]
        for maker in makers:
            work = longer.get(maker.rank, 1.0)
            for _ in range(layers):
                maker.product(
                    round(4096 * work), 4096, 4096, 200.0 * work * slow.get(maker.rank, 1.0)
                )
        last = max(max(maker.device, maker.host + 4.0) for maker in makers)
        for maker, start in zip(makers, starts, strict=True):
            maker.collective("allreduce", "0", last + 100.0)
            maker.host = max(maker.host, maker.device - 500.0)
            maker.step(number, start)
    return [maker.write(folder) for maker in makers]
