"""A calibration: what a machine was measured to give, in place of the generic figures.

`computeflow.prediction.calibration.file` reads one; `Calibration.apply` puts what was measured into
the inputs and the parameters of a job, `Calibration.account_step` makes its step of them. Only what was
measured is replaced, and `calibrated` says what.

Most terms are proportional to one number, so a measured rate is put in by scaling that number until
the term gives the rate: whatever else the term is made of (power, maturity, the kernel's vintage)
then stays a relation to the measured point. The probe times a matmul or an attention back to back; in
a step it is somewhat slower (`in_step`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from computeflow.catalog import Accelerator
from computeflow.cluster.collectives import BASE_SECONDS, NETWORKED_HOP
from computeflow.errors import InputError
from computeflow.prediction import kernels
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.calibration.site import SiteCalibration
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.stack import ATTENTIONS, KERNELS
from computeflow.prediction.step import PredictedSteps, account_step, scale_step
from computeflow.prediction.step_inputs import StepInputs, generation_of
from computeflow.units import format_si

USUAL_LAUNCH_SECONDS = 9.9e-6
"""Launch time on the host for which `host_forward` holds: our H200's (benchmarks/data/h200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    flops: float
    """Sustained rate of a large bf16 matmul."""
    depth_half: float
    output_half: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """Rates of fused causal attention at one head dimension; long sequences, and the ramps to them."""

    head_dim: int
    forward_flops: float
    backward_flops: float
    forward_half: float
    backward_half: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollectives:
    """Measured over so many ranks: bus bandwidth (nccl-tests convention), and latencies if known."""

    ranks: int
    bus_bytes_per_second: float
    all_reduce_seconds: float = 0.0
    reduce_scatter_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured figures of a machine. None, or empty: not measured."""

    where: str
    """The file, for messages."""
    accelerators: tuple[str, ...]
    """Catalog names of the devices that were measured."""
    provenance: dict[str, Any] = field(default_factory=dict)
    matmul: Matmul | None = None
    other_flops: dict[str, float] = field(default_factory=dict)
    """Rates of large matmuls in other precisions (fp8, tf32, fp32), at bf16's ramps."""
    attention: tuple[AttentionRates, ...] = ()
    memory_bytes_per_second: float | None = None
    sm_hertz: float | None = None
    """Clock at which it settled under load."""
    launch_seconds: float | None = None
    collectives: tuple[MeasuredCollectives, ...] = ()
    site: SiteCalibration | None = None
    factors: Factors | None = None
    """Factors from a recording, by kind of work."""

    def check(self, device: Accelerator) -> None:
        if device.name not in self.accelerators:
            made_on = ", ".join(self.accelerators)
            raise InputError(
                f"{self.where}: a calibration of {made_on} says nothing about {device.name}: "
                "probe one, or leave --calibration out"
            )

    def range_for(self, stack: str) -> tuple[float, float] | None:
        """The site's own 80 % range; None where its rows are of other stacks."""
        return self.site.range if self.site and stack in self.site.stacks else None

    def account_step(
        self, inputs: StepInputs, parameters: Parameters, device: Accelerator
    ) -> PredictedSteps:
        """The steps of one job's layouts, measured figures and site factor included."""
        step = account_step(*self.apply(inputs, parameters, device))
        return scale_step(step, self.site.factor) if self.site else step

    def apply(
        self, inputs: StepInputs, parameters: Parameters, device: Accelerator
    ) -> tuple[StepInputs, Parameters]:
        """The layouts of one job (`of_job`) and the parameters, with what was measured."""
        self.check(device)
        if self.matmul or self.factors:  # measured here: what others reached says no more
            inputs = replace(inputs, maturity=np.ones(len(inputs)))
        parts = (inputs, parameters)
        if clock := self._clock(device):
            parts = _with_clock(*parts, device, clock)
        if self.matmul:
            parts = _with_matmul(*parts, self.matmul)
        precision = _precision(inputs, device)
        if precision in self.other_flops:
            parts = _with_precision(*parts, self.other_flops[precision])
        if self.attention:
            parts = _with_attention(*parts, self.attention)
        if self.memory_bytes_per_second:
            b, p = parts
            scale = self.memory_bytes_per_second / float(kernels.rates(b, p).memory[0])
            parts = replace(b, hbm_bytes_per_second=b.hbm_bytes_per_second * scale), p
        if self.launch_seconds:
            parts = _scaled(*parts, "host_forward", self.launch_seconds / USUAL_LAUNCH_SECONDS)
        for measured in self.collectives:
            parts = _with_collectives(*parts, measured)
        if self.factors:
            parts = parts[0], self._matching(inputs, device).applied(parts[1])
        return parts

    def _matching(self, inputs: StepInputs, device: Accelerator) -> Factors:
        assert self.factors is not None
        kernels, attention = KERNELS[int(inputs.kernels[0])], ATTENTIONS[int(inputs.attention[0])]
        return self.factors.matching(_precision(inputs, device), kernels, attention)

    def _clock(self, device: Accelerator) -> float | None:
        """The measured clock over the one at which the peak holds."""
        if not self.sm_hertz or not device.clock_hertz:
            return None
        return self.sm_hertz / device.clock_hertz

    def calibrated(self, inputs: StepInputs, device: Accelerator) -> tuple[str, ...]:
        """Measured figures in a job's step, as text."""
        lines = [*self._rate_lines(inputs, device), *self._factor_lines(inputs, device)]
        made = [str(self.provenance[k]) for k in ("device", "made_on") if k in self.provenance]
        if lines and made:
            lines.insert(0, f"probe of {', '.join(made)}")
        return (*lines, *([_site_line(self.site)] if self.site else []))

    def _rate_lines(self, inputs: StepInputs, device: Accelerator) -> Iterator[str]:
        measured = self.other_flops | ({"bf16": self.matmul.flops} if self.matmul else {})
        for precision in dict.fromkeys((_precision(inputs, device), "bf16")):
            if precision in measured:
                yield f"{precision} matmul {format_si(measured[precision], 'FLOP/s')}"
        if self.attention and inputs.attention[0] > 0:
            near = _nearest(self.attention, inputs)
            forward, backward = (
                format_si(rate, "FLOP/s") for rate in (near.forward_flops, near.backward_flops)
            )
            yield f"attention {forward} forward, {backward} backward"
        if self.memory_bytes_per_second:
            yield f"memory {format_si(self.memory_bytes_per_second, 'B/s')}"
        if self._clock(device):
            yield f"clock {format_si(self.sm_hertz, 'Hz')}"

    def _factor_lines(self, inputs: StepInputs, device: Accelerator) -> Iterator[str]:
        if self.launch_seconds:
            yield f"launch {1e6 * self.launch_seconds:.1f} us"
        for c in self.collectives:
            yield f"collectives of {c.ranks} ranks {format_si(c.bus_bytes_per_second, 'B/s')}"
        if self.factors:
            held = self._matching(inputs, device).seen
            yield f"factors of a recording: {', '.join(held) or 'none'}"
            if len(held) < len(self.factors.seen):
                yield "others are of another precision, or of other kernels, and left out"


