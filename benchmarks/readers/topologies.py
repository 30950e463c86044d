"""Clusters: cables as tools write them, and the cluster file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.readers.calling import EXAMPLES, shown, written
from benchmarks.readers.reader import (
    Build,
    Reader,
    csv_shapes,
    files,
    json_shapes,
    line_shapes,
    long_lines,
    records,
    toml_shapes,
    yaml_shapes,
)
from computeflow import answers
from computeflow.answers.topologies import import_topology
from computeflow.files import limits


def _topology(content: bytes, folder: Path, kind: str | None) -> object:
    path = written(content, folder, "topology.txt")
    topology = import_topology([path], kind=kind, check=True)
    shown(topology)
    for accelerator in ("h100-sxm",) if topology.topology.nodes else ():
        return shown(import_topology([path], kind=kind, accelerator=accelerator))
    return topology


def _cluster(content: bytes, folder: Path) -> object:
    path = written(content, folder, "cluster.toml")
    return shown(answers.predict("llama-3.1-8b", on=str(path), global_batch=512, seq_len=2048))


_CLUSTER = b"""\
accelerator = "h100-sxm"
gpus = 16
node = "hgx-h100"
domain = 8
nic_bytes_per_second = 5e10
pod = 8
oversubscription = 2.0
host_bytes_per_second = 5e10
[topology]
sources = ["x"]
[[topology.nodes]]
name = "n0"
[[topology.nodes]]
name = "n1"
"""


def _node_labels(n: int) -> bytes:
    labels = {
        "network.topology.nvidia.com/leaf": f"leaf{n // 8}",
        "kubernetes.io/hostname": f"n{n}",
        "network.topology.nvidia.com/spine": "s0",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    return json.dumps(
        {
            "kind": "Node",
            "metadata": {"name": f"n{n}", "labels": labels},
            "status": {"capacity": {"nvidia.com/gpu": "8"}},
        }
    ).encode()


_YAML = b"""\
- topology: fabric
  cluster_default: True
  tree:
    switches:
    - switch: top
      children: s[1-2]
    - switch: s1
      nodes: node[01-02]
    - switch: s2
      nodes: node[03-04]
- topology: racks
  block:
    block_sizes:
      - 2
    blocks:
    - block: b1
      nodes: node[01-02]
"""


def _infiniband(n: int) -> bytes:
    return (
        b'Switch  41 "S-%016x"         # "MF0;leaf%d:MQM8700/U1" enhanced port 0 lid %d lmc 0\n'
        b'[1]     "H-%016x"[1](%x)    # "node%03d ibp11s0f0" lid 1181 4xHDR s=4 w=2 v=4\n'
        b'[25]    "S-%016x"[1]         # "MF0;spine:MCS8500/L01/U1" lid 226 4xHDR\n\n'
        b'Ca      1 "H-%016x"          # "node%03d ibp11s0f0"\n'
        b'[1](%x)    "S-%016x"[1] # lid 1181 lmc 0 "MF0;leaf%d:M/U1" lid 556 4xEDR\n'
        % (n + 1, n, n, n + 10**9, n, n, 0, n + 10**9, n, n, n + 1, n)
    )


def _board(size: int) -> bytes:
    """A board matrix of so many bytes: one row per GPU, with a cell for each other."""
    count = max(int((size / 5) ** 0.5), 2)
    head = "\t" + "\t".join(f"GPU{n}" for n in range(count)) + "\tCPU Affinity\tNUMA Affinity"
    rows = [
        f"GPU{n}\t" + "\t".join("X" if n == m else "NV18" for m in range(count)) + "\t0-23\t0"
        for n in range(count)
    ]
    return "\n".join([head, *rows]).encode() + b"\n"


_CABLES = b"accessport,serverIP,nicname,portname,switchIP,switchname,sysname"


def _cable(n: int) -> bytes:
    return b"Two1/0/%d,10.107.%d.%d,ens11np0,Two1/0/%d,10.107.208.%d,Leaf-%d,GPU-%d" % (
        n,
        n >> 8 & 255,
        n & 255,
        n,
        n % 250,
        n // 32,
        n,
    )


_RANGES_SECONDS = limits.NODES * 0.3e-3
"""Slurm's "n[0-99999]" names as many nodes as are read at all; instrumented, 15,995 took 4.8 s."""


