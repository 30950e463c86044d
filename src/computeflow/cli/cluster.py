"""`computeflow cluster`: a cluster file from what people have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from computeflow import codec
from computeflow.catalog import load_catalog
from computeflow.catalog.files import read_text
from computeflow.cli.completing import accelerator_names
from computeflow.cli.output import catalog_option, emit, output_option
from computeflow.cluster.topology import (
    KINDS,
    Problem,
    Shape,
    Topology,
    check,
    find_shape,
    merge,
    read_topology,
    to_cluster_file,
)
from computeflow.errors import InputError
from computeflow.views.tables import Table, columns

SCHEMA = "computeflow.topology/1"
_LIMIT = 60


@click.group(help="Which node is plugged in where.")
def cluster() -> None:
    pass


@cluster.command("import", short_help="Read topology files into one cluster file.")
@click.argument(
    "sources", nargs=-1, required=True, metavar="FILE...",
    type=click.Path(dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--accelerator", metavar="NAME", shell_complete=accelerator_names,
    help="What the nodes hold: a row of the catalog. A cluster file needs it.",
)  # fmt: skip
@click.option("--node", metavar="NAME", help="The nodes' type, where it is not the usual one.")
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N",
    help="In a node. [default: what a file says, else the node type]",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(list(KINDS)),
    help="What the files are. [default: told by their content]",
)  # fmt: skip
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The cluster file to write, for --on: a name that ends in .toml.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--check", "checking", is_flag=True, help="List contradictions; exit 3 if any.")
@catalog_option
@output_option
def import_files(
    sources: tuple[Path, ...], accelerator: str | None, node: str | None, devices: int | None,
    kind: str | None, to: Path | None, force: bool, checking: bool, files: tuple[str, ...],
    output: str,
) -> int:  # fmt: skip
    """Read topology files into one cluster file.

    Any mixture of: Slurm's topology.conf or topology.yaml (also from Topograph), the output of
    ibnetdiscover or of `nvidia-smi topo -m`, `kubectl get nodes -o json`, the JSON of Topograph's
    graph engine, a CSV of NICs and their leaf switches.
    """
    facts = load_catalog(files)
    topology = merge([read_topology(read_text(file), str(file), kind) for file in sources])
    problems = check(topology)
    shape = None
    if accelerator is not None:
        shape = find_shape(topology, accelerator, facts, node=node, devices=devices)
        text = to_cluster_file(topology, accelerator, facts, node=node, devices=devices)
        if to is not None:
            _write(to, text, sources, force)
    elif to is not None:
        raise InputError("a cluster file names its accelerator: add --accelerator")
    tables = [_summary(topology, shape, 0 if checking else len(problems), to)]
    if checking:
        tables.append(_problem_table(problems))
    emit(output, _data(topology, shape, problems, to), tables)
    return 3 if checking and problems else 0


def _write(target: Path, text: str, sources: tuple[Path, ...], force: bool) -> None:
    """All of `text` or nothing, and never over what the user would miss."""
    if target.suffix != ".toml":
        raise InputError(f"{target}: a cluster file's name ends in .toml")
    partial = target.with_name(f".{target.name}.partial")
    try:
        if target.exists():
            if any(target.samefile(source) for source in sources):
                raise InputError(f"{target}: that is one of the files read: choose another name")
            if not force:
                raise InputError(f"{target}: is already there: --force writes over it")
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{target}: {error.strerror or error}") from None


def _data(
    topology: Topology, shape: Shape | None, problems: list[Problem], to: Path | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "written": str(to) if to else None,
        "levels": _levels(topology),
        "shape": codec.encode(shape),
        "problems": codec.encode(problems),
        "topology": {
            "sources": list(topology.sources),
            "board": codec.encode(topology.board),
            "switches": codec.encode(topology.switches),
            "nodes": codec.encode(topology.nodes),
        },
    }


def _levels(topology: Topology) -> list[dict[str, Any]]:
    """Of each level from the block up: switches, groups of nodes and their sizes."""
    switches = Counter(topology.levels.values())
    found = []
    for level, groups in enumerate(topology.groups if topology.nodes else ()):
        sizes = Counter(groups).values()
        if level or max(sizes) > 1:
            found.append(
                {
                    "level": level,
                    "switches": switches[level],
                    "groups": len(sizes),
                    "nodes": [min(sizes), max(sizes)],
                    "oversubscription": topology.oversubscription.get(level),
                }
            )
    return found


def _summary(topology: Topology, shape: Shape | None, unlisted: int, to: Path | None) -> Table:
    rows = [
        (
            {0: "block", 1: "leaf", 2: "spine", 3: "core"}.get(line["level"], str(line["level"])),
            f"{line['switches']:,}" if line["level"] else "",
            f"{line['groups']:,}",
            " to ".join(f"{size:,}" for size in dict.fromkeys(line["nodes"])),
            "" if line["oversubscription"] is None else f"{line['oversubscription']:.2f}",
        )
        for line in _levels(topology)
    ]
    rails = Counter(len(node.paths) for node in topology.nodes if node.paths and node.paths[0].nic)
    nodes = f"{len(topology.nodes):,} nodes" if topology.nodes else "One node"
    width = f", most with {rails.most_common(1)[0][0]} rails" if rails else ""
    gpus = f", {shape.gpus:,} devices" if shape else ""
    return Table(
        title=f"{nodes}{gpus}{width}",
        columns=columns(
            "level", "switches", "groups", "nodes in one", "oversubscription",
            right="switches,groups,nodes in one,oversubscription",
        ),
        rows=tuple(rows),
        notes=tuple(_notes(topology, shape, unlisted, to)),
    )  # fmt: skip


def _notes(
    topology: Topology, shape: Shape | None, unlisted: int, to: Path | None
) -> Iterator[str]:
    if topology.board is not None:
        board = topology.board
        yield (
            f"In a node: {board.devices} devices, {board.domain} of them joined by NVLink, "
            f"{len(board.nics)} NICs."
        )
    if shape is not None:
        if shape.nic_bytes_per_second:
            yield f"A device's share of its node's rails: {shape.nic_bytes_per_second / 1e9:g} GB/s."
        yield from (f"Assumed: {what}." for what in shape.assumed)
    if unlisted:
        yield f"Problems: {unlisted:,} (--check lists them)."
    if to is not None:
        yield f"Written to {to}."


def _problem_table(problems: list[Problem]) -> Table:
    hidden = len(problems) - _LIMIT
    return Table(
        title="Problems" if problems else "No problems",
        columns=columns("rule", "where", "what", wrap="what"),
        rows=tuple((p.rule, p.where, p.what) for p in problems[:_LIMIT]),
        notes=(f"{hidden:,} more not shown (-o json has all).",) if hidden > 0 else (),
    )