_FAR = 0.5
"""Weight below which a site's row is said to be far off: a judgement."""


def _site_line(site: SiteCalibration) -> str:
    steps = f"{len(site.rows)} step{'s' if len(site.rows) > 1 else ''}"
    far = [row for row in site.rows if row.weight < _FAR]
    less = "" if not far else ", far from the prediction: it counts for less"
    if len(site.rows) > 1 and far:
        less = f", {len(far)} of them far from the prediction, which count for less"
    return (
        f"site factor {site.factor:.3f} +- {site.deviation * site.factor:.3f} from {steps} "
        f"under {', '.join(site.stacks)}{less}"
    )


def _scaled(b: StepInputs, p: Parameters, name: str, scale: float) -> tuple[StepInputs, Parameters]:
    return b, p.replaced({name: p[name] * scale})


def _with_clock(
    b: StepInputs, p: Parameters, device: Accelerator, share: float
) -> tuple[StepInputs, Parameters]:
    """The measured clock over the rated one: what `compute.clock` books."""
    name = f"sustained_{generation_of(device.name)}"
    name = name if name in p.names else "sustained_other"
    return _scaled(b, p, name, share / float(kernels.rates(b, p).clock[0]))


def _with_matmul(b: StepInputs, p: Parameters, measured: Matmul) -> tuple[StepInputs, Parameters]:
    """The rate of a bf16 job; other precisions keep their ratio to it unless they were measured."""
    scale = p["in_step"] * measured.flops / float(kernels.rates(_in_bf16(b), p).matmul[0])
    ramps = {"depth_half": measured.depth_half, "output_half": measured.output_half}
    return replace(b, matmul_ceiling=b.matmul_ceiling * scale), p.replaced(ramps)