def readers() -> list[Reader]:
    shapes: dict[str, dict[str, Build]] = {
        "slurm": {
            "natural": records(
                lambda n: b"SwitchName=s%d Nodes=gpu[%d-%d]" % (n, 8 * n, 8 * n + 7)
            ),
            "chain": records(
                lambda n: b"SwitchName=s%d Switches=s%d" % (n, n + 1),
                b"SwitchName=a Nodes=n[0-7]\n",
                b"\n",
            ),
            "blocks": records(lambda n: b"BlockName=b%d Nodes=n[%d-%d]" % (n, 8 * n, 8 * n + 7)),
            "one list": records(lambda n: b"n%d" % n, b"SwitchName=s0 Nodes=", b"\n", b","),
            "ranges": records(
                lambda n: b"%d-%d" % (3 * n, 3 * n + 1), b"SwitchName=s0 Nodes=n[", b"]\n", b","
            ),
            "brackets": long_lines(b"[0]", b"SwitchName=s0 Nodes=n\n", b""),
            **line_shapes(b"SwitchName=s0 Nodes=n[0-7]\n", [b"SwitchName=s1 Nodes=a[1-2],b1"]),
        },
        "slurm-yaml": {
            "natural": records(
                lambda n: b"    - switch: s%d\n      nodes: n[%d-%d]" % (n, 8 * n, 8 * n + 7),
                b"- topology: t\n  tree:\n    switches:\n",
                b"\n",
            ),
            **yaml_shapes(b"- topology: t\n  tree:\n"),
        },
        "ibnetdiscover": {
            "natural": records(_infiniband),
            **line_shapes(_infiniband(0), _infiniband(1).split(b"\n")[:4]),
        },
        "nvidia-topo": {"natural": _board, **line_shapes(_board(60), [b"GPU1\tNV1\tX\tSYS\t0-23"])},
        "nodes-json": {
            "natural": records(_node_labels, b'{"kind":"List","items":[', b"]}", b","),
            **json_shapes(b'{"kind":"List","items":', b"}"),
        },
        "csv": {
            "natural": records(_cable, _CABLES + b"\n", b"\n"),
            **csv_shapes(_CABLES, _cable(1)),
        },
    }
    recorded: dict[str, Callable[[], Sequence[bytes]]] = {
        "slurm": files("topology.conf", EXAMPLES / "cluster"),
        "slurm-yaml": lambda: [_YAML],
        "ibnetdiscover": files("ibnetdiscover.txt", EXAMPLES / "cluster"),
        "nvidia-topo": files("topo.txt", EXAMPLES / "cluster"),
        "nodes-json": lambda: [
            b'{"instances":[{"id":"i-21","network_layers":["leaf-a","spine-a"],"labels":'
            b'{"accelerator.topograph.run/domain":"nvl-1"}}]}'
        ],
        "csv": lambda: [b"ip,DSW,PSW,ASW\n0c9d,G6,P10,S14\n525c,G6,P12,S2\n"],
    }
    cluster = Reader(
        name="cluster-toml",
        read=_cluster,
        shapes={
            "natural": records(lambda n: b'[[topology.nodes]]\nname = "m%d"' % n, _CLUSTER, b"\n"),
            **toml_shapes(_CLUSTER),
        },
        recorded=lambda: [_CLUSTER],
    )
    kinds = (
        Reader(
            name=f"topology-{kind}",
            read=partial(_topology, kind=kind),
            shapes=shape,
            recorded=recorded[kind],
            extra_seconds=_RANGES_SECONDS if kind.startswith("slurm") else 0.0,
        )
        for kind, shape in shapes.items()
    )
    return [*kinds, cluster]
