"""Catalogs, models, prices, measured steps, calibrations, ledgers."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

from benchmarks.readers.calling import PACKAGED, shown, written
from benchmarks.readers.reader import (
    DATA,
    ROOT,
    Reader,
    csv_shapes,
    files,
    json_shapes,
    records,
    toml_shapes,
)
from computeflow import answers
from computeflow.answers.catalogs import import_prices
from computeflow.answers.ledgers import show_ledger
from computeflow.answers.probes import _read_baseline
from computeflow.auditing.audit_report import read_expected
from computeflow.catalog import load_catalog
from computeflow.codec import to_json


def _catalog(content: bytes, folder: Path, name: str) -> object:
    path = written(content, folder, name)
    catalog = load_catalog([path])
    catalog.check_file(path)
    return list(catalog.accelerators), list(catalog.models)


_OFFER = b"name,provider,instance,accelerator,count,usd_per_hour,term,region,source,as_of"
_TOML = b"""\
[[accelerator]]
name = "mine"
like = "h100-sxm"
hbm_bytes = 9e10
source = "us"
as_of = "2026-01"
[[model]]
name = "tiny"
like = "llama-3.1-8b"
source = "us"
as_of = "2026-01"
"""


def _offer_row(n: int) -> bytes:
    return b"x%d,lambda,big,h100-sxm,8,24.0,on-demand,us-east,https://example.com,2026-01-01" % n


def _offer_table(n: int) -> bytes:
    return (
        b'[[offer]]\nname = "o%d"\nprovider = "lambda"\ninstance = "big"\naccelerator = "h100-sxm"\ncount = 8\n'
        b'usd_per_hour = 24.0\nterm = "on-demand"\nregion = "us"\nsource = "x"\nas_of = "2026-01-01"\n'
        % n
    )


def _config(content: bytes, folder: Path) -> object:
    path = written(content, folder, "config.json")
    return shown(answers.predict(str(path), on="h100-sxm:8", global_batch=8, seq_len=1024))


def _model_toml(content: bytes, folder: Path) -> object:
    path = written(content, folder, "model.toml")
    return shown(answers.predict(str(path), on="h100-sxm:8", global_batch=8, seq_len=1024))


def _prices(content: bytes, folder: Path, name: str, provider: str | None) -> object:

    path = written(content, folder, name)
    target = folder / "offers.csv"
    target.unlink(missing_ok=True)
    return shown(import_prices(path, provider=provider, as_of="2026-01-01", to=target))


def _cases(content: bytes, folder: Path) -> object:
    path = written(content, folder, "cases.csv")
    shown(answers.validate(cases=[path]))
    return shown(answers.calibrate(path))


def _calibration(content: bytes, folder: Path) -> object:
    path = written(content, folder, "calibration.json")
    return shown(
        answers.predict(
            "llama-3.1-8b", on="h200-sxm:8", global_batch=64, seq_len=2048, calibration=path
        )
    )


def _ledger(content: bytes, folder: Path) -> object:

    path = written(content, folder, "ledger.json")
    other = written(_real_ledgers()[0], folder, "other.json")
    read_expected(path)
    shown(show_ledger(path))
    return shown(show_ledger(path, expect=other, work_ratio=1.0))


def _probe_baseline(content: bytes, folder: Path) -> object:

    return _read_baseline(written(content, folder, "probe.json"))


@cache
def _real_ledgers() -> list[bytes]:
    """Ledgers of a prediction: alone, and inside of it."""
    data = answers.predict("llama-3.1-8b", on="h100-sxm:8", global_batch=64, seq_len=2048).to_dict()
    return [to_json(data["ledger"]).encode(), to_json({"ledger": data["ledger"]}).encode()]


def _many_causes(size: int) -> bytes:
    """Causes of many ranks that others waited for."""
    whole = json.loads(_real_ledgers()[0])
    entries = [
        {"account": "straggler", "gpu_seconds": 1.0, "cause": {"rank": rank, "account": "host"}}
        for rank in range(max(size // 80, 1))
    ]
    kept = {key: whole[key] for key in ("schema", "basis", "window")}
    return json.dumps(
        {**kept, "gpus": 1, "wall_seconds": len(entries), "entries": entries}
    ).encode()


def _small_calibration() -> list[bytes]:
    """The H200's calibration, with a few rows of each table."""
    whole = json.loads((ROOT / "benchmarks" / "data" / "h200" / "calibration.json").read_bytes())
    cut = {key: value[:3] if isinstance(value, list) else value for key, value in whole.items()}
    return [json.dumps(cut).encode()]


