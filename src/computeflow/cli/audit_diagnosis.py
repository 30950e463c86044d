"""Findings of an audit, as data, tables and a report; baselines and prices."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.catalog import Catalog
from computeflow.catalog.files import read_text
from computeflow.diagnosis import Diagnosis, Expected, diagnose
from computeflow.diagnosis.diagnose import make_case
from computeflow.diagnosis.regression import regressions
from computeflow.errors import InputError, UnknownNameError
from computeflow.ledger import Finding, Gap, Ledger, ledger_from_data, ledger_to_data
from computeflow.telemetry.observed import Observed
from computeflow.telemetry.traces.job import TracedJob
from computeflow.views.findings import abstained_table, finding_tables
from computeflow.views.tables import Table

_NAME = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Dollars for a GPU and an hour, and where they come from."""

    usd: float
    source: str


def parse_price(text: str | None, catalog: Catalog, device: str | None) -> Priced | None:
    """A number, or an offer or provider: its cheapest on-demand price for one such device."""
    if text is None:
        return None
    try:
        usd = float(text)
    except ValueError:
        offers = [offer for offer in catalog.offers if offer.name == text or offer.provider == text]
        if not offers:
            names = {offer.provider for offer in catalog.offers}
            raise UnknownNameError("offer or provider", text, names) from None
        if device is None and len({offer.accelerator for offer in offers}) > 1:
            raise InputError(
                f"--price {text}: of which device? The trace names none; give --on or a number"
            ) from None
        mine = [offer for offer in offers if device is None or offer.accelerator == device]
        fixed = [offer for offer in mine if offer.term == "on-demand"] or mine
        if not fixed:
            others = ", ".join(sorted({offer.accelerator for offer in offers}))
            raise InputError(f"--price {text}: no price for {device}; it offers {others}") from None
        best = min(fixed, key=lambda offer: offer.usd_per_device_hour)
        return Priced(
            usd=best.usd_per_device_hour,
            source=f"{best.name}, {best.region}, {best.term}, as of {best.as_of}",
        )
    if not 0 < usd < 1e6:
        raise InputError(f"--price {text}: dollars for a GPU and an hour, above zero")
    return Priced(usd=usd, source="--price")


def diagnosed(
    traces: TracedJob, catalog: Catalog, observed: Sequence[Observed], expected: Expected | None,
    before: tuple[Sequence[Gap], str] | None,
) -> Diagnosis:  # fmt: skip
    """With regressions against an earlier recording, where one is given."""
    found = diagnose(traces, catalog, expected=expected, observed=observed)
    if before is None:
        return found
    lines, source = before
    grown = regressions(traces.job.ledger, lines, found.findings, source)
    findings = sorted((*found.findings, *grown), key=lambda finding: -finding.gpu_seconds)
    gain = (found.combined_gain or 0.0) + sum(finding.gpu_seconds for finding in grown)
    return replace(found, findings=tuple(findings), combined_gain=gain or None)


def diagnosis_data(found: Diagnosis, ledger: Ledger, price: Priced | None) -> dict[str, Any]:
    """What goes into the audit's JSON."""
    return {
        "findings": [finding_data(finding, ledger, price) for finding in found.findings],
        "abstained": [codec.encode(one) for one in found.abstained],
        "expected": None
        if found.expected is None
        else {
            "source": found.expected.source,
            "assumed": list(found.expected.assumed),
            "ledger": ledger_to_data(found.expected.ledger),
        },
        "expected_reason": found.expected_reason,
        "combined_gain_gpu_seconds": found.combined_gain,
        "diagnosis_notes": list(found.notes),
        "price": None if price is None else codec.encode(price),
    }


def finding_data(finding: Finding, ledger: Ledger, price: Priced | None) -> dict[str, Any]:
    """What happens once in a window has no price by the hour."""
    joules = ledger.joules
    lost = finding.gpu_seconds / ledger.wall_seconds
    share = finding.gpu_seconds / ledger.gpu_seconds
    return {
        **codec.encode(finding),
        "gpu_seconds": finding.gpu_seconds,
        "share": share,
        "usd_per_hour": lost * price.usd if price is not None and finding.steady else None,
        "joules": None if joules is None else joules * share,
        "source": "kineto",
    }


def diagnosis_tables(found: Diagnosis, ledger: Ledger, price: Priced | None) -> list[Table]:
    tables = finding_tables(found, ledger, None if price is None else price.usd)
    if price is not None and price.source != "--price" and found.findings:
        note = f"USD/h at {price.usd:.2f} a GPU-hour: {price.source}"
        tables[0] = replace(tables[0], notes=(*tables[0].notes, note))
    return [*tables, abstained_table(found)] if found.abstained else tables


def write_calibration(path: Path, traces: TracedJob, catalog: Catalog) -> None:
    from computeflow.diagnosis.calibrating import calibration_data

    data = calibration_data(make_case(traces, catalog))
    try:
        path.write_text(codec.to_json(data) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--calibrate {path}: {error.strerror or error}") from None


def baseline_path(name: str) -> Path:
    """One file for each job's name, in the user's state folder."""
    if not _NAME.fullmatch(name):
        raise InputError(f"--baseline {name}: letters, digits, dots and dashes, at most 100")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "computeflow" / "baselines" / f"{name}.json"


def read_baseline(path: Path) -> tuple[Ledger, int] | None:
    """The ledger that is kept, and of how many steps of all ranks."""
    if not path.exists():
        return None
    data = codec.from_json(read_text(path), str(path))
    if not isinstance(data, dict) or not isinstance(data.get("steps"), int) or data["steps"] < 1:
        raise InputError(f"{path}: no baseline of this program; keep one anew with --keep")
    return ledger_from_data(data.get("ledger"), str(path)), data["steps"]


def keep_baseline(path: Path, ledger: Ledger, steps: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            codec.to_json({"ledger": ledger_to_data(ledger), "steps": steps}) + "\n",
            encoding="utf-8",
        )
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
