"""Catalog rows as tables: lists with the main columns, one row with all its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from computeflow.catalog import Accelerator, CatalogRow, Model, Offer
from computeflow.catalog.models import Block
from computeflow.catalog.parameters import count_parameters
from computeflow.units import HOUR_SECONDS, format_si
from computeflow.views.tables import Table, columns

_UNITS = {
    "bytes_per_second": "B/s",
    "bytes": "B",
    "flops": "FLOP/s",
    "hertz": "Hz",
    "watts": "W",
    "seconds": "s",
}
_LABELS = {
    "alpha_seconds": "latency of the fit",
    "bus_bytes_per_second": "bus bandwidth",
    "bytes_per_second": "bandwidth",
    "clock_hertz": "clock of the peak",
    "comparable": "comparable peak",
    "count": "devices",
    "dense_flops": "dense peak",
    "domain": "scale-up devices",
    "grade": "grade of the source",
    "grams_co2e_per_kwh": "gCO2e per kWh",
    "hbm_bytes": "memory",
    "hbm_bytes_per_second": "memory bandwidth",
    "host_bytes": "host memory",
    "host_cpu": "host CPU",
    "launch_year": "launched",
    "link": "scale-up link",
    "link_bytes_per_second": "scale-up bandwidth",
    "mass_kg": "mass, kg",
    "matmul_flops": "best measured matmul",
    "nic_bytes_per_second": "NIC bandwidth",
    "nics": "NICs",
    "node": "usual node",
    "pcie": "PCIe",
    "pue": "PUE",
    "pue_high": "PUE, high",
    "pue_low": "PUE, low",
    "reported_bytes": "memory by the driver",
    "seconds": "time",
    "sparse_flops": "sparse peak",
    "sustained_flops": "sustained matmul",
    "switched": "switched link",
    "tdp_watts": "TDP",
    "training": "for training",
    "usd_per_hour": "$ per hour",
    "usd_per_kwh": "$ per kWh",
}
"""What fields are called where their names without the unit would not tell."""
_DIMENSIONS = {
    "_bytes_per_second": " bandwidth",
    "_bytes": "",
    "_flops": "",
    "_hertz": "",
    "_watts": " power",
    "_seconds": "",
}

Cell = Callable[[Any], str]


def _si(field: str, unit: str) -> Cell:
    return lambda row: format_si(getattr(row, field), unit)


def _in(field: str, scale: float, digits: int = 0) -> Cell:
    """A column whose header already carries the unit."""

    def cell(row: Any) -> str:
        value = getattr(row, field)
        return "-" if value is None else f"{value / scale:,.{digits}f}"

    return cell


def _peak(precision: str) -> Cell:
    def cell(row: Accelerator) -> str:
        peak = row.dense_flops.get(precision)
        return "-" if peak is None else f"{peak / 1e12:,.0f}"

    return cell


def _text(field: str) -> Cell:
    return lambda row: "-" if getattr(row, field) in (None, "") else str(getattr(row, field))


def _billions(which: str) -> Cell:
    def cell(row: Model) -> str:
        if not row.blocks:
            return "-"
        return f"{getattr(count_parameters(row), which) / 1e9:,.2f}"

    return cell


def _marked_name(row: Accelerator) -> str:
    unlike = row.announced or not (row.training and row.comparable)
    return f"{row.name} *" if unlike else row.name


_LISTS: dict[str, list[tuple[str, Cell]]] = {
    "accelerator": [
        ("name", _marked_name), ("bf16 TF/s", _peak("bf16")), ("fp8 TF/s", _peak("fp8")),
        ("GB", _in("hbm_bytes", 1e9)), ("TB/s", _in("hbm_bytes_per_second", 1e12, 2)),
        ("W", _in("tdp_watts", 1)), ("link GB/s", _in("link_bytes_per_second", 1e9)),
        ("year", _text("launch_year")),
    ],
    "model": [
        ("name", _text("name")), ("family", _text("family")), ("total B", _billions("total")),
        ("active B", _billions("active")), ("layers", _text("layers")),
        ("hidden", _text("hidden")), ("vocab", _text("vocab")),
    ],
    "node": [
        ("name", _text("name")), ("accelerator", _text("accelerator")), ("count", _text("count")),
        ("link GB/s", _in("link_bytes_per_second", 1e9)), ("NICs", _text("nics")),
        ("NIC GB/s", _in("nic_bytes_per_second", 1e9, 1)), ("kW", _in("rated_watts", 1e3, 1)),
    ],
    "fabric": [
        ("name", _text("name")), ("scope", _text("scope")),
        ("GB/s", _in("bytes_per_second", 1e9, 1)), ("per", _text("per")),
        ("latency", _si("latency_seconds", "s")), ("topology", _text("topology")),
    ],
    "collective": [
        ("name", _text("name")), ("operation", _text("operation")), ("ranks", _text("ranks")),
        ("payload", _si("payload_bytes", "B")),
        ("bus GB/s", _in("bus_bytes_per_second", 1e9, 1)), ("time", _si("seconds", "s")),
    ],
    "storage": [
        ("name", _text("name")), ("scope", _text("scope")),
        ("read GB/s", _in("read_bytes_per_second", 1e9, 2)),
        ("write GB/s", _in("write_bytes_per_second", 1e9, 2)), ("per", _text("per")),
        ("latency", _si("latency_seconds", "s")),
    ],
    "offer": [
        ("$/GPU-h", _in("usd_per_device_hour", 1, 2)), ("term", _text("term")),
        ("accelerator", lambda r: f"{r.count}x {r.accelerator}"), ("offer", _text("name")),
        ("region", _text("region")), ("as of", _text("as_of")),
    ],
    "provider": [
        ("name", _text("name")), ("access", _text("access")), ("network", _text("network")),
        ("as of", _text("as_of")),
    ],
    "tier": [
        ("name", _text("name")), ("availability", lambda r: f"{100 * r.availability:.3f} %"),
        ("downtime h/y", _in("downtime_seconds_per_year", HOUR_SECONDS, 1)),
        ("redundancy", _text("redundancy")),
    ],
    "facility": [
        ("name", _text("name")), ("operator", _text("operator")), ("PUE", _in("pue", 1, 2)),
        ("as of", _text("as_of")),
    ],
    "cooling": [
        ("name", _text("name")), ("PUE low", _in("pue_low", 1, 2)),
        ("PUE high", _in("pue_high", 1, 2)), ("kW/rack", _in("rack_watts", 1e3)),
    ],
    "grid": [
        ("name", _text("name")), ("scope", _text("scope")), ("$/kWh", _in("usd_per_kwh", 1, 3)),
        ("price of", _text("price_as_of")), ("gCO2e/kWh", _in("grams_co2e_per_kwh", 1)),
        ("carbon of", _text("carbon_as_of")),
    ],
}  # fmt: skip
_WRAP = "name,offer,instance,accelerator,region,network,access,topology,redundancy,per"
_LEFT = frozenset(
    "name offer operator family accelerator scope per topology operation region term access "
    "network redundancy".split()
)


_SOURCES = "Sources: computeflow catalog NAME, or -o json."
_NOTES = {
    "accelerator": (
        "* not a training target, no dense peak to compare by, or announced: its row says which.",
        "Peaks are dense.",
    ),
}


def rows_table(rows: Sequence[CatalogRow], left_out: int = 0) -> Table:
    """Rows of one kind with their main columns."""
    if not rows:
        return Table(title="no rows", columns=columns("name"), rows=())
    hidden = [f"{left_out:,} more rows not shown: --all shows them."] if left_out else []
    return _listed(rows, left_out, [*hidden, *_NOTES.get(rows[0].kind, ()), _SOURCES])


def offer_table(offers: Sequence[Offer], also: Sequence[tuple[str, str, str]] = ()) -> Table:
    """The prices of one instance and their sources."""
    sources = dict.fromkeys(f"{o.source}, as of {o.as_of}" for o in offers)
    notes = dict.fromkeys(o.note for o in offers if o.note)
    return _listed(offers, 0, [*notes, f"Sources: {'; '.join(sources)}", *_also_notes(also)])


def _listed(rows: Sequence[CatalogRow], left_out: int, notes: Iterable[str]) -> Table:
    cells = _LISTS[rows[0].kind]
    headers = [header for header, _ in cells]
    return Table(
        title=f"{len(rows):,} of {len(rows) + left_out:,} rows: {rows[0].kind}",
        columns=columns(*headers, right=",".join(h for h in headers if h not in _LEFT), wrap=_WRAP),
        rows=tuple(tuple(cell(row) for _, cell in cells) for row in rows),
        notes=tuple(notes),
    )


def row_tables(row: CatalogRow, also: Sequence[tuple[str, str, str]] = ()) -> list[Table]:
    """All fields of one row in plain words, its source last; JSON has their names. `also`: kind,
    command and name of other rows of that name.
    """
    last = ("aliases", "note", "source", "as_of")
    skipped = {"name", "blocks", "prediction_blocks", *last}
    names = [field.name for field in fields(row) if field.name not in skipped]
    unusual = [name for name in (*names, *last) if getattr(row, name) != _default(row, name)]
    pairs = [(_label(name), _format_field(name, getattr(row, name))) for name in unusual]
    if isinstance(row, Model):
        pairs = [*_model_pairs(row), *pairs]
    return [
        Table(
            title=f"{row.kind} {row.name}",
            columns=columns("field", "value", wrap="value"),
            rows=tuple(pairs),
            notes=_also_notes(also),
        )
    ]


def _also_notes(also: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(
        f"also: {kind} {name} (computeflow catalog {group} {name})" for kind, group, name in also
    )


def _default(row: CatalogRow, name: str) -> Any:
    """The field's default: not shown."""
    known = row.__dataclass_fields__[name]
    return {} if known.default_factory is not MISSING else known.default