def _gemms(size: int) -> bytes:
    whole = json.loads((ROOT / "benchmarks" / "data" / "h200" / "calibration.json").read_bytes())
    tables = {key: value for key, value in whole.items() if isinstance(value, list) and value}
    key = max(tables, key=lambda name: len(tables[name]))
    each = len(json.dumps(tables[key])) / len(tables[key])
    rows = tables[key] * (int(size / each / len(tables[key])) + 1)
    return json.dumps({**whole, key: rows[: max(int(size / each), 3)]}).encode()


def readers() -> list[Reader]:
    return [*_catalogs(), *_prices_and_cases(), *_measured()]


def _catalogs() -> list[Reader]:
    model = b'[[model]]\nname = "tiny"\nlike = "llama-3.1-8b"\nsource = "us"\nas_of = "2026-01"\n'
    config = (DATA / "hf_configs" / "bloom-176b.json").read_bytes().rstrip().rstrip(b"}")
    return [
        Reader(
            name="catalog-toml",
            read=partial(_catalog, name="mine.toml"),
            shapes={"natural": records(_offer_table), **toml_shapes(_TOML)},
            recorded=lambda: [_TOML],
        ),
        Reader(
            name="catalog-csv",
            read=partial(_catalog, name="mine.csv"),
            shapes={
                "natural": records(_offer_row, _OFFER + b"\n", b"\n"),
                **csv_shapes(_OFFER, _offer_row(1)),
            },
        ),
        Reader(
            name="model-config",
            read=_config,
            shapes={
                "natural": records(lambda n: b'"extra_%d": %d' % (n, n), config + b",", b"}", b","),
                **json_shapes(config + b',"x":', b"}"),
            },
            recorded=files("hf_configs/*.json"),
        ),
        Reader(
            name="model-toml",
            read=_model_toml,
            shapes={
                "natural": records(lambda n: b"# line %d" % n, model, b"\n"),
                **toml_shapes(),
            },
            recorded=lambda: [model],
        ),
    ]


def _prices_and_cases() -> list[Reader]:
    own = b"Vendor,SKU,GPU,GPUs,Price,Region,Term,Contract,Spot Price"
    sky = (
        b"InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
        b"Region,AvailabilityZone"
    )
    cases = (PACKAGED / "prediction" / "cases.csv").read_bytes().split(b"\n")
    return [
        Reader(
            name="prices-own",
            read=partial(_prices, name="own.csv", provider=None),
            shapes={
                "natural": records(
                    lambda n: b"Example Cloud,big-%d,H100 SXM,8,$31.92,Oslo,,," % n,
                    own + b"\n",
                    b"\n",
                ),
                **csv_shapes(own, b"Example Cloud,big-8,H100 SXM,8,$31.92,Oslo,,,"),
            },
            recorded=files("prices/own.csv"),
        ),
        Reader(
            name="prices-skypilot",
            read=partial(_prices, name="aws.csv", provider="aws"),
            shapes={
                "natural": records(
                    lambda n: b"p4d.%d,A100,8.0,96.0,1152.0,,21.9,10.1,us-east-1,a%d" % (n, n),
                    sky + b"\n",
                    b"\n",
                ),
                **csv_shapes(sky, b"p4d,A100,8.0,96.0,1152.0,,21.9,10.1,us-east-1,a"),
            },
            recorded=files("prices/sky*.csv"),
        ),
        Reader(
            name="cases-csv",
            read=_cases,
            shapes={
                "natural": records(lambda n: cases[1 + n % 20], cases[0] + b"\n", b"\n"),
                **csv_shapes(cases[0], cases[1]),
            },
            recorded=lambda: [
                b"\n".join([cases[0], *cases[k : k + 3]]) + b"\n" for k in range(1, 40, 5)
            ],
        ),
    ]


def _measured() -> list[Reader]:
    ledger = b'{"schema":"computeflow.ledger/1","gpus":8,"wall_seconds":1.0,'
    probe = b'{"schema":"computeflow.probe/1","probes":'
    return [
        Reader(
            name="calibration",
            read=_calibration,
            shapes={
                "natural": _gemms,
                **json_shapes(b'{"schema":"computeflow.calibration/1","gemm":', b"}"),
            },
            recorded=_small_calibration,
        ),
        Reader(
            name="ledger",
            read=_ledger,
            shapes={
                "natural": _many_causes,
                **json_shapes(ledger + b'"entries":', b"}"),
            },
            recorded=_real_ledgers,
        ),
        Reader(
            name="probe-baseline",
            read=_probe_baseline,
            shapes={
                "natural": records(
                    lambda n: b'{"name":"x%d","value":1.5}' % n,
                    probe + b'[{"items":[',
                    b"]}]}",
                    b",",
                ),
                **json_shapes(probe, b"}"),
            },
        ),
    ]
