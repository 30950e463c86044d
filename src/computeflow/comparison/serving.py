"""Serving and chains of calls, coarsely: round trips by region, $ per token as a roofline's range.

A step of decoding reads the weights once and every sequence's keys and values, and multiplies every
token with the active weights; prompts are multiplied too. The roofline is the fullest batch that
memory holds; what servers reach of it is `REACHED`. Queues, prefix caches, speculative decoding and
uneven load are not in it, so the answer is a range, and a coarse one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from computeflow.catalog import Accelerator, Catalog, Model, Offer
from computeflow.catalog.config import short
from computeflow.catalog.models import Block
from computeflow.catalog.parameters import count_parameters
from computeflow.catalog.rows import normalise
from computeflow.comparison import DATA
from computeflow.economics import usd_of
from computeflow.errors import InputError, UnknownNameError, nearest
from computeflow.files.reading import read_text

REACHED = (0.17, 0.7)
"""Share of the roofline. Llama-2-70B in FP4, answers of 294 tokens (the benchmark's mean, not read
again) and prompts taken as long: 12,900 tokens/s per B200 (103,000 on 8, MLPerf Inference v5.1 offline,
NVIDIA) is 39 % of it, 12,000 per GB200 (865,000 on 72, Azure, unverified MLPerf v4.1) is 33 %. Half
and twice of that: other lengths, latency limits and software move it as far."""
_WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
_KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 1.0}
"""Bytes of a key or value: caches are kept in eight bits below 16-bit weights."""
USUAL_PRECISION = "fp8"
"""Precision in which models are served where none is requested."""
_FILLED = 0.9
"""Share of the device's memory that weights and caches may fill: vLLM's gpu_memory_utilization."""
_MIN_FREE = 0.2
"""Share of that memory that caches must have for a replica to be worth running."""
SOURCE = (
    "learn.microsoft.com/azure/networking/azure-network-latency: P95 over 30 days to 2026-07-30"
)
"""Source of the round trips: between Azure's East US, West US 2, South Central US, Brazil South, West
Europe, Sweden Central, Japan East, Southeast Asia, Central India, Australia East, UAE North and South
Africa North. Other backbones and the internet differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    accelerator: str
    precision: str
    """Precision of the weights: the requested one, or bf16 where the device has no peak in it."""
    replica_gpus: int
    batch: int
    tokens_per_second_per_gpu: tuple[float, float]
    """Output tokens, with prompts accounted for; what servers reach, low and high."""
    seconds_per_token: tuple[float, float]
    """Wait of one user for the next token at that batch, fast and slow."""
    usd_per_million: tuple[float, float] | None
    """At the cheapest and the most expensive on-demand price, for output tokens; None: no offer."""
    as_of: str
    """Date of the oldest price."""


def estimate_serving(
    model: Model,
    catalog: Catalog,
    devices: Iterable[str],
    *,
    prompt: int = 1024,
    output: int = 256,
    precision: str = USUAL_PRECISION,
    offers: Sequence[Offer] | None = None,
) -> list[ServingEstimate]:
    """By device, cheapest first; devices without the precision's peak serve in bf16.

    `offers`: whose prices count; None: all of the catalog.
    """
    if prompt < 0 or output < 1:
        raise InputError(f"prompts of {prompt} and answers of {output} tokens")
    if precision not in _WEIGHT_BYTES:
        raise UnknownNameError("precision", precision, _WEIGHT_BYTES)
    prices = catalog.offers if offers is None else offers
    estimates = [
        _estimate(model, catalog.accelerators[name], prices, prompt, output, precision)
        for name in devices
    ]
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        raise InputError(
            f"prompts of {prompt:,} and answers of {output:,} tokens: no device holds one of them"
        )
    return sorted(known, key=lambda s: s.usd_per_million[0] if s.usd_per_million else math.inf)


def _estimate(
    model: Model,
    device: Accelerator,
    offers: Iterable[Offer],
    prompt: int,
    output: int,
    precision: str,
) -> ServingEstimate | None:
    used = precision if precision in device.dense_flops else "bf16"
    room = _FILLED * device.hbm_bytes
    weights = count_parameters(model).total * _WEIGHT_BYTES[used]
    gpus = 1 << max(math.ceil(math.log2(weights / (room * (1 - _MIN_FREE)))), 0)
    batch, seconds = roofline(model, device, gpus, prompt=prompt, output=output, precision=used)
    if batch < 1:
        return None
    low, high = (share * batch / seconds / gpus for share in REACHED)
    prices = [o for o in offers if o.accelerator == device.name and o.term == "on-demand"]
    cost = None
    if prices:
        per_hour = [offer.usd_per_device_hour for offer in prices]
        cost = (1e6 * usd_of(1 / high, min(per_hour)), 1e6 * usd_of(1 / low, max(per_hour)))
    return ServingEstimate(
        accelerator=device.name,
        precision=used,
        replica_gpus=gpus,
        batch=batch,
        tokens_per_second_per_gpu=(low, high),
        seconds_per_token=(seconds / REACHED[1], seconds / REACHED[0]),
        usd_per_million=cost,
        as_of=min((offer.as_of for offer in prices), default=""),
    )