def _in_bf16(b: StepInputs) -> StepInputs:
    """The same job in bf16, as far as rates depend on it."""
    return replace(
        b,
        element_bytes=np.full(len(b), 2.0),
        low_precision=np.zeros(len(b)),
        peak_flops=b.peak_bf16,
        attention_peak=b.peak_bf16,
    )


def _precision(b: StepInputs, device: Accelerator) -> str:
    if b.low_precision[0] > 0:
        return "fp8"
    full = {device.dense_flops.get(name): name for name in ("fp32", "tf32")}
    return full.get(float(b.peak_flops[0]), "bf16") if b.element_bytes[0] > 2 else "bf16"


def _with_precision(b: StepInputs, p: Parameters, flops: float) -> tuple[StepInputs, Parameters]:
    """The linear layers' rate where they are not in bf16."""
    scale = p["in_step"] * flops / float(kernels.rates(b, p).linear[0])
    if b.low_precision[0] > 0:
        return replace(b, low_rate=b.low_rate * scale), p
    return replace(b, matmul_ceiling=b.matmul_ceiling * scale), p


def _with_attention(
    b: StepInputs, p: Parameters, table: tuple[AttentionRates, ...]
) -> tuple[StepInputs, Parameters]:
    """The nearest measured head dimension is the fixed point, under a stack with today's kernels.

    Older kernels and other head dimensions keep their generic relation to it.
    """
    nearest = _nearest(table, b)
    point = replace(_in_bf16(b), attention=np.full(len(b), float(ATTENTIONS.index("latest"))))
    rates = kernels.rates(point, p)
    generic = float(kernels.head_dim_rate(np.full(1, float(nearest.head_dim)))[0])
    in_step = p["in_step"] / generic
    forward = in_step * nearest.forward_flops / float(rates.attention_forward[0])
    backward = in_step * nearest.backward_flops / float(rates.attention_backward[0])
    return b, p.replaced(
        {
            "attention_forward": p["attention_forward"] * forward,
            "attention_backward": p["attention_backward"] * backward,
            "attention_ramp_forward": nearest.forward_half,
            "attention_ramp_backward": nearest.backward_half,
        }
    )


def _nearest(table: tuple[AttentionRates, ...], b: StepInputs) -> AttentionRates:
    head_dim = max((float(k.qk_dim[0]) for k in b.kinds), default=0.0) or 128.0
    return min(table, key=lambda row: abs(math.log(row.head_dim / head_dim)))


def _with_collectives(
    b: StepInputs, p: Parameters, measured: MeasuredCollectives
) -> tuple[StepInputs, Parameters]:
    """A ring over so many neighbours measured the outermost tier that it crosses.

    Its members in a unit of the next smaller tier shared the way out. Latency is that of the ring's
    hops: inside the domain all alike, outside those over the network. A ring wider than the cluster
    crossed its network too; of a cluster without one it says nothing.
    """
    last = int(np.isfinite(b.tier_bytes_per_second[0]).sum()) - 1
    tier = min(int((b.tier_devices[0] < measured.ranks).sum()), last)
    if tier < 0 or (tier == 0 and measured.ranks > b.tier_devices[0, 0]):
        return b, p
    members = float(b.tier_devices[0, tier - 1]) if tier else 1.0
    efficiency = p["nic_efficiency"] if tier else p["link_efficiency"]
    speeds = b.tier_bytes_per_second.copy()
    speeds[:, tier] = measured.bus_bytes_per_second / members / efficiency
    if tier == 0:
        hops = measured.all_reduce_seconds / 2 - BASE_SECONDS
        latency = {"link_hop": hops / (measured.ranks - 1)}
    else:
        domains = measured.ranks / float(b.tier_devices[0, 0])
        inside = (measured.ranks - domains) * NETWORKED_HOP * p["link_hop"]
        hops = measured.reduce_scatter_seconds - BASE_SECONDS - inside
        latency = {"network_hop": hops / max(domains - 1, 1.0)}
    known = {name: seconds for name, seconds in latency.items() if seconds > 0}
    return replace(b, tier_bytes_per_second=speeds), p.replaced(known)
