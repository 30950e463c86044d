"""`computeflow probe`: what this machine really gives, against what it should.

Under torchrun or srun it probes every rank and compares the nodes.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from computeflow import codec
from computeflow.catalog import Accelerator, load_catalog
from computeflow.catalog.loading import read_text
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.errors import InputError, UnavailableError


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Fewer shapes, shorter: under a minute.")
@click.option(
    "--soak",
    "soak_seconds",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Keep the device busy so long and watch clocks, power and heat.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="Passes; with more than one every figure has a spread.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Training files: what this machine can read and decode of them.",
)
@click.option(
    "--tokens-per-second", type=float, metavar="N", help="What the plan needs from --data."
)
@click.option(
    "--storage",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where checkpoints would go. [default: here]",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option(
    "--accelerator",
    metavar="NAME",
    help="What the device is, if its driver's name is not in the catalog.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="An earlier probe's JSON: expect of this machine what that one gave.",
)
@click.option(
    "--slack",
    type=click.FloatRange(0.01, 0.9),
    default=0.25,
    show_default=True,
    help="How far from the earlier probe is still normal.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the figures for the predictor.",
)
@click.option("--accept", is_flag=True, help="Exit 3 and name the nodes if any is not as expected.")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Probe every node of a Ray cluster; auto: the one this machine is in.",
)
@click.option("--quiet", is_flag=True, help="No progress.")
@catalog_option
@output_option
def probe(
    quick: bool, soak_seconds: float, repeats: int, data: Path | None,
    tokens_per_second: float | None, storage: Path | None, device: str, accelerator: str | None,
    against: Path | None, slack: float, calibration: Path | None, accept: bool,
    ray_address: str | None, quiet: bool,
    files: tuple[str, ...], output: str,
) -> int:  # fmt: skip
    try:
        from computeflow.lab.probe.run import Options, pick_device
        from computeflow.lab.probe.run import probe as run_probe
    except ImportError as error:
        raise UnavailableError(f"probe needs torch: pip install torch ({error})") from None
    options = Options(
        quick=quick, soak_seconds=soak_seconds, repeats=repeats, data=data, device=device,
        needed_tokens_per_second=tokens_per_second, storage_folder=storage, slack=slack,
        baseline=_baseline(against) if against else None,
    )  # fmt: skip
    known = _accelerator(accelerator, pick_device(device), files)
    if ray_address:
        from computeflow.lab.probe.on_ray import probe_on_ray

        fleet = probe_on_ray(options, known, _progress(quiet), ray_address)
    else:
        fleet = run_probe(options, known, _progress(quiet))
    if os.environ.get("RANK", "0") != "0":
        return 0
    if calibration is not None:
        _write_calibration(calibration, fleet.probes[0], known.name if known else None)
    from computeflow.views.probes import probe_tables

    shown: dict[str, Any] = codec.encode(fleet)
    shown = {"schema": "computeflow.probe/1", **shown, "bad_nodes": fleet.bad_nodes}
    emit(output, shown, probe_tables(fleet))
    return 3 if accept and fleet.bad_nodes else 0


def _progress(quiet: bool) -> Any:
    first = os.environ.get("RANK", "0") == "0"
    return lambda text: None if quiet or not first else print(f"[probe] {text}", file=sys.stderr)


def _accelerator(name: str | None, device: Any, files: tuple[str, ...]) -> Accelerator | None:
    """The catalog's row of the device: as named, else by the driver's name; None for a CPU."""
    facts = load_catalog(files)
    if name:
        return facts.accelerators[name]
    if device.type != "cuda":
        return None
    import torch

    reported = torch.cuda.get_device_name(device)
    return facts.accelerators.get(reported)


def _baseline(path: Path) -> dict[str, float]:
    data = codec.from_json(read_text(path), str(path))
    try:
        if data["schema"] != "computeflow.probe/1":
            raise InputError(f"{path}: schema {data['schema']!r} is not a probe's")
        return {item["name"]: float(item["value"]) for item in data["probes"][0]["items"]}
    except (KeyError, TypeError, IndexError, ValueError):
        raise InputError(f"{path}: not the JSON of a probe (computeflow probe -o json)") from None


def _write_calibration(path: Path, found: Any, accelerator: str | None) -> None:
    from computeflow.lab.probe.calibration import calibration as calibrate

    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    try:
        path.write_text(json.dumps(calibrate(found, today, accelerator), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