def roofline(
    model: Model, device: Accelerator, gpus: int, *, prompt: int, output: int, precision: str
) -> tuple[int, float]:
    """The fullest batch and the seconds of one decoding step with it, its share of prompts included."""
    counted = count_parameters(model)
    weights = counted.total * _WEIGHT_BYTES[precision]
    cache_bytes = (prompt + output / 2) * kv_bytes_per_token(model, precision)
    free = gpus * _FILLED * device.hbm_bytes - weights
    batch = int(free / max(cache_bytes, 1.0)) if free > 0 else 0
    if batch < 1:
        return 0, math.inf
    read = min(weights, batch * counted.active * _WEIGHT_BYTES[precision])
    memory = (read + batch * cache_bytes) / (gpus * device.hbm_bytes_per_second)
    peak = gpus * device.peak_flops(precision)
    decode = batch * 2.0 * counted.active / peak
    prefill = batch * prompt / output * 2.0 * counted.active / peak
    return batch, max(memory, decode) + prefill


def kv_bytes_per_token(model: Model, precision: str) -> float:
    """Over all layers; sliding windows and compressed caches are counted whole, state spaces not."""
    return _KV_BYTES[precision] * sum(b.count * _cached(b) for b in model.blocks)


def _cached(block: Block) -> float:
    """Numbers that one token leaves in a block's cache."""
    if block.attention is not None:
        return 2.0 * block.attention.kv_heads * block.attention.head_dim
    if block.latent is not None:
        return float(block.latent.kv_rank + block.latent.rope_dim)
    if block.compressed is not None:
        return 2.0 * block.compressed.head_dim
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChain:
    """Calls from users in one region to a model in another."""

    users: str
    """Region whose round trips are taken for the users."""
    place: str
    round_trip_seconds: float
    network_seconds: float
    """Time of the whole chain: calls x hops x (round trip + on-ramp)."""


@cache
def round_trips() -> dict[frozenset[str], float]:
    rows = csv.DictReader(read_text(DATA / "round_trips.csv").splitlines())
    return {frozenset((row["from"], row["to"])): float(row["p95_ms"]) / 1e3 for row in rows}


def places() -> list[str]:
    return sorted({name for pair in round_trips() for name in pair})


@cache
def user_regions() -> dict[str, str]:
    """Where users may be said to be, and the region whose round trips are taken for them.

    Regions of the source mean themselves; a country or state means the one that lies nearest on the
    map, which a network need not follow.
    """
    rows = csv.DictReader(read_text(DATA / "user_regions.csv").splitlines())
    near = {name: row["region"] for row in rows for name in row["users"].split(";")}
    return {place: place for place in places()} | near


def chains(
    users: str, *, calls: int = 1, hops: int = 1, onramp_seconds: float = 0.0
) -> Sequence[CallChain]:
    """To every region, nearest first. Within the users' own no trip over the backbone is counted: what
    its own network takes is not in the source.
    """
    region = user_regions().get(normalise(users))
    if region is None:
        near = nearest(normalise(users), user_regions())
        listed = f"nearest: {', '.join(near)}; " if near else ""
        raise InputError(
            f"unknown region of users '{short(users)}'; {listed}choose one of {', '.join(places())}, "
            "or a country near one of them"
        )
    if calls < 1 or hops < 1 or not 0 <= onramp_seconds < math.inf:
        raise InputError("calls and hops from one up, an on-ramp of zero seconds or more")
    routes = [
        CallChain(
            users=region,
            place=next(iter(pair - {region})),
            round_trip_seconds=seconds,
            network_seconds=calls * hops * (seconds + onramp_seconds),
        )
        for pair, seconds in round_trips().items()
        if region in pair
    ]
    routes.append(
        CallChain(
            users=region,
            place=region,
            round_trip_seconds=0.0,
            network_seconds=calls * hops * onramp_seconds,
        )
    )
    return sorted(routes, key=lambda chain: chain.round_trip_seconds)
