"""Sites, terms of providers, prices by the hour."""

from __future__ import annotations

from pathlib import Path

from benchmarks.readers.calling import EXAMPLES, PACKAGED, facts, text_of
from benchmarks.readers.reader import Reader, csv_shapes, records, toml_shapes
from computeflow.comparison.own_sites import own_offerings
from computeflow.comparison.providers import load_terms
from computeflow.comparison.windows import find_starts, read_hours
from computeflow.simulation.site_scenarios import load_sites


def _terms(content: bytes, folder: Path) -> object:
    return load_terms(
        text_of(content, folder), "terms.toml", providers=[p.name for p in facts().providers]
    )


def _own_sites(content: bytes, folder: Path) -> object:
    return own_offerings(text_of(content, folder), "sites.toml", facts())


def _two_sites(content: bytes, folder: Path) -> object:
    return load_sites(text_of(content, folder))


def _hours(content: bytes, folder: Path) -> object:
    hours = read_hours(text_of(content, folder), "hours.csv")
    return [find_starts(hours, seconds, "hours.csv") for seconds in (5.0, 90_000.0)]


def _network(n: int) -> bytes:
    return (
        b'[[network]]\nname = "n%d"\nprovider = "aws"\ninstances = ["p%d*"]\nsource = "us"\n'
        b'as_of = "2026"\ngigabits_per_device = 400\n' % (n, n)
    )


def _site(n: int) -> bytes:
    return (
        b'[[site]]\nname = "hall-%d"\naccelerator = "h100-sxm"\nusd_per_gpu_hour = 1.9\n'
        b'tier = "tier-2"\ngrid = "us-texas"\nmost_gpus = 512\nsource = "us"\nas_of = "2026-11"\n'
        % n
    )


def readers() -> list[Reader]:
    hourly = b"hour,usd_per_kwh,grams_per_kwh"
    sites = (EXAMPLES / "sites.toml").read_bytes()
    two = (PACKAGED / "simulation" / "data" / "sites.toml").read_bytes()
    story = two[:800].rpartition(b"\n")[0] + b"\n"
    terms = (PACKAGED / "comparison" / "data" / "providers.toml").read_bytes()[:3000]
    return [
        Reader(
            name="terms-toml",
            read=_terms,
            shapes={
                "natural": records(_network),
                **toml_shapes(),
            },
            recorded=lambda: [terms.rpartition(b"\n[[")[0]],
        ),
        Reader(
            name="own-sites-toml",
            read=_own_sites,
            shapes={"natural": records(_site), **toml_shapes(sites)},
            recorded=lambda: [sites],
        ),
        Reader(
            name="two-sites-toml",
            read=_two_sites,
            shapes={
                "natural": records(lambda n: b"# line %d" % n, two, b"\n"),
                **toml_shapes(story),
            },
            recorded=lambda: [two],
        ),
        Reader(
            name="hours-csv",
            read=_hours,
            shapes={
                "natural": records(lambda n: b"%d,0.08,300" % n, hourly + b"\n", b"\n"),
                **csv_shapes(hourly, b"0,0.1,200"),
            },
        ),
    ]