def _model_pairs(model: Model) -> list[tuple[str, str]]:
    if not model.blocks:
        return []
    count = count_parameters(model)
    pairs = [("parameters", f"{count.total:,}"), ("active", f"{count.active:,}")]
    pairs += [("layers", str(model.layers))]
    pairs += [("blocks", _block_text(block)) for block in model.blocks]
    pairs += [("prediction", _block_text(block)) for block in model.prediction_blocks]
    return pairs


def _block_text(block: Block) -> str:
    parts = [f"{block.count} x"]
    for name in ("attention", "latent", "compressed", "state_space", "dense", "experts"):
        part = getattr(block, name)
        if part is not None:
            inside = [
                f"{f.name}={getattr(part, f.name)}"
                for f in fields(part)
                if f.name != "gated" and getattr(part, f.name) not in (None, False, "none", 0)
            ]
            inside += ["not gated"] if getattr(part, "gated", True) is False else []
            parts.append(f"{name}({', '.join(inside)})")
    return " ".join(parts)


def _label(name: str) -> str:
    """A field in plain words; its value has the unit."""
    if name in _LABELS:
        return _LABELS[name]
    end = next((end for end in _DIMENSIONS if name.endswith(end)), "")
    return (name.removesuffix(end) + _DIMENSIONS.get(end, "")).replace("_", " ")


def _format_field(name: str, value: Any) -> str:
    """A field's value as text, in the unit that its name implies."""
    unit = _unit(name)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_si(v, unit, 4)}" for key, v in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if name == "availability":
        return f"{100 * value:.3f} %"
    if unit and isinstance(value, int | float):
        return format_si(value, unit, 4)
    return format(value, ",") if isinstance(value, float) else str(value)


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def overview_table(counts: Mapping[str, int], files: Sequence[Path]) -> Table:
    return Table(
        title="The catalog: every row has a source and a date",
        columns=columns("kind", "rows", right="rows"),
        rows=tuple((kind, f"{count:,}") for kind, count in counts.items()),
        notes=(
            "List them with `computeflow catalog KIND`; show one with `computeflow catalog NAME`.",
            *(f"with your {path}" for path in files),
        ),
    )


def import_table(
    target: str, count: int, left_out: Mapping[str, int], notes: Sequence[str] = ()
) -> Table:
    return Table(
        title=f"{count:,} {'price' if count == 1 else 'prices'} written to {target}",
        columns=columns("left out", "rows", right="rows", wrap="left out"),
        rows=tuple((reason, f"{number:,}") for reason, number in left_out.items()),
        notes=tuple(notes),
    )
