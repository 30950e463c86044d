"""`size`: a first estimate: FLOPs, GPUs and days by device, memory, network, power, dollars.

Every cell is the best quick plan there; nothing fails and nothing waits: `compare` simulates.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from computeflow.catalog import Accelerator, Catalog
from computeflow.catalog.parameters import count_parameters
from computeflow.cluster import MAX_GPUS
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.energy import host_watts
from computeflow.comparison.offers import ODD, usual_prices
from computeflow.comparison.planner import (
    MachineShape,
    Planner,
    check_tokens,
    shape_cluster,
)
from computeflow.economics import is_stale, usd_of
from computeflow.errors import InputError
from computeflow.planning import Plan, plan, why_no_plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.prediction import Prediction
from computeflow.prediction.stack import DEFAULT, find_stack
from computeflow.units import DAY_SECONDS, HOUR_SECONDS
from computeflow.workload import Job, Layout, flops_per_token

DEVICES = ("a100-80-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x")
"""Devices rented as clusters: each has several offers in the catalog and a published network."""
COUNTS = (64, 512, 4096)
MAX_COUNTS = 64
"""Numbers of GPUs of one question; each is a search on every device."""
_RATES = (12.5e9, 50e9, 100e9)
"""Bytes per second of one device: 100, 400 and 800 Gb/s."""
_WIRED = 256
"""GPUs from which the network is examined: on 64, 100 Gb/s a device keep 98 % of the MFU."""
_HALF_OF_80 = 0.6745 / 1.2816
"""Width of the middle half over that of the middle 80 %, of a normal distribution."""
KEPT = 0.95
"""Share of the MFU on the fastest of these networks that a network must keep to be enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    gpus: int
    layout: Layout
    mfu: float
    mfu_palm: float
    """With attention counted without its mask."""
    mfu_range: tuple[float, float]
    """Predicted range: 80 % of published runs fell inside."""
    days: float
    days_range: tuple[float, float]
    gpu_hours: float
    watts: float | None
    """Watts of all nodes, before the site's own overhead; None where the device's power is unknown."""
    evidence: str
    """Measured runs that stand behind it, in one line."""
    proven: bool
    """Whether any run of the device was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A number of GPUs on which the job has no plan."""

    gpus: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The fewest GPUs, doubling, on which a quick plan holds the job."""

    gpus: int
    bytes_per_gpu: float
    limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """On demand, per device and hour, over all offers of the device but oddly low ones."""

    low: float
    high: float
    quartiles: tuple[float, float, float]
    """Over the cheapest price of each provider."""
    cheapest: str
    most_expensive: str
    """Offers that have the ends."""
    offers: int
    oldest: str
    newest: str
    odd: int
    """Prices that were left out (`offers.ODD`)."""
    stale: int
    """Prices older than half a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedDevice:
    name: str
    peak_flops: float
    floor: Floor | None
    """None: in no layout on any number that was tried."""
    cells: tuple[SizeEstimate, ...]
    refused: tuple[Refusal, ...]
    """Requested numbers that have no cell."""
    price: PriceRange | None
    """None: no offer in the catalog."""

    def usd(self, cell: SizeEstimate) -> tuple[float, float] | None:
        """The middle half: of the providers' prices and of the predicted days, as independent of each
        other.
        """
        if self.price is None:
            return None
        lower, middle, upper = self.price.quartiles
        fast, slow = (math.log(end / cell.days) * _HALF_OF_80 for end in cell.days_range)
        low = math.exp(-math.hypot(fast, math.log(lower / middle)))
        high = math.exp(math.hypot(slow, math.log(upper / middle)))
        usd = usd_of(cell.gpus * cell.days * DAY_SECONDS, middle)
        return low * usd, high * usd

    def usd_ends(self, cell: SizeEstimate) -> tuple[float, float] | None:
        """From the cheapest offer for the fewest days to the most expensive one for the most."""
        if self.price is None:
            return None
        least, most = (cell.gpus * days * DAY_SECONDS for days in cell.days_range)
        return usd_of(least, self.price.low), usd_of(most, self.price.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNeed:
    """The slowest network that keeps `KEPT` of the MFU."""

    gpus: int
    bytes_per_second: float | None
    """Rate of one device; None: the job has no plan on so many GPUs."""
    mfus: tuple[tuple[float, float], ...]
    """Rate and MFU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    job: Job
    tokens: float
    flops: float
    parameters: float
    active_parameters: float
    tokens_per_parameter: float
    state_bytes: float
    """Weights, gradients and optimizer, as the usual stack keeps them; without activations."""
    devices: tuple[SizedDevice, ...]
    network_device: str
    network: tuple[NetworkNeed, ...]


def size(
    job: Job,
    tokens: float,
    catalog: Catalog,
    *,
    today: datetime.date,
    devices: Sequence[str] = DEVICES,
    counts: Sequence[int] = COUNTS,
    progress: Progress = silent,
) -> JobSize:
    check_tokens(tokens)
    counts, devices = tuple(dict.fromkeys(counts)), tuple(dict.fromkeys(devices))
    if len(counts) > MAX_COUNTS:
        raise InputError(f"{len(counts):,} numbers of GPUs; at most {MAX_COUNTS} at once")
    for count in counts:
        if not 1 <= count <= MAX_GPUS:
            raise InputError(f"{count:,} GPUs: 1 to {MAX_GPUS:,}")
    planner = Planner(job, catalog)
    counted = count_parameters(job.model)
    accelerators = [catalog.accelerators[name] for name in devices]
    wired = next((d for d in accelerators if d.name == "h100-sxm"), accelerators[0])
    sized = []
    for number, device in enumerate(accelerators, 1):
        progress(f"planning: {device.name}, device {number} of {len(accelerators)}")
        sized.append(_device(device, counts, tokens, planner, today))
    return JobSize(
        job=job,
        tokens=tokens,
        flops=flops_per_token(job.model, job.seq_len).total * tokens,
        parameters=counted.total,
        active_parameters=counted.active,
        tokens_per_parameter=tokens / counted.total,
        state_bytes=_state_bytes(counted.total),
        devices=tuple(sized),
        network_device=wired.name,
        network=tuple(_need(wired, count, planner) for count in counts if count >= _WIRED),
    )


def _state_bytes(parameters: float) -> float:
    stack = find_stack(DEFAULT)
    return parameters * (stack.param_bytes + stack.grad_bytes + stack.state_bytes)


def _device(
    device: Accelerator,
    counts: Iterable[int],
    tokens: float,
    planner: Planner,
    today: datetime.date,
) -> SizedDevice:
    shape = _shape(device, planner.catalog)
    cells, refused = [], []
    for count in counts:
        best = planner.plan(shape, count)
        if best is not None:
            cells.append(_cell(best, tokens, device, planner.catalog))
        else:
            refused.append(Refusal(gpus=count, reason=_reason(shape, count, planner)))
    return SizedDevice(
        name=device.name,
        peak_flops=device.dense_flops.get(planner.job.precision, math.nan),
        floor=_floor(device, shape, planner),
        cells=tuple(cells),
        refused=tuple(refused),
        price=_price(device, planner.catalog, today),
    )


def _reason(shape: MachineShape, gpus: int, planner: Planner) -> str:
    """Why the planner has no plan for so many GPUs."""
    job = planner.job
    try:
        cluster = shape_cluster(shape, gpus, planner.catalog)
    except InputError as error:
        return str(error)
    if not planner.computes(shape):
        return f"its matmuls do not run in {job.precision}"
    answer = plan(job, cluster, top=1, space=quick_space(job, gpus), parameters=planner.parameters)
    return why_no_plan(answer, job, cluster)


def _shape(device: Accelerator, catalog: Catalog) -> MachineShape:
    node = catalog.nodes[device.node] if device.node is not None else None
    rate = device.nic_bytes_per_second
    if node is not None and node.nics and node.nic_bytes_per_second:
        rate = node.nics * node.nic_bytes_per_second / node.count
    return MachineShape(
        accelerator=device.name,
        devices=node.count if node else device.domain,
        nic_bytes_per_second=rate,
    )


def _cell(best: Plan, tokens: float, device: Accelerator, catalog: Catalog) -> SizeEstimate:
    prediction, gpus = best.prediction, best.prediction.layout.gpus
    seconds = tokens / prediction.job.step_tokens * prediction.step_seconds
    days = seconds / DAY_SECONDS
    low, high = (end / prediction.step_seconds for end in prediction.step_seconds_range)
    mfu = prediction.ledger.mfu or 0.0
    return SizeEstimate(
        gpus=gpus,
        layout=prediction.layout,
        mfu=mfu,
        mfu_palm=prediction.ledger.mfu_palm or 0.0,
        mfu_range=(mfu / high, mfu / low),
        days=days,
        days_range=(days * low, days * high),
        gpu_hours=gpus * seconds / HOUR_SECONDS,
        watts=_watts(prediction, device, catalog),
        evidence=prediction.evidence.line,
        proven=prediction.evidence.proven,
    )


def _watts(prediction: Prediction, device: Accelerator, catalog: Catalog) -> float | None:
    if prediction.watts_per_gpu is None:
        return None
    node = catalog.nodes[device.node] if device.node is not None else None
    return prediction.layout.gpus * (prediction.watts_per_gpu + (host_watts(node, device) or 0.0))


def _floor(device: Accelerator, shape: MachineShape, planner: Planner) -> Floor | None:
    """From what weights, gradients and optimizer alone would fill, doubling."""
    limit = device.reported_bytes or device.hbm_bytes
    state = _state_bytes(count_parameters(planner.job.model).total)
    gpus = 1 << max(math.ceil(math.log2(state / limit)), 0)
    for _ in range(4):
        best = planner.plan(shape, gpus)
        if best is not None:
            used = best.prediction.memory_bytes
            return Floor(gpus=gpus, bytes_per_gpu=used, limit_bytes=limit)
        gpus *= 2
    return None


def _price(device: Accelerator, catalog: Catalog, today: datetime.date) -> PriceRange | None:
    listed = [o for o in catalog.offers if o.accelerator == device.name and o.term == "on-demand"]
    if not listed:
        return None
    least = ODD * usual_prices(catalog)[device.name, "on-demand"]
    usual = [offer for offer in listed if offer.usd_per_device_hour >= least]
    prices = [offer.usd_per_device_hour for offer in usual]
    by_provider: dict[str, float] = {}
    for offer, price in zip(usual, prices, strict=True):
        by_provider[offer.provider] = min(price, by_provider.get(offer.provider, price))
    lower, middle, upper = (float(v) for v in np.percentile([*by_provider.values()], (25, 50, 75)))
    dates = sorted(offer.as_of for offer in usual)
    return PriceRange(
        low=min(prices),
        high=max(prices),
        quartiles=(lower, middle, upper),
        cheapest=min(usual, key=lambda offer: offer.usd_per_device_hour).name,
        most_expensive=max(usual, key=lambda offer: offer.usd_per_device_hour).name,
        offers=len(usual),
        odd=len(listed) - len(usual),
        oldest=dates[0],
        newest=dates[-1],
        stale=sum(is_stale(offer.as_of, today) for offer in usual),
    )


def _need(device: Accelerator, gpus: int, planner: Planner) -> NetworkNeed:
    shape = _shape(device, planner.catalog)
    mfus = []
    for rate in _RATES:
        best = planner.plan(replace(shape, nic_bytes_per_second=rate), gpus)
        if best is not None and best.prediction.ledger.mfu is not None:
            mfus.append((rate, best.prediction.ledger.mfu))
    most = max((mfu for _, mfu in mfus), default=math.inf)
    enough = next((rate for rate, mfu in mfus if mfu >= KEPT * most), None)
    return NetworkNeed(gpus=gpus, bytes_per_second=enough, mfus=tuple(mfus))
