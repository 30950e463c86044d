"""The fields of catalog rows, kind by kind. Every row says where it comes from and as of when.

Numbers are SI; a peak is FLOP/s per device, dense and sparse apart; a link's bandwidth is bytes per
second in one direction. An unpublished field is None, never a guess. The checks below
catch the usual slips of a hand-written file: gigabytes where bytes are meant, a sparse peak in a
dense field, a row without its source.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from computeflow.catalog.config import short
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import check_name
from computeflow.units import YEAR_SECONDS

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8")

_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


def normalise(name: str) -> str:
    """Spelling without case, spaces and underscores: "H100 SXM" is "h100-sxm"."""
    return "-".join(name.casefold().replace("_", " ").replace("/", " / ").split()).replace(
        "-/-", "/"
    )


def check_date(what: str, text: str) -> None:
    """A day, a month or a year that is in the calendar."""
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        datetime.date.fromisoformat((text + "-01-01")[:10])
    except ValueError:
        raise InputError(
            f"{what} '{short(text)}' is not a date (2026-08-22, 2026-08 or 2026)"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """Fields that all rows share. `source` is a citation one can follow, `as_of` when it was true."""

    kind: ClassVar[str] = "row"
    name: str
    source: str
    as_of: str
    aliases: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.source.strip():
            raise InputError("a row needs a name and a source")
        check_name(self.name, self.kind)
        for alias in self.aliases:
            check_name(alias, f"alias of {self.name}")
        check_date("as_of", self.as_of)

    @property
    def key(self) -> str:
        """Key that two rows share if one replaces the other."""
        return normalise(self.name)

    def _check_names(self, *names: str) -> None:
        """Fields beside `name` that name something; they may be empty."""
        for name in names:
            if text := getattr(self, name):
                check_name(text, name)

    def _check_within(self, **limits: tuple[float, float]) -> None:
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(
                    f"{name} = {short(value)} is outside {low:g}..{high:g}: is the unit SI?"
                )


def _check_peaks(peaks: dict[str, float]) -> None:
    for precision, flops in peaks.items():
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", short(precision), PRECISIONS)
        if not 1e11 <= flops <= 1e18:
            raise InputError(f"{precision} peak {flops:g} FLOP/s: is the unit FLOP/s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(CatalogRow):
    """One device as the framework sees it (a TPU chip, a GPU, an MI250X of two dies)."""

    kind: ClassVar[str] = "accelerator"
    vendor: str
    launch_year: int
    dense_flops: dict[str, float] = field(default_factory=dict)
    """Empty where the vendor gives no dense peak; such a device is not comparable."""
    sparse_flops: dict[str, float] = field(default_factory=dict)
    clock_hertz: float | None = None
    """The clock at which the dense peak holds: peak = units x FLOPs per clock x this."""
    matmul_flops: dict[str, float] = field(default_factory=dict)
    """The best rate anyone measured for one large matmul, by precision; sources in `source`."""
    sustained_flops: dict[str, float] = field(default_factory=dict)
    """Rate at which a large matmul settles under the power limit, where we measured it."""
    hbm_bytes: float
    """Memory as sold: 80 GB is 80e9."""
    reported_bytes: float | None = None
    """Memory as the driver reports it, where known."""
    hbm_bytes_per_second: float
    tdp_watts: float | None = None
    """Power that the vendor's specification allows; else the limit the driver shows."""
    link: str | None = None
    """The scale-up link, a name of the fabrics table."""
    link_bytes_per_second: float | None = None
    domain: int = 1
    """How many devices the scale-up link joins."""
    nic_bytes_per_second: float | None = None
    """Typical scale-out bandwidth per device."""
    node: str | None = None
    """The node type taken when a user says only `name:count`."""
    training: bool = True
    """False: not a training target; listed, never planned on."""
    comparable: bool = True
    """False: its peak is not a dense peak in the sense of the others."""
    grade: Literal["A", "B", "C"] = "B"
    """A: vendor document. B: secondary page. C: not checked against a document."""

    def __post_init__(self) -> None:
        super(Accelerator, self).__post_init__()
        self._check_names("vendor", "link", "node")
        if not self.dense_flops and self.training and self.comparable:
            raise InputError("dense_flops is empty: a training device needs its dense peak")
        for peaks in (self.dense_flops, self.sparse_flops, self.matmul_flops, self.sustained_flops):
            _check_peaks(peaks)
        for precision, flops in self.sparse_flops.items():
            if precision in self.dense_flops and flops <= self.dense_flops[precision]:
                raise InputError(f"{precision}: the sparse peak is not above the dense one")
        for precision, flops in self.matmul_flops.items():
            if flops > self.dense_flops.get(precision, flops):
                raise InputError(f"{precision}: measured matmul rate above the dense peak")
        self._check_within(
            hbm_bytes=(1e8, 1e14),
            reported_bytes=(1e8, 1e14),
            hbm_bytes_per_second=(1e10, 1e17),
            tdp_watts=(20, 1e5),
            clock_hertz=(1e8, 1e10),
            link_bytes_per_second=(1e8, 1e14),
            nic_bytes_per_second=(1e8, 1e13),
            domain=(1, 1e5),
            launch_year=(2010, 2100),
        )

    @property
    def announced(self) -> bool:
        """Whether it is not sold yet: the figures are promises."""
        return self.note.startswith("announced")

    def peak_flops(self, precision: str) -> float:
        """Dense peak of `precision`; asking for one the device lacks is an error."""
        peak = self.dense_flops.get(precision)
        if peak is None:
            raise UnknownNameError(f"precision of {self.name}", precision, self.dense_flops)
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType(CatalogRow):
    """A machine one rents or racks: accelerators, scale-up domain, NICs, host, power."""

    kind: ClassVar[str] = "node"
    accelerator: str
    count: int
    link: str | None = None
    link_bytes_per_second: float | None = None
    """Speed per accelerator, one direction."""
    switched: bool = True
    """True: any pair gets the full link (NVSwitch). False: mesh or torus of point-to-point links."""
    domain: int | None = None
    """Accelerators in the scale-up domain; more than `count` when it spans nodes."""
    nics: int | None = None
    nic_bytes_per_second: float | None = None
    """Speed of one NIC, one direction."""
    network: str | None = None
    """The scale-out port, a name of the fabrics table."""
    pcie: str | None = None
    host_cpu: str = ""
    host_cores: int | None = None
    host_bytes: float | None = None
    rated_watts: float | None = None
    measured_watts: float | None = None
    """Mean draw under heavy training, where measured."""
    rack_units: float | None = None
    mass_kg: float | None = None

    def __post_init__(self) -> None:
        super(NodeType, self).__post_init__()
        self._check_names("accelerator", "link", "network", "pcie")
        self._check_within(
            count=(1, 1e5),
            link_bytes_per_second=(1e8, 1e14),
            nic_bytes_per_second=(1e8, 1e13),
            host_bytes=(1e9, 1e15),
            rated_watts=(100, 1e6),
            measured_watts=(100, 1e6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(CatalogRow):
    """A link, or a network made of links."""

    kind: ClassVar[str] = "fabric"
    scope: Literal["scale-up", "host", "scale-out", "network"]
    bytes_per_second: float
    """Speed in one direction; `per` says of what."""
    per: str
    """"device", "port", "lane group", "chip"."""
    latency_seconds: float | None = None
    topology: str = ""
    """fat-tree, rail-optimised, torus-2d, torus-3d, mesh, dragonfly."""
    tiers: int | None = None
    oversubscription: float | None = None
    """Downlink over uplink bandwidth at the first tier: 1 is non-blocking."""
    rails: int | None = None

    def __post_init__(self) -> None:
        super(Fabric, self).__post_init__()
        self._check_within(
            bytes_per_second=(1e8, 1e15), latency_seconds=(1e-9, 1e-1), oversubscription=(1, 64)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCollective(CatalogRow):
    """A published measurement of a collective: bus bandwidth (nccl-tests convention) or time."""

    kind: ClassVar[str] = "collective"
    operation: str
    accelerator: str
    ranks: int
    nodes: int
    fabric: str
    payload_bytes: float | None = None
    bus_bytes_per_second: float | None = None
    seconds: float | None = None
    alpha_seconds: float | None = None
    """Latency term of a fit over sizes, where the source gives a sweep."""

    def __post_init__(self) -> None:
        super(PublishedCollective, self).__post_init__()
        self._check_within(payload_bytes=(1, 1e13), bus_bytes_per_second=(1e6, 1e14))


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(CatalogRow):
    kind: ClassVar[str] = "storage"
    scope: Literal["node", "cluster", "region"]
    """Whose bandwidth it is: one node's disk, one shared system, an object store."""
    read_bytes_per_second: float | None = None
    write_bytes_per_second: float | None = None
    per: str
    """"drive", "node", "client", "connection", "system", "TiB provisioned"."""
    latency_seconds: float | None = None

    def __post_init__(self) -> None:
        super(Storage, self).__post_init__()
        if self.read_bytes_per_second is None and self.write_bytes_per_second is None:
            raise InputError("a storage row needs a read or a write bandwidth")
        self._check_within(
            read_bytes_per_second=(1e6, 1e14),
            write_bytes_per_second=(1e6, 1e14),
            latency_seconds=(1e-7, 10),
        )


TERMS = ("on-demand", "spot", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(CatalogRow):
    """One price: an instance of a provider in a region, on one term. `name` is provider/instance."""

    kind: ClassVar[str] = "offer"
    provider: str
    instance: str
    accelerator: str
    count: int
    region: str
    term: Literal["on-demand", "spot", "reserved", "owned"]
    """`owned`: the owner's cost, on no price list."""
    usd_per_hour: float
    """Price of the whole instance."""
    commitment: str = ""
    """Length of a `reserved` term ("1y", "3y", "unstated")."""

    def __post_init__(self) -> None:
        super(Offer, self).__post_init__()
        self._check_names("provider", "instance", "accelerator", "region", "commitment")
        self._check_within(count=(1, 1e5), usd_per_hour=(1e-3, 1e6))

    @property
    def key(self) -> str:
        parts = (self.name, self.accelerator, str(self.count), self.region, self.term)
        return "\n".join(map(normalise, (*parts, self.commitment)))

    @property
    def usd_per_device_hour(self) -> float:
        return self.usd_per_hour / self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(CatalogRow):
    """A seller: how one reaches the machines and what joins them."""

    kind: ClassVar[str] = "provider"
    access: Literal["virtual machine", "bare metal", "container", "marketplace", "reseller"]
    network: str
    """The scale-out network of its training instances, as it says so itself."""
    orchestration: str = ""
    regions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UptimeTier(CatalogRow):
    """An Uptime tier, with the availability that the industry attaches to it."""

    kind: ClassVar[str] = "tier"
    availability: float
    redundancy: str
    concurrently_maintainable: bool
    fault_tolerant: bool

    def __post_init__(self) -> None:
        super(UptimeTier, self).__post_init__()
        self._check_within(availability=(0.9, 1.0))

    @property
    def downtime_seconds_per_year(self) -> float:
        return (1 - self.availability) * YEAR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling(CatalogRow):
    kind: ClassVar[str] = "cooling"
    pue_low: float
    pue_high: float
    rack_watts: float | None = None
    """The densest rack it practically serves."""

    def __post_init__(self) -> None:
        super(Cooling, self).__post_init__()
        self._check_within(pue_low=(1.0, 3.0), pue_high=(self.pue_low, 3.0), rack_watts=(1e3, 2e6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility(CatalogRow):
    """A site or an operator's fleet, with the PUE that it reports for a year."""

    kind: ClassVar[str] = "facility"
    operator: str
    pue: float

    def __post_init__(self) -> None:
        super(Facility, self).__post_init__()
        self._check_within(pue=(1.0, 3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(CatalogRow):
    """Electricity of a region: what a kilowatt-hour costs and emits (location-based)."""

    kind: ClassVar[str] = "grid"
    scope: Literal["us_state", "country", "cloud_region", "bidding_zone", "world"]
    usd_per_kwh: float | None = None
    price_as_of: str = ""
    grams_co2e_per_kwh: float | None = None
    carbon_as_of: str = ""

    def __post_init__(self) -> None:
        super(Grid, self).__post_init__()
        self._check_within(usd_per_kwh=(0.001, 2), grams_co2e_per_kwh=(0, 2000))
