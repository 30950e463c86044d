"""When the planted fault is on, and how long every step took.

A run is: warm-up steps without the fault, blocks of steps with the fault off and on by turns,
then steps with the fault on that are profiled. A script asks `hits` or `stretch` where the fault
is planted and calls `tick` at the end of every step.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One recording: a script, its size, and the fault planted in it."""

    script: str
    ranks: int
    fault: str = "none"
    culprits: tuple[int, ...] = ()
    amount: float = 0.0
    """Stretch of the compute (1.3 is 30 % slower), or seconds, as the fault needs."""
    every: int = 1
    """The fault hits every this many steps."""
    late: bool = False
    """The fault hits only the second half of each block and of the profiled steps."""
    period: int = 1
    """Blocks are multiples of this many steps."""
    skip: int = 1
    """Steps at the start of each block that are not counted."""
    counted: int = 8
    pairs: int = 3
    profiled: int = 8
    account: str = ""
    micro_batches: int = 0
    chunks: int = 1
    """Stages on each rank of a pipeline."""
    stages: int = 0
    stage_seconds: tuple[float, ...] = ()
    """Forward seconds of one micro-batch on each stage without the fault."""

    @property
    def recording(self) -> str:
        """Name of the folder with the traces."""
        return f"{self.script}_{self.ranks}_{self.fault}"


@dataclass(slots=True, kw_only=True)
class Drill:
    """The plan of one run as one rank sees it."""

    case: Case
    rank: int
    step: int = 0
    ends: list[float] = field(default_factory=lambda: [time.perf_counter()])

    @property
    def warm(self) -> int:
        """Steps before the first block."""
        return 4 if self.case.period == 1 else self.case.period

    @property
    def block(self) -> int:
        """Steps in a block."""
        return self.case.skip + self.case.counted

    @property
    def first_profiled(self) -> int:
        """Index of the first profiled step; at least two steps with the fault come before it."""
        lead = max(2, self.case.skip)
        return self.warm + 2 * self.case.pairs * self.block + lead

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.first_profiled + self.case.profiled

    def is_on(self, step: int) -> bool:
        """Whether a step belongs to a block with the fault, or is profiled."""
        index = step - self.warm
        if index < 0:
            return False
        return index // self.block >= 2 * self.case.pairs or index // self.block % 2 == 1

    def place(self, step: int) -> tuple[int, int]:
        """Return a step's place among the counted steps of its block, and how many those are."""
        if step >= self.first_profiled:
            return step - self.first_profiled, self.case.profiled
        return (step - self.warm) % self.block - self.case.skip, self.case.counted

    def hits(self, fault: str, rank: int | None = None, step: int | None = None) -> bool:
        """Whether the fault strikes a rank (this one) in a step (this one)."""
        rank = self.rank if rank is None else rank
        step = self.step if step is None else step
        if fault != self.case.fault or not self.is_on(step):
            return False
        if self.case.culprits and rank not in self.case.culprits:
            return False
        index, length = self.place(step)
        if self.case.late and index < length // 2:
            return False
        return index % self.case.every == self.case.every - 1

    def stretch(self, fault: str, rank: int | None = None) -> float:
        """Return the factor of the compute time in this step."""
        return self.case.amount if self.hits(fault, rank) else 1.0

    def turn(self, length: int = 1) -> int:
        """Return whose turn it is; it passes to the next rank after `length` steps."""
        return self.place(self.step)[0] // length % self.case.ranks

    @property
    def profiling(self) -> bool:
        """Whether this step is profiled."""
        return self.step >= self.first_profiled

    def tick(self) -> None:
        """Note the end of a step."""
        self.ends.append(time.perf_counter())
        self.step += 1

    def write(self, folder: Path) -> None:
        """Write the step ends of this rank."""
        (folder / f"ends{self.rank}.json").write_text(json.dumps(self.ends))
