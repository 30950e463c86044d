"""What `audit` is given, read: `Reader` sorts files and addresses to their sources, `Found` is all that
came of them in one go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.catalog import Catalog, find_model
from computeflow.catalog.files import read_text
from computeflow.cli.output import Progress
from computeflow.errors import InputError
from computeflow.ledger import Gap, Ledger, gaps, ledger_from_data
from computeflow.telemetry.audit import Settings, audit_files
from computeflow.telemetry.engines import Engine
from computeflow.telemetry.observed import Asked, ModelWork, Observed
from computeflow.telemetry.registry import TRACE, observe, sort_files
from computeflow.telemetry.traces.job import TracedJob
from computeflow.telemetry.traces.measured import Options
from computeflow.workload import flops_per_token

_DIGITS = 18
"""Of a step's number, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that was read in one go."""

    traces: TracedJob | None
    observed: tuple[Observed, ...]
    left_out: tuple[str, ...]

    def main_ledger(self) -> Ledger:
        ledgers = [] if self.traces is None else [self.traces.job.ledger]
        ledgers += [each.ledger for each in self.observed if each.ledger is not None]
        if not ledgers:
            reasons = "; ".join(each.ledger_reason for each in self.observed)
            raise InputError(f"no ledger to compare: {reasons}")
        return ledgers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    catalog: Catalog
    options: Options
    asked: Asked
    device: str | None
    work: ModelWork | None
    engine: Engine
    cache: bool

    def read(self, paths: tuple[str, ...]) -> Found:
        addresses = [path for path in paths if path.startswith(("http://", "https://"))]
        files = [Path(path) for path in paths if path not in addresses]
        if not files:
            return Found(
                traces=None, observed=tuple(observe({}, addresses, self.asked)[0]), left_out=()
            )
        found = sort_files(files)
        observed, failed = observe(found.files, addresses, self.asked)
        left_out = [*found.left_out, *failed]
        traces = None
        if TRACE in found.files:
            with Progress() as progress:
                settings = Settings(
                    options=self.options, engine=self.engine, work=self.work, cache=self.cache,
                    accelerator=self.catalog.accelerators[self.device] if self.device else None,
                    progress=lambda done, of: progress.say(f"{done:,} of {of:,} traces read"),
                )  # fmt: skip
                traces = audit_files(found.files[TRACE], self.catalog, settings, left_out)
            left_out = []
        elif not observed:
            raise InputError("; ".join(left_out))
        return Found(traces=traces, observed=tuple(observed), left_out=tuple(left_out))


def steps_done(traces: TracedJob) -> int:
    """Of all ranks."""
    return sum(max(len(rank.steps), 1) for rank in traces.ranks)


def compared(one: Found, other: Found) -> tuple[list[Gap], str]:
    """At equal model FLOPs, at equal FLOPs of the shapes, or at equal steps where none are known."""
    first, second = one.main_ledger(), other.main_ledger()
    if first.mfu is not None and second.mfu is not None:
        return gaps(first, second), "equal model FLOPs"
    if one.traces is None or other.traces is None:
        ratio = first.gpu_seconds / second.gpu_seconds
        return gaps(first, second, work_ratio=ratio), "equal GPU-seconds"
    counted = [
        sum(rank.flops for rank in each.traces.ranks) for each in (one, other) if each.traces
    ]
    if all(counted):
        return gaps(first, second, work_ratio=counted[0] / counted[1]), "equal FLOPs"
    ratio = steps_done(one.traces) / steps_done(other.traces)
    return gaps(first, second, work_ratio=ratio), "equal steps"


def read_expected(path: Path) -> Ledger:
    """Of a ledger's file, of `predict -o json`, or the first of `plan -o json`."""
    data = codec.from_json(read_text(path), str(path))
    if isinstance(data, dict) and isinstance(data.get("plans"), list) and data["plans"]:
        data = data["plans"][0]
    if isinstance(data, dict) and isinstance(data.get("ledger"), dict):
        data = data["ledger"]
    return ledger_from_data(data, str(path))


def parse_steps(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, last = text.partition(":")
    wrong = any(part and (not part.isdecimal() or len(part) > _DIGITS) for part in (first, last))
    if wrong or not (first or last):
        raise InputError(f"--steps {text}: write A:B, A: or :B with whole numbers")
    low = int(first) if first else None
    high = (int(last) if last else None) if colon else low
    if low is not None and high is not None and high < low:
        raise InputError(f"--steps {text}: ends before it starts")
    return low, high


def work_of(
    model: str | None, global_batch: int | None, seq_len: int | None, facts: Catalog
) -> ModelWork | None:
    """Of all ranks together in one step; None where the trace's shapes are to say it."""
    if model is None:
        if global_batch or seq_len:
            raise InputError("--global-batch and --seq-len go with --model")
        return None
    if global_batch is None or seq_len is None:
        raise InputError("--model needs --global-batch and --seq-len")
    if not (0 < global_batch < 10**9 and 0 < seq_len < 10**9):
        raise InputError("--global-batch and --seq-len: above zero")
    each, tokens = flops_per_token(find_model(facts, model), seq_len), global_batch * seq_len
    return ModelWork(flops_per_step=tokens * each.total, full_flops_per_step=tokens * each.palm)
