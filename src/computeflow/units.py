"""Quantities at the edge: text with a unit in, text with a unit out.

Inside ComputeFlow every number is a plain SI float whose name says its unit (`step_seconds`,
`hbm_bytes`, `link_bytes_per_second`, `usd_per_hour`). Tera is 1e12; GiB is 2**30 and GB is 1e9.
`parse` reads what people write ("80GiB", "400 Gb/s", "$2.49/h"), `format_si` writes what they read.
"""

from __future__ import annotations

import math
import re

from computeflow.errors import InputError, UnknownNameError
from computeflow.files.limits import DIGITS

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
WEEK_SECONDS = 7 * DAY_SECONDS
YEAR_SECONDS = 365 * DAY_SECONDS
_CENT, _WHOLE_DOLLARS, _THOUSANDS = 0.01, 10.0, 10_000.0
"""From ten dollars on, cents are left out; from ten thousand on, three digits tell enough."""
KWH_JOULES = 3.6e6
MWH_JOULES = 3.6e9
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TIMES = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "minutes": 60.0,
    **dict.fromkeys(("h", "hr", "hour", "hours"), HOUR_SECONDS),
    **dict.fromkeys(("d", "day", "days"), DAY_SECONDS),
    **dict.fromkeys(("week", "weeks"), WEEK_SECONDS),
}


def _prefixed(units: dict[str, float], *, binary: bool = False) -> dict[str, float]:
    prefixes = _DECIMAL | (_BINARY if binary else {})
    return {p + u: scale * size for p, scale in prefixes.items() for u, size in units.items()}


_BYTES = _prefixed({"B": 1.0, "b": 0.125, "bit": 0.125}, binary=True)
_UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes_per_second": {f"{u}/s": v for u, v in _BYTES.items()}
    | {f"{u}ps": v for u, v in _BYTES.items() if not u.endswith("bit")},
    "flops": _prefixed({"FLOP": 1.0, "FLOPs": 1.0}),
    "flops_per_second": _prefixed({"FLOP/s": 1.0, "FLOPS": 1.0, "OP/s": 1.0}),
    "seconds": _TIMES,
    "watts": _prefixed({"W": 1.0}),
    "joules": _prefixed({"J": 1.0, "Wh": KWH_JOULES / 1e3}),
    "hertz": _prefixed({"Hz": 1.0}),
    "usd": {
        p + t: v
        for p, v in {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}.items()
        for t in ("", "USD", " USD")
    },
    "usd_per_hour": {"/h": 1.0, "/hr": 1.0, "/hour": 1.0, "USD/h": 1.0},
    "tokens": {p + t: v for p, v in (_DECIMAL | {"B": 1e9}).items() for t in ("", "tokens")},
}
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)?(?:\.\d*)?(?:[eE][-+]?\d+)?"
_QUANTITY = re.compile(rf"(\$?) ?({_NUMBER}) ?([^\d,. ].*)?")
"""With one blank between words at most: two runs of them side by side take time by the square."""


def parse(text: str, quantity: str) -> float:
    """Read `text` ("80GiB", "3.35 TB/s", "$2.49/h", "15T") as an SI number of `quantity`.

    A bare number is taken as SI. A unit that does not measure `quantity` is an error.
    """
    units = _UNITS.get(quantity)
    if units is None:
        raise UnknownNameError("quantity", quantity, _UNITS)
    dollar, number, unit = _split(text, quantity)
    if dollar and not quantity.startswith("usd"):
        raise InputError(f"{_short(text)!r} is money, not {quantity.replace('_', ' ')}")
    if unit and unit not in units:
        raise UnknownNameError(f"unit of {quantity.replace('_', ' ')}", unit, filter(None, units))
    value = float(number.replace(",", "").replace("_", "")) * (units[unit] if unit else 1.0)
    if not 0 <= value < math.inf:
        raise InputError(f"{_short(text)!r} is not a finite number from zero up")
    return value


def _split(text: str, quantity: str) -> tuple[str, str, str]:
    """The dollar sign, the number and the unit."""
    match = _QUANTITY.fullmatch(" ".join(text.split())) if len(text) <= DIGITS else None
    if not match or not any(letter.isdigit() for letter in match[2].lower().partition("e")[0]):
        raise InputError(
            f"{_short(text)!r} is not a number with a unit of {quantity.replace('_', ' ')} "
            "(1,234.5 has a comma between thousands and a point before decimals)"
        )
    dollar, number, unit = match.groups(default="")
    return dollar, number, unit.replace(" ", "")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def format_si(value: float | None, unit: str, digits: int = 3) -> str:
    """`format_si(989e12, "FLOP/s")` is `"989 TFLOP/s"`; None is `"-"`."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    exponent = min(max(math.floor(math.log10(abs(value)) / 3), -3), 6)
    scaled = value / 10.0 ** (3 * exponent)
    if float(f"{abs(scaled):.{digits}g}") >= 1000 and exponent < 6:
        scaled, exponent = scaled / 1000, exponent + 1
    prefix = ("n", "µ", "m", "", "k", "M", "G", "T", "P", "E")[exponent + 3]
    return f"{_plain(scaled, digits)} {prefix}{unit}".rstrip()


def format_count(count: float, noun: str, plural: str = "") -> str:
    """A number with its noun: "1 rank", "3 ranks", "2 copies"."""
    return f"{count:,.0f} {noun if round(count) == 1 else plural or noun + 's'}"


def format_share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def format_usd(usd: float | None) -> str:
    """Dollars as people say them: `"$0.25"`, `"$1,250"`, `"$580k"`, `"$1.27M"`; what is less than a
    cent is not nothing.
    """
    if usd is None:
        return "-"
    sign, size = ("-" if usd < 0 else ""), abs(usd)
    if 0 < size < _CENT / 2:
        return "< $0.01" if usd > 0 else "> -$0.01"
    if size < _WHOLE_DOLLARS - _CENT / 2:
        return f"{sign}${size:,.2f}"
    if float(f"{size:.3g}") < _THOUSANDS or math.isinf(size):
        return f"{sign}${size:,.0f}"
    return f"{sign}${format_si(size, '').replace(' ', '').replace('G', 'B')}"


def format_seconds(seconds: float) -> str:
    """Seconds as people say them: `"184 ms"`, `"12.5 s"`, `"3.1 h"`, `"54 d"`."""
    for size, unit in ((DAY_SECONDS, "d"), (HOUR_SECONDS, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{_plain(seconds / size, 3)} {unit}"
    return format_si(seconds, "s")


def _plain(value: float, digits: int) -> str:
    """`digits` significant digits, no exponent, no trailing zeros."""
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
