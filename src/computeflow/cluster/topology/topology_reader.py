"""Which tool wrote a text, by its content, and the reader for it. Start with `read_topology`."""

from __future__ import annotations

import re
from collections.abc import Callable

from computeflow.cluster.topology.board import read_board
from computeflow.cluster.topology.infiniband import read_ibnetdiscover
from computeflow.cluster.topology.labels import read_labels
from computeflow.cluster.topology.slurm import read_conf, read_yaml
from computeflow.cluster.topology.table import find_columns, read_table
from computeflow.cluster.topology.topology import Topology
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.parsing import without_collector

KINDS: dict[str, Callable[[str, str], Topology]] = {
    "slurm": read_conf,
    "slurm-yaml": read_yaml,
    "ibnetdiscover": read_ibnetdiscover,
    "nvidia-topo": read_board,
    "nodes-json": read_labels,
    "csv": read_table,
}
_SIGNS = {
    "slurm": re.compile(r"^[ \t]*(?:Switch|Block|Ring)(?:Name|Sizes)[ \t]*=", re.M | re.I),
    "slurm-yaml": re.compile(r"^[ \t]*-[ \t]*topology:", re.M),
    "ibnetdiscover": re.compile(r'^(?:Switch|Ca)[ \t]+\d+[ \t]+"[SH]-|^(?:vend|dev)id=0x', re.M),
    "nvidia-topo": re.compile(r"^(?:\x1b\[\d+m|[ \t])*GPU0\b", re.M),
}
_KUBERNETES_YAML = re.compile(r"^apiVersion:[ \t]|^kind:[ \t]*(?:List|Node|NodeList)[ \t]*$", re.M)


def read_topology(text: str, where: str, kind: str | None = None) -> Topology:
    """The topology in a text; `where` is its name in errors and sources."""
    kind = kind or find_kind(text, where)
    if kind not in KINDS:
        raise UnknownNameError("kind of topology", kind, KINDS)
    try:
        with without_collector():
            topology = KINDS[kind](text, where)
    except InputError as error:
        worded = str(error)
        raise InputError(worded if where in worded else f"{where}: {worded}") from None
    if not topology.nodes and topology.board is None:
        raise InputError(f"{where}: no node in it (read as {kind})")
    return topology


def find_kind(text: str, where: str) -> str:
    """The kind of a text by its content: a file's name says little."""
    start = text.lstrip()
    if start.startswith("{"):
        return "nodes-json"
    for kind, sign in _SIGNS.items():
        if sign.search(text):
            return kind
    if _KUBERNETES_YAML.search(text):
        raise InputError(f"{where}: Kubernetes YAML: save it with `kubectl get nodes -o json`")
    header = re.split(r"[,;\t]", start.partition("\n")[0])
    if find_columns([cell.strip('" ') for cell in header]):
        return "csv"
    raise InputError(
        f"{where}: not recognised: topology.conf or .yaml of Slurm, ibnetdiscover, nvidia-smi topo -m, "
        "kubectl get nodes -o json, Topograph's JSON, or a CSV of NICs and leaves are read"
    )
