"""`probe`: measured performance of this machine, against the expected one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import (
    CatalogFiles,
    File,
    NewFile,
    Quantity,
    open_catalog,
    read_quantity,
    this_day,
)
from computeflow.catalog import Accelerator, Catalog
from computeflow.errors import InputError, UnavailableError
from computeflow.files.names import shown
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.files.writing import check_absent, write_file
from computeflow.lab.probe.calibration import calibration as calibration_data
from computeflow.lab.probe.result import ProbedRanks
from computeflow.units import WEEK_SECONDS
from computeflow.views.probes import probe_headline, probe_tables
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from computeflow.lab.probe.run_probe import ProbeOptions

_MAX_SOAK_SECONDS = WEEK_SECONDS
"""A soak keeps a figure of every quarter second."""
_ADDRESS = re.compile(
    r"auto|(?:ray://)?(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]{2,64}\]):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProbeAnswer(Answer):
    fleet: ProbedRanks
    rank: int
    """This process's rank among those that a launcher started; all have the same fleet."""
    accept: bool

    def _data(self) -> dict[str, Any]:
        fleet: dict[str, Any] = codec.encode(self.fleet)
        return {"schema": "computeflow.probe/1", **fleet, "bad_nodes": self.fleet.bad_nodes}

    @property
    def headline(self) -> str:
        return probe_headline(self.fleet)

    def tables(self) -> list[Table]:
        return probe_tables(self.fleet)

    @property
    def exit_code(self) -> int:
        return 3 if self.accept and self.fleet.bad_nodes and self.prints else 0

    @property
    def prints(self) -> bool:
        return self.rank == 0


@checked
def probe(
    *,
    quick: bool = False,
    soak: Quantity = 0.0,
    passes: int = 1,
    data: File | None = None,
    tokens_per_second: Quantity | None = None,
    storage: File | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    accelerator: str | None = None,
    against: File | None = None,
    slack: float = 0.25,
    write_calibration: NewFile | None = None,
    force: bool = False,
    accept: bool = False,
    ray: str | None = None,
    catalog: CatalogFiles = (),
    progress: Callable[[str], None] | None = None,
) -> ProbeAnswer:
    """Measure this machine; under torchrun or srun measure every rank and compare the nodes.

    `against` is the JSON of an earlier probe; `ray` the address of a cluster whose nodes are probed.
    """
    if write_calibration is not None:
        check_absent(write_calibration, "--write-calibration", force=force)
    soak_seconds = read_quantity(soak, "seconds")
    if soak_seconds > _MAX_SOAK_SECONDS:
        raise InputError(f"--soak {soak_seconds:g} s: must be at most a week")
    if not 0 < slack < 1:
        raise InputError(f"--slack {slack:g}: must be between 0 and 1")
    if ray is not None:
        check_ray_address(ray)
    try:
        from computeflow.lab.probe.run_probe import ProbeOptions, pick_device
    except ImportError as error:
        raise UnavailableError(f"probe needs torch: pip install torch ({error})") from None
    options = ProbeOptions(
        quick=quick,
        soak_seconds=soak_seconds,
        repeats=passes,
        data=_path(data),
        device=device,
        storage_folder=_path(storage),
        slack=slack,
        needed_tokens_per_second=read_quantity(tokens_per_second, "tokens"),
        baseline=None if against is None else _read_baseline(Path(against)),
    )
    known = _find_accelerator(accelerator, pick_device(device), open_catalog(catalog))
    fleet = _probe_all(options, known, ray, progress or (lambda text: None))
    answer = ProbeAnswer(fleet=fleet, rank=_rank(), accept=accept)
    if write_calibration is not None and answer.prints:
        name = known.name if known else None
        figures = calibration_data(fleet.probes[0], this_day().isoformat(), name)
        text = json.dumps(figures, indent=1) + "\n"
        write_file(write_calibration, text, "--write-calibration", force=force)
    return answer


def check_ray_address(address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None or (match["port"] and not 0 < int(match["port"]) < 1 << 16):
        raise InputError(f"--ray '{shown(address)}': auto, host:port or ray://host:port")


def _probe_all(
    options: ProbeOptions,
    accelerator: Accelerator | None,
    ray: str | None,
    progress: Callable[[str], None],
) -> ProbedRanks:
    def say(text: str) -> None:
        if _rank() == 0:
            progress(text)

    if ray:
        from computeflow.lab.probe.on_ray import probe_on_ray

        return probe_on_ray(options, accelerator, say, ray)
    from computeflow.lab.probe.run_probe import probe as probe_ranks

    return probe_ranks(options, accelerator, say)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _path(file: File | None) -> Path | None:
    return None if file is None else Path(file)


def _find_accelerator(name: str | None, device: Any, catalog: Catalog) -> Accelerator | None:
    """The catalog's row of the device: the named one, else by the driver's name; None for a CPU."""
    from computeflow.lab.probe.run_probe import driver_name

    if name:
        return catalog.accelerators[name]
    reported = driver_name(device)
    return None if reported is None else catalog.accelerators.get(reported)


def _read_baseline(path: Path) -> dict[str, float]:
    data = parse_json(read_text(path), str(path))
    try:
        if data["schema"] != "computeflow.probe/1":
            raise InputError(
                f"{path}: schema '{shown(str(data['schema']))}' is not that of a probe"
            )
        return {item["name"]: float(item["value"]) for item in data["probes"][0]["items"]}
    except (KeyError, TypeError, IndexError, ValueError):
        raise InputError(f"{path}: not the JSON of a probe (computeflow probe -o json)") from None
