"""`AuditRequest`: the inputs and options of an audit, and which kinds of source use which option."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from computeflow.catalog import Accelerator, Catalog, Grid
from computeflow.catalog.models import Model
from computeflow.engines import Engine
from computeflow.errors import InputError
from computeflow.telemetry.source_reports import ModelWork, SourceRequest
from computeflow.telemetry.trace_formats import KINDS as TRACES
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.workload import flops_per_token

_MAX_SIZE = 10**9
_TIMED = frozenset({"accounting", "metrics", "kernel-log", "log", "outages"})
_TRACED = frozenset(TRACES)
_WORKING = frozenset({*TRACES, "log", "recording"})
_USERS: dict[str, frozenset[str]] = {
    "steps": _TRACED,
    "window": _TRACED,
    "rank-from": _TRACED,
    "no-replay": _TRACED,
    "step-seconds": _TRACED,
    "baseline": _TRACED,
    "perfetto": _TRACED,
    "calibrate": _TRACED,
    "details": _TRACED,
    "engine": _TRACED | {"recording"},
    "period": _TIMED,
    "model": _WORKING,
    "on": _WORKING | {"outages"},
}
"""Kinds of source that use an option; options that all kinds use are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    paths: tuple[str, ...]
    """Files, folders, addresses of Prometheus servers."""
    catalog: Catalog
    trace: TraceOptions = field(default_factory=TraceOptions)
    step_seconds: float | None = None
    """The user's own measurement of a step without a profiler."""
    start: float | None = None
    """Unix time; anything earlier is ignored."""
    end: float | None = None
    accelerator: Accelerator | None = None
    gpus: int | None = None
    """As stated by the user, where no source does."""
    model: Model | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    expect: Path | None = None
    """A plan, a prediction or a ledger to compare with."""
    work_ratio: float | None = None
    """Work in the recording over the expected work, where FLOPs are unknown."""
    against: str | None = None
    """An earlier recording to compare with."""
    baseline: str | None = None
    keep: bool = False
    price: str | float | None = None
    """Dollars for a GPU-hour, or the name of an offer or a provider."""
    grid: Grid | None = None
    engine: Engine = "local"
    cache: bool = True
    extras: frozenset[str] = frozenset()
    """Options that the caller handles: perfetto, calibrate, details."""

    def __post_init__(self) -> None:
        self._check_work()
        self._check_step()
        if self.keep and self.baseline is None:
            raise InputError("--keep needs --baseline")
        if self.work_ratio is not None and self.expect is None:
            raise InputError("--work-ratio needs --expect")
        compared = [name for name in ("expect", "against", "baseline") if getattr(self, name)]
        if len(compared) > 1:
            raise InputError(f"--{' and --'.join(compared)} cannot be combined")

    def _check_work(self) -> None:
        sizes = (self.global_batch, self.seq_len)
        if self.model is None:
            if any(size is not None for size in sizes):
                raise InputError("--global-batch and --seq-len need --model")
        elif None in sizes:
            raise InputError("--model needs --global-batch and --seq-len")
        if not all(size is None or 0 < size < _MAX_SIZE for size in sizes):
            raise InputError("--global-batch and --seq-len: above zero")

    def _check_step(self) -> None:
        if self.step_seconds is None:
            return
        if not 0 < self.step_seconds < math.inf:
            raise InputError(f"--step-seconds {self.step_seconds:g}: must be above zero")
        if not self.trace.replay:
            raise InputError(
                "--step-seconds cannot be combined with --no-replay: it sets the time of the replayed "
                "step"
            )

    @property
    def work(self) -> ModelWork | None:
        """FLOPs of a step of all ranks; None where the recording must state them."""
        if self.model is None or self.global_batch is None or self.seq_len is None:
            return None
        each, tokens = flops_per_token(self.model, self.seq_len), self.global_batch * self.seq_len
        return ModelWork(flops_per_step=tokens * each.total, full_flops_per_step=tokens * each.palm)

    @property
    def asked(self) -> SourceRequest:
        """The request to sources other than traces."""
        return SourceRequest(
            catalog=self.catalog,
            start=self.start,
            end=self.end,
            work=self.work,
            accelerator=self.accelerator,
            gpus=self.gpus,
            engine=self.engine,
        )

    def refuse_unused(self, kinds: Collection[str]) -> None:
        """Refuses options that no source at hand uses; none is ignored."""
        for option in self._given():
            users = _USERS[option]
            if not users.intersection(kinds):
                raise InputError(
                    f"--{option} is for {_listed(users)}, and there is only {_listed(kinds)}"
                )
        if self._names_a_device_only() and not (_TRACED | {"recording"}).intersection(kinds):
            raise InputError("--on needs --model, --price PROVIDER, or a count (h100-sxm:8) here")

    def _names_a_device_only(self) -> bool:
        """Whether --on names a device for FLOPs that a recording would tell: no count, no offer."""
        named = self.accelerator is not None and self.gpus is None
        return named and self.model is None and not isinstance(self.price, str)

    def _given(self) -> list[str]:
        """The given options that not every kind of source uses."""
        plain = TraceOptions()
        found = {
            "steps": (self.trace.first_step, self.trace.last_step) != (None, None),
            "window": self.trace.window != plain.window,
            "rank-from": self.trace.rank_from is not None,
            "no-replay": not self.trace.replay,
            "step-seconds": self.step_seconds is not None,
            "baseline": self.baseline is not None,
            "engine": self.engine != "local",
            "period": (self.start, self.end) != (None, None),
            "model": self.model is not None,
            "on": self.accelerator is not None,
        }
        return [*(option for option, given in found.items() if given), *sorted(self.extras)]


def _listed(kinds: Collection[str]) -> str:
    names = dict.fromkeys("traces" if kind in TRACES else kind for kind in sorted(kinds))
    return ", ".join(names) or "nothing"
