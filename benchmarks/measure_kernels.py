"""How fast kernels are otherwise: the constants of `diagnosis/rules/device_work.py`, measured on pairs.

    python -m benchmarks.measure_kernels FOLDER...          writes benchmarks/reports/kernel_times.md

Each pair is one job with a mistake and without it: recordings of `benchmarks.foreign.record` in these
folders (only of the half that does not judge), our own trainer's (tests/data) and, where they are
there, those given with their truth (COMPUTEFLOW_DATA). Times are those of kernels that were launched
in the recorded steps, for each step.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpus import ONE
from benchmarks.fit_profiler_cost import DATA, ROOT
from benchmarks.foreign.unpack import traces_of, unpacked
from computeflow.diagnosis.rules import device_work
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.traces.event_names import WorkKind
from computeflow.telemetry.traces.graph_builder import step_graph
from computeflow.telemetry.traces.host_only import with_launches
from computeflow.telemetry.traces.kernel_precision import product_rows
from computeflow.telemetry.traces.rank_accounts import roles
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.telemetry.traces.step_graph import Role, StepGraph
from computeflow.telemetry.traces.windows import find_window

REPORT = ROOT / "benchmarks" / "reports" / "kernel_times.md"
Rows = NDArray[np.bool_]
FUSED = re.compile(r"flash|fmha|sdpa|attention", re.IGNORECASE)
UPDATE = re.compile(r"fused_?adam", re.IGNORECASE)
ATTENTION_PAIRS = (
    ("gpt2_none", "gpt2_eager-attention"),
    ("llama_none", "llama_eager-attention"),
    ("healthy-base", "unfused-attention"),
    ("healthy-wide", "unfused-attention-wide"),
    ("healthy-deep", "unfused-attention-deep"),
    ("hf_base", "hf_eager_attention"),
)
# Our own recordings in float32 have another batch.
PRECISION_PAIRS = (
    ("gpt2_none", "gpt2_fp32"),
    ("llama_none", "llama_fp32"),
    ("healthy-base", "tf32-matmul"),
)
UPDATE_PAIRS = (
    ("bert_none", "bert_loop-optimizer"),
    ("gpt2_none", "gpt2_loop-optimizer"),
    ("healthy-base", "unfused-optimizer"),
    ("healthy-wide", "unfused-optimizer-wide"),
    ("healthy-deep", "unfused-optimizer-deep"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The device's work in the recorded steps."""

    graph: StepGraph
    product: Rows
    fused: Rows
    """Fused attention."""
    updates: Rows
    """Fused updates of weights."""

    def milliseconds(self, rows: Rows) -> float:
        known = self.graph.device.call >= 0
        return 1e3 * float(self.graph.device.seconds[rows & known].sum()) / self.graph.steps

    def has(self, role: Role) -> Rows:
        return self.graph.device.has(role)

    @property
    def others(self) -> Rows:
        """Kernels of the passes that are no product and no attention."""
        busy = np.isin(self.graph.device.work, (WorkKind.COMPUTE, WorkKind.MEMORY))
        taken = self.product | self.fused | self.has(Role.OPTIMIZER) | self.has(Role.ATTENTION)
        return np.asarray(busy & ~taken)


@cache
def read(packed: Path) -> Kernels:
    with unpacked(packed) as path:
        trace, launched = with_launches(read_trace(path, detailed=True))
        role = roles(trace, launched)
        steps = find_window(trace, launched, TraceOptions())[0]
        graph = step_graph(trace, launched, role, steps)
    assert graph is not None
    return Kernels(
        graph=graph,
        product=product_rows(trace, launched)[graph.device.row],
        fused=_named(graph, FUSED),
        updates=_named(graph, UPDATE),
    )


def _named(graph: StepGraph, pattern: re.Pattern[str]) -> Rows:
    chosen = np.array([pattern.search(name) is not None for name in graph.names])
    return np.asarray(chosen[graph.device.name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    pair: str
    what: str
    before: float
    """Milliseconds of a step with the mistake."""
    after: float

    @property
    def line(self) -> str:
        ratio = f"{self.after / self.before:.2f}" if self.before else "-"
        return f"| {self.pair} | {self.what} | {self.before:.2f} | {self.after:.2f} | {ratio} |"


def attention(pair: str, good: Kernels, bad: Kernels) -> list[Ratio]:
    products = bad.has(Role.ATTENTION_PRODUCT)
    return [
        Ratio(
            pair=pair,
            what="fused attention over its batched products",
            before=bad.milliseconds(products),
            after=good.milliseconds(good.fused),
        )
    ]


def precision(pair: str, good: Kernels, bad: Kernels) -> list[Ratio]:
    written = bad.has(Role.ATTENTION)
    full = (bad.has(Role.FP32_PRODUCT) | bad.has(Role.TF32_PRODUCT)) & ~written
    attending = bad.has(Role.FP32_ATTENTION) | written
    parts = {
        "products in bf16": (full, good.product),
        "attention in bf16" + (", written out before" if written.any() else ""): (
            attending,
            good.fused,
        ),
        "other kernels in bf16": (bad.has(Role.FP32_OTHER) & ~written, good.others),
    }
    return [
        Ratio(pair=pair, what=what, before=bad.milliseconds(old), after=good.milliseconds(new))
        for what, (old, new) in parts.items()
    ]


def update(pair: str, good: Kernels, bad: Kernels) -> list[Ratio]:
    return [
        Ratio(
            pair=pair,
            what="fused optimizer",
            before=bad.milliseconds(bad.has(Role.SINGLE_UPDATE)),
            after=good.milliseconds(good.updates),
        )
    ]


def ratios(folders: Sequence[Path]) -> list[Ratio]:
    paths = traces_of([*folders, ONE, DATA / "recordings" / "foreign"])
    found = []
    for pairs, compare in (
        (ATTENTION_PAIRS, attention),
        (PRECISION_PAIRS, precision),
        (UPDATE_PAIRS, update),
    ):
        for good, bad in pairs:
            if good in paths and bad in paths:
                found += compare(f"{good}, {bad}", read(paths[good]), read(paths[bad]))
    return found


def report(rows: Sequence[Ratio]) -> str:
    names = ("FUSED_ATTENTION", "BF16_TF32", "BF16_ATTENTION", "BF16_OTHERS", "UNALIGNED")
    constants = {name: getattr(device_work, name) for name in (*names, "FUSED_UPDATE")}
    return "\n".join(
        [
            OPENING,
            "| pair | kernels | with the mistake, ms | without, ms | ratio |",
            "|---|---|---:|---:|---:|",
            *(row.line for row in rows),
            "",
            "In the code: "
            + "; ".join(f"`{name}` {value}" for name, value in constants.items())
            + ".",
            "",
        ]
    )


OPENING = """# How fast kernels are otherwise

Made by `python -m benchmarks.measure_kernels FOLDER...`: kernels of one step, of jobs with a mistake
and without it, on an H200. Factors of `diagnosis/rules/device_work.py` rest on these ratios.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    text = report(ratios(parser.parse_args().folders))
    REPORT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
