"""The hardware part of the catalog: every row loads, names resolve, peaks agree with arithmetic."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from computeflow.catalog.loading import Catalog, CatalogTable, normalise
from computeflow.catalog.rows import (
    Accelerator,
    CatalogRow,
    Fabric,
    NodeType,
    PublishedCollective,
    Storage,
)
from computeflow.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CATALOG = Catalog()
KINDS: tuple[type[CatalogRow], ...] = (Accelerator, NodeType, Fabric, PublishedCollective, Storage)
REQUIRED = (
    "a100-40-sxm", "a100-80-sxm", "a100-40-pcie", "a100-80-pcie", "h100-sxm", "h100-pcie",
    "h100-nvl", "h800-sxm", "h20", "h200-sxm", "gh200", "b100-sxm", "b200-sxm", "b300-sxm",
    "gb200", "gb300", "l40s", "rtx-4090", "rtx-5090", "mi250x", "mi300x", "mi325x", "mi350x",
    "mi355x", "gaudi2", "gaudi3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7",
    "trainium1", "trainium2", "trainium3", "groq-lpu", "cerebras-cs3", "h100-sxm-96g-500w",
    "trn1-neuroncore",
)  # fmt: skip
PUBLISHED_RUNS = {  # how the published training runs spell their accelerator
    "h100-sxm-80g": "h100-sxm", "a100-80g": "a100-80-sxm", "a100": "a100-80-sxm",
    "gb200": "gb200", "a100-40g": "a100-40-sxm", "h100-sxm-96g-500w": "h100-sxm-96g-500w",
    "gb300": "gb300", "trn1-neuroncore": "trn1-neuroncore", "b200": "b200-sxm",
    "tpu-v5e": "tpu-v5e", "b300": "b300-sxm", "tpu-v5p": "tpu-v5p", "tpu-v4": "tpu-v4",
    "h200": "h200-sxm",
}  # fmt: skip
PRICE_LISTS = {
    "A100-40": "a100-40-sxm", "H100-80": "h100-sxm", "A100-80-PCIe": "a100-80-pcie",
    "H100-94-NVL": "h100-nvl", "RTX5090": "rtx-5090", "TPUv6e": "tpu-v6e",
    "tpu-v5litepod": "tpu-v5e", "Trainium": "trainium1", "A100-80GB": "a100-80-sxm",
    "H100-MEGA": "h100-sxm", "GAUDI2": "gaudi2", "L40S": "l40s",
}  # fmt: skip
DRIVERS = {
    "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200-sxm", "NVIDIA A100-SXM4-80GB": "a100-80-sxm",
    "NVIDIA A100-SXM4-40GB": "a100-40-sxm", "NVIDIA A100 80GB PCIe": "a100-80-pcie",
    "NVIDIA B200": "b200-sxm", "NVIDIA B300 SXM6 AC": "b300-sxm", "NVIDIA GB200": "gb200",
    "AMD Instinct MI300X": "mi300x", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "TPU v5 lite": "tpu-v5e",
}  # fmt: skip
IN_TALK = {"groq": "groq-lpu", "cerebras": "cerebras-cs3", "mi350": "mi350x", "MI355": "mi355x"}
# matrix units of the whole device, multiply-adds of one unit per clock (dense BF16)
MATRIX_UNITS = {
    "a100-80-sxm": (432, 256), "h100-sxm": (528, 512), "h100-pcie": (456, 512),
    "h100-nvl": (528, 512), "b200-sxm": (592, 1024), "gb200": (592, 1024), "l40s": (568, 128),
    "rtx-4090": (512, 64), "rtx-5090": (680, 64), "mi250x": (880, 128), "mi300x": (1216, 256),
    "mi355x": (1024, 512), "gaudi2": (2, 256 * 256), "gaudi3": (8, 256 * 256),
    "tpu-v4": (8, 128 * 128), "tpu-v5e": (4, 128 * 128), "tpu-v5p": (8, 128 * 128),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_row_says_where_it_comes_from_and_as_of_when(kind: type[CatalogRow]) -> None:
    rows = CATALOG.rows(kind)
    assert len(rows) > 10
    for row in rows:
        assert len(row.source) > 10, row.name
        assert row.as_of, row.name
        assert row.name == normalise(row.name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_no_name_or_alias_belongs_to_two_rows(kind: type[CatalogRow]) -> None:
    spellings = Counter(
        spelling
        for row in CATALOG.rows(kind)
        for spelling in {normalise(name) for name in (row.name, *row.aliases)}
    )
    assert [spelling for spelling, times in spellings.items() if times > 1] == []


@pytest.mark.parametrize("name", REQUIRED)
def test_the_accelerators_people_train_on_are_there(name: str) -> None:
    assert CATALOG.accelerators[name].name == name


@pytest.mark.parametrize(
    ("spelling", "name"), (PUBLISHED_RUNS | PRICE_LISTS | DRIVERS | IN_TALK).items()
)
def test_other_peoples_spellings_find_the_row(spelling: str, name: str) -> None:
    assert CATALOG.accelerators[spelling].name == name


@pytest.mark.shared
def test_every_spelling_in_the_public_data_finds_a_row(data_folder: Path) -> None:
    wanted = {
        *_column(data_folder / "throughput.csv", "gpu"),
        *_column(data_folder / "throughput_single_node.csv.gz", "gpu"),
        *_column(data_folder / "throughput_layout_sweep.csv.gz", "gpu"),
        *_column(data_folder / "facts" / "prices.csv", "accelerator"),
        *_column(data_folder / "facts" / "accelerators.csv", "name"),
    }
    assert sorted(name for name in wanted if name not in CATALOG.accelerators) == []


def _column(path: Path, name: str) -> set[str]:
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    return {row[name] for row in csv.DictReader(text.splitlines())}


def test_a_misspelled_accelerator_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownNameError) as refused:
        CATALOG.accelerators["h100-smx"]
    assert "h100-sxm" in refused.value.near


def test_dense_and_sparse_peaks_are_different_fields() -> None:
    h100 = CATALOG.accelerators["h100-sxm"]
    assert (h100.peak_flops("bf16"), h100.sparse_flops["bf16"]) == (989e12, 1979e12)
    assert (h100.peak_flops("fp8"), h100.sparse_flops["fp8"]) == (1979e12, 3958e12)


def test_a_precision_the_device_lacks_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="precision of a100-80-sxm"):
        CATALOG.accelerators["a100-80-sxm"].peak_flops("fp8")


@pytest.mark.parametrize(("name", "units"), MATRIX_UNITS.items())
def test_the_dense_peak_is_units_times_clock(name: str, units: tuple[int, int]) -> None:
    row = CATALOG.accelerators[name]
    count, multiply_adds = units
    assert row.clock_hertz is not None
    assert row.peak_flops("bf16") == pytest.approx(
        count * multiply_adds * 2 * row.clock_hertz, rel=0.008
    )


def test_training_uses_the_fp32_accumulating_rate_of_geforce() -> None:
    assert CATALOG.accelerators["rtx-4090"].peak_flops("fp16") == 165.2e12


def test_the_driver_reports_about_what_is_sold() -> None:
    for row in CATALOG.accelerators:
        if row.reported_bytes is not None:
            assert 0.99 < row.reported_bytes / row.hbm_bytes < 1.08, row.name


def test_what_does_not_train_or_compare_says_so() -> None:
    assert not CATALOG.accelerators["groq-lpu"].training
    cerebras = CATALOG.accelerators["cerebras-cs3"]
    assert cerebras.training
    assert not cerebras.comparable
    assert not cerebras.dense_flops  # the vendor's 125 PF may be sparse: in the note only
    assert "125 petaflops" in cerebras.note


def test_announced_parts_are_marked() -> None:
    announced = {row.name for row in CATALOG.accelerators if row.announced}
    assert {"rubin-sxm", "mi455x", "ascend-950dt"} <= announced
    assert "h100-sxm" not in announced


def test_a_training_device_without_a_dense_peak_is_refused() -> None:
    facts = {"name": "x", "source": "x", "as_of": "2026", "vendor": "x", "launch_year": 2024}
    with pytest.raises(InputError, match="needs its dense peak"):
        Accelerator(**facts, hbm_bytes=8e10, hbm_bytes_per_second=3e12)  # type: ignore[arg-type]


def test_tdp_is_the_specifications_and_the_drivers_limit_where_there_is_none() -> None:
    mi250x, h20 = CATALOG.accelerators["mi250x"], CATALOG.accelerators["h20"]
    assert (mi250x.tdp_watts, h20.tdp_watts) == (500, 500)
    assert "500 W TDP" in mi250x.source
    assert "500 W (taken)" in h20.note


def test_a_neuroncore_is_half_a_trainium() -> None:
    chip, core = CATALOG.accelerators["trainium1"], CATALOG.accelerators["trn1-neuroncore"]
    assert core.peak_flops("bf16") * 2 == chip.peak_flops("bf16")
    assert core.hbm_bytes * 2 == chip.hbm_bytes


def test_a_power_limited_h100_keeps_the_peak_it_was_sold_with() -> None:
    limited, h100 = CATALOG.accelerators["h100-sxm-96g-500w"], CATALOG.accelerators["h100-sxm"]
    assert limited.dense_flops == h100.dense_flops
    assert (limited.tdp_watts, limited.hbm_bytes) == (500, 96e9)


def test_names_that_rows_give_each_other_resolve() -> None:
    for accelerator in CATALOG.accelerators:
        _resolve(CATALOG.fabrics, accelerator.name, [accelerator.link])
        _resolve(CATALOG.nodes, accelerator.name, [accelerator.node])
    for node in CATALOG.nodes:
        _resolve(CATALOG.accelerators, node.name, [node.accelerator])
        _resolve(CATALOG.fabrics, node.name, [node.link, node.network, node.pcie])
    for collective in CATALOG.collectives:
        _resolve(CATALOG.accelerators, collective.name, [collective.accelerator])
        _resolve(CATALOG.fabrics, collective.name, [collective.fabric])


def _resolve(
    rows: CatalogTable[Accelerator] | CatalogTable[NodeType] | CatalogTable[Fabric],
    where: str,
    names: Iterable[str | None],
) -> None:
    for name in names:
        assert name is None or rows[name].name == name, where


def test_the_default_node_of_an_accelerator_holds_that_accelerator() -> None:
    for accelerator in CATALOG.accelerators:
        if accelerator.node is not None:
            assert CATALOG.nodes[accelerator.node].accelerator == accelerator.name


def test_the_scale_up_domain_of_a_device_is_that_of_its_default_node() -> None:
    for accelerator in CATALOG.accelerators:
        node = CATALOG.nodes.get(accelerator.node or "")
        if node is not None and node.link == accelerator.link and accelerator.domain > 1:
            assert accelerator.domain == node.domain, accelerator.name


def test_every_shipping_training_target_has_a_default_node() -> None:
    for accelerator in CATALOG.accelerators:
        if accelerator.training and accelerator.comparable and not accelerator.announced:
            assert accelerator.node, accelerator.name


def test_a_node_gives_its_accelerators_no_more_than_their_link() -> None:
    for node in CATALOG.nodes:
        link = CATALOG.accelerators[node.accelerator].link_bytes_per_second
        if node.link_bytes_per_second is not None and not node.name.startswith(("trn1n", "trn2u")):
            assert link is not None
            assert node.link_bytes_per_second <= link, node.name


def test_a_gb200_node_is_a_tray_inside_a_domain_of_72() -> None:
    node = CATALOG.nodes[CATALOG.accelerators["gb200"].node or ""]
    assert (node.count, node.domain) == (4, 72)
    assert 512 % node.count == 0


def test_one_direction_is_meant_everywhere() -> None:
    assert CATALOG.fabrics["nvlink4"].bytes_per_second == 450e9
    assert CATALOG.fabrics["infiniband-ndr"].bytes_per_second == 400e9 / 8
    dgx = CATALOG.nodes["dgx-h100"]
    assert dgx.nics is not None
    assert dgx.nic_bytes_per_second is not None
    assert dgx.nics * dgx.nic_bytes_per_second == 400e9


def test_network_templates_state_their_shape() -> None:
    networks = [row for row in CATALOG.fabrics if row.scope == "network"]
    assert all(row.topology for row in networks)
    assert CATALOG.fabrics["rail-optimised-ndr"].rails == 8
    assert CATALOG.fabrics["meta-roce-24k"].oversubscription == 7


def test_collective_times_agree_with_their_bus_bandwidth() -> None:
    for row in CATALOG.collectives:
        if None in (row.payload_bytes, row.bus_bytes_per_second, row.seconds):
            continue
        assert row.payload_bytes and row.bus_bytes_per_second and row.seconds
        factor = (row.ranks - 1) / row.ranks * (2 if row.operation == "all-reduce" else 1)
        seconds = row.payload_bytes * factor / row.bus_bytes_per_second
        assert row.seconds == pytest.approx(seconds, rel=0.01), row.name


def test_a_storage_row_without_any_bandwidth_is_refused() -> None:
    with pytest.raises(InputError, match="read or a write"):
        Storage(name="x", source="x", as_of="2026", scope="node", per="drive")
