"""`cluster import`: a cluster file from topology files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import PROBLEMS, Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog
from computeflow.cluster.topology import (
    ClusterShape,
    Problem,
    Topology,
    find_shape,
    merge,
    read_topology,
    to_cluster_file,
)
from computeflow.cluster.topology import check as check_topology
from computeflow.errors import InputError
from computeflow.files.limits import PATH_CHARACTERS
from computeflow.files.names import shown
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.views.tables import Table
from computeflow.views.topologies import (
    problem_table,
    topology_headline,
    topology_levels,
    topology_table,
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopologyAnswer(Answer):
    topology: Topology
    problems: tuple[Problem, ...]
    shape: ClusterShape | None = None
    """None where no accelerator is named."""
    to: Path | None = None
    check: bool = False
    """Whether to list problems."""

    @property
    def headline(self) -> str:
        return topology_headline(self.topology, self.shape, len(self.problems), self.to)

    @property
    def title(self) -> str:
        return self.headline

    @property
    def exit_code(self) -> int:
        return PROBLEMS if self.check and self.problems else 0

    def _data(self) -> dict[str, Any]:
        topology = self.topology
        return {
            "schema": "computeflow.topology/1",
            "written": str(self.to) if self.to else None,
            "levels": topology_levels(topology),
            "shape": codec.encode(self.shape),
            "problems": codec.encode(self.problems),
            "topology": {
                "sources": list(topology.sources),
                "board": codec.encode(topology.board),
                "switches": codec.encode(topology.switches),
                "nodes": codec.encode(topology.nodes),
            },
        }

    def tables(self) -> list[Table]:
        unlisted = 0 if self.check else len(self.problems)
        summary = topology_table(self.topology, self.shape, unlisted)
        return [summary, problem_table(self.problems)] if self.check else [summary]


@checked
def import_topology(
    sources: Sequence[File],
    *,
    accelerator: str | None = None,
    node: str | None = None,
    devices: int | None = None,
    kind: str | None = None,
    to: NewFile | None = None,
    force: bool = False,
    check: bool = False,
    catalog: CatalogFiles = (),
) -> TopologyAnswer:
    """Merge topology files, check the result, and write it as a cluster file if `to` is given."""
    facts = open_catalog(catalog)
    paths = [Path(source) for source in sources]
    topology = merge([read_topology(read_text(path), _called(path), kind) for path in paths])
    target = None if to is None else Path(to)
    shape = None
    if accelerator is not None:
        shape = find_shape(topology, accelerator, facts, node=node, devices=devices)
        text = to_cluster_file(topology, accelerator, facts, node=node, devices=devices)
        if target is not None:
            if target.suffix.lower() != ".toml":
                raise InputError(f"{target}: the file name must end in .toml")
            write_file(target, text, "--to", force=force)
    elif any(value is not None for value in (target, node, devices)):
        raise InputError("a cluster file needs --accelerator")
    return TopologyAnswer(
        topology=topology,
        problems=tuple(check_topology(topology)),
        shape=shape,
        to=target,
        check=check,
    )


def _called(path: Path) -> str:
    """The name of a source in messages and in the written file."""
    return shown(str(path), PATH_CHARACTERS)
