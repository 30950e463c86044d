from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.errors import InputError
from computeflow.units import format_seconds, format_si, format_usd, parse

PACKAGE = Path(__file__).parents[1] / "src" / "computeflow"
SECONDS_AND_JOULES = {3600, 86_400, 604_800, 365 * 86_400, 366 * 86_400, 3.6e6, 3.6e9, 8760}


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("80GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("400Gb/s", "bytes_per_second", 50e9),
        ("400 Gbps", "bytes_per_second", 50e9),
        ("3.35 TB/s", "bytes_per_second", 3.35e12),
        ("989 TFLOP/s", "flops_per_second", 989e12),
        ("989TFLOPS", "flops_per_second", 989e12),
        ("$2.49/h", "usd_per_hour", 2.49),
        ("2.49", "usd_per_hour", 2.49),
        ("$1,250,000", "usd", 1.25e6),
        ("$1M", "usd", 1e6),
        ("800k", "usd", 8e5),
        ("1.5 M USD", "usd", 1.5e6),
        ("15T", "tokens", 15e12),
        ("15.6T tokens", "tokens", 15.6e12),
        ("54d", "seconds", 54 * 86400),
        ("700 W", "watts", 700),
        ("1.2 MWh", "joules", 4.32e9),
        ("1_000", "tokens", 1000),
        ("$1,234.5", "usd", 1234.5),
        (".5 TB", "bytes", 5e11),
        ("3 hours", "seconds", 10800),
    ],
)
def test_what_people_write_becomes_si(text: str, quantity: str, value: float) -> None:
    assert parse(text, quantity) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "quantity", "message"),
    [
        ("80GHz", "bytes", "unknown unit of bytes 'GHz'"),
        ("80 parsec", "seconds", "unknown unit"),
        ("$80", "bytes", "is money"),
        ("many", "bytes", "not a number"),
        ("", "bytes", "not a number"),
        ("1e999", "bytes", "not a finite number"),
        ("-3 GB", "bytes", "not a finite number from zero"),
        ("2,49", "usd_per_hour", "a comma between thousands"),
        ("1,5 TB", "bytes", "a comma between thousands"),
        ("1,2,3", "bytes", "a comma between thousands"),
        ("3 GB", "byte", "unknown quantity 'byte'; nearest: bytes"),
    ],
)
def test_a_wrong_unit_is_refused_in_words(text: str, quantity: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("$", r"\$")):
        parse(text, quantity)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(InputError):
        parse(text, "bytes")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (3.35e12, "B/s", "3.35 TB/s"),
        (999.9e9, "B", "1 TB"),
        (0, "W", "0 W"),
        (None, "W", "-"),
        (2.5e-6, "s", "2.5 µs"),
    ],
)
def test_numbers_are_written_with_a_prefix(value: float | None, unit: str, text: str) -> None:
    assert format_si(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.184, "184 ms"), (100, "100 s"), (11160, "3.1 h"), (4665600, "54 d")]
)
def test_times_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "-"),
        (0.0, "$0.00"),
        (0.0049, "< $0.01"),
        (0.0051, "$0.01"),
        (0.25, "$0.25"),
        (9.994, "$9.99"),
        (9.996, "$10"),
        (1_250.4, "$1,250"),
        (9_994.0, "$9,994"),
        (9_996.0, "$10k"),
        (579_541.0, "$580k"),
        (1.27e6, "$1.27M"),
        (2.5e9, "$2.5B"),
        (-0.25, "-$0.25"),
        (-1_250.4, "-$1,250"),
        (-47_300.0, "-$47.3k"),
    ],
)
def test_money_is_written_with_cents_where_they_count(usd: float | None, text: str) -> None:
    assert format_usd(usd) == text


@pytest.mark.parametrize(
    "path", sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "units.py"}), ids=lambda path: path.stem
)
def test_only_units_knows_the_seconds_of_an_hour_and_a_day(path: Path) -> None:
    numbers = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    assert not [n.lineno for n in numbers if n.value in SECONDS_AND_JOULES]
