"""Topologies from many tools: every format as its tool writes it, merged, checked, written."""

from __future__ import annotations

import contextlib
import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster import find_cluster
from computeflow.cluster.topology import (
    KINDS,
    Node,
    Problem,
    Rail,
    Switch,
    Topology,
    Uplink,
    check,
    find_kind,
    find_shape,
    merge,
    read_topology,
    slurm,
    to_cluster_file,
)
from computeflow.cluster.topology.hostlist import expand
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.names import is_host

EXAMPLES = Path(__file__).parents[1] / "examples" / "cluster"

# In the form of topology.conf(5), SchedMD/slurm doc/man/man5/topology.conf.5.
TREE = """\
# topology/tree
SwitchName=s0 Nodes=gpu[0-5]
SwitchName=s1 Nodes=gpu[6-11]
SwitchName=s2 Nodes=gpu[12-17]
SwitchName=s3 Switches=s[0-2]
"""
BLOCKS = """\
BlockName=rack1 Nodes=node[1-32]
BlockName=rack2 Nodes=node[33-64]
BlockName=rack3 Nodes=node[65-96]
BlockName=rack4 Nodes=node[97-128]
BlockSizes=32,128
"""
# In the form of topology.yaml(5).
YAML = """\
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
  cluster_default: False
  block:
    block_sizes:
      - 2
      - 4
    blocks:
    - block: b1
      nodes: node[01-02]
    - block: b2
      nodes: node[03-04]
- topology: rest
  cluster_default: False
  flat: True
"""
# As NVIDIA/topograph writes it (pkg/translate/topology_test.go): the true names in comments.
TOPOGRAPH_CONF = """\
# switch.3.1=island-7
SwitchName=switch.3.1 Switches=switch.2.[1-2]
# switch.2.1=pod-1
SwitchName=switch.2.1 Switches=switch.1.1
# switch.2.2=pod-2
SwitchName=switch.2.2 Switches=switch.1.2
# switch.1.1=tor-1
SwitchName=switch.1.1 Nodes=node-1
# switch.1.2=tor-2
SwitchName=switch.1.2 Nodes=node-2
"""
TOPOGRAPH_BLOCKS = """\
# block001=nvl-1
BlockName=block001 Nodes=tray[04-06]
# block002=nvl-2
BlockName=block002 Nodes=tray[11-12,15]
BlockSizes=3
"""
# In the form of its docs/engines/graph.md.
TOPOGRAPH_JSON = """\
{"instances": [
  {"id": "i-21", "network_layers": ["leaf-a", "spine-a"],
   "labels": {"example.com/kind": "H100", "accelerator.topograph.run/domain": "nvl-1"}},
  {"id": "i-22", "network_layers": ["leaf-b", "spine-a"], "labels": {}}
]}
"""
# In the form of the recorded HDR fabric, with the HCAs that NVIDIA/topograph's NDR sample has.
FABRIC = """\
vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8599f0300c2f06a
switchguid=0xff08c432172aa1a(ff08c432172aa1a)
Switch  41 "S-0ff08c432172aa1a"         # "MF0;rmd70-A:MCS8500/L01/U1" base port 0 lid 226 lmc 0
[1]     "S-0ff08c43215bae48"[25]                # "MF0;rmd70-01ib0:MQM8700/U1" lid 556 4xHDR s=4 w=2

Switch  41 "S-0ff08c43213b3f30"         # "MF0;rmd70-A:MCS8500/S01/U1" enhanced port 0 lid 387 lmc 0

Switch  41 "S-0ff08c43215bae48"         # "MF0;rmd70-01ib0:MQM8700/U1" enhanced port 0 lid 556 lmc 0
[1]     "H-0ff08c4321664e96"[1](ff08c4321664e96)    # "node003 ibp11s0f0" lid 1181 4xHDR s=4 w=2 v=4
[9]     "H-0ff08c43217299f2"[1](ff08c43217299f2)    # "node019 ibp11s0f0" lid 3191 4xHDR s=4 w=2 v=4
[25]    "S-0ff08c432172aa1a"[1]         # "MF0;rmd70-A:MCS8500/L01/U1" lid 226 4xHDR s=4 w=2 v=4 e=4
[41]\t"H-2c5eab0300b87b50"[1](2c5eab0300b87b50) # "Mellanox Technologies Aggregation Node" lid 1 4xHDR
[42]\t"H-e09d730300858d88"[1](e09d730300858d88) # "MT4129 ConnectX7   Mellanox Technologies" lid 2 4xHDR

caguid=0xff08c4321664e96
Ca      1 "H-0ff08c4321664e96"          # "node003 ibp11s0f0"
[1](ff08c4321664e96)    "S-0ff08c43215bae48"[1] # lid 1181 lmc 0 "MF0;rmd70-01ib0:M/U1" lid 556 4xEDR
"""
# `nvidia-smi topo -m` of a V100 machine (hybrid cube mesh) and of a PCIe one, as published.
V100 = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\tX\tNV1\tNV2\tSYS\tNODE\tSYS\t0-23,48-71\t0
GPU1\tNV1\tX\tSYS\tNV2\tPIX\tSYS\t0-23,48-71\t0
GPU2\tNV2\tSYS\tX\tNV1\tSYS\tNODE\t24-47,72-95\t1
GPU3\tSYS\tNV2\tNV1\tX \tSYS\tPIX\t24-47,72-95\t1
mlx5_0\tNODE\tPIX\tSYS\tSYS\tX\tSYS\t\t
mlx5_1\tSYS\tSYS\tNODE\tPIX\tSYS\tX \t\t

Legend:

  X    = Self
"""
PCIE = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\tNODE\tNODE\t56-111,168-223\t1\t\tN/A
GPU1\tNODE\t X \tNODE\tPHB\t56-111,168-223\t1\t\tN/A
NIC0\tNODE\tNODE\t X \tPIX\t\t\t\t
NIC1\tNODE\tPHB\tPIX\t X \t\t\t\t

NIC Legend:

  NIC0: rocep4s0f0
  NIC1: rocep4s0f1
"""
# Header and lines of the two public tables.
CABLES = """\
accessport,serverIP,nicname,portname,switchIP,switchname,sysname
TwoHundredGigE1/0/1:2,10.107.222.1,ens11np0,TwoHundredGigE1/0/1:2,10.107.208.111,Leaf-1,GPU-1
TwoHundredGigE1/0/1:2,10.107.222.1,ens10np0,TwoHundredGigE1/0/1:2,10.107.208.112,Leaf-2,GPU-1
TwoHundredGigE1/0/5:2,10.107.222.10,ens11np0,TwoHundredGigE1/0/5:2,10.107.208.111,Leaf-1,GPU-10
FourHundredGigE1/0/64,10.107.222.10,,FourHundredGigE1/0/64,10.107.208.112,Leaf-2,GPU-10
"""
PATHS = "ip,DSW,PSW,ASW\n0c9d,G6,P10,S14\n525c,G6,P12,S2\n99be,G6,P10,S34\ne303,G6,P12,S14\n"


def kubernetes(*nodes: tuple[str, dict[str, str]], gpus: str = "8") -> str:
    """`kubectl get nodes -o json`, with a control plane's node that is no part of the cluster."""
    items = [
        {
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": {"nvidia.com/gpu": gpus}},
        }
        for name, labels in nodes
    ]
    control = {"metadata": {"name": "control", "labels": {}}, "status": {"capacity": {"cpu": "8"}}}
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, control]})


def read(text: str, where: str = "it") -> Topology:
    return read_topology(text, where)


def rules(topology: Topology) -> set[str]:
    return {problem.rule for problem in check(topology)}


def parents(topology: Topology) -> dict[str, list[str]]:
    return {s.name: [up.switch for up in s.uplinks] for s in topology.switches}


# -- host lists


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tux[0-3,12]", ["tux0", "tux1", "tux2", "tux3", "tux12"]),
        ("node[001-003,020]", ["node001", "node002", "node003", "node020"]),
        ("a,b[08-10],c", ["a", "b08", "b09", "b10", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("switch.2.[1-2]", ["switch.2.1", "switch.2.2"]),
        ("", []),
    ],
)
def test_a_host_list_is_every_name_in_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "node[1-1000000000]",
        "n[1-99999]m[1-99999]",
        "a[1-60000],b[1-60000]",
        "node[1-2",
        "node]",
        "node[[1-2]]",
        "node[]",
        "node[1-]",
        "node[b-d]",
        "node[3-1]",
        "a,,b",
        "node[1-²]",
        ",",
        f"n[{'9' * 5000}]",
    ],
)
def test_a_host_list_that_is_wrong_or_without_end_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        expand(text)
    assert time.process_time() - start < 1


@given(
    st.text("abc-", min_size=1, max_size=5),
    st.lists(st.integers(0, 9999), min_size=1, max_size=20, unique=True),
    st.integers(1, 6),
)
def test_numbers_in_brackets_are_the_names_written_out(
    prefix: str, numbers: list[int], width: int
) -> None:
    written = [f"{number:0{width}d}" for number in numbers]
    assert expand(f"{prefix}[{','.join(written)}]") == [prefix + number for number in written]


@given(st.integers(0, 10**6), st.integers(0, 500), st.integers(1, 8))
def test_a_range_has_as_many_names_as_it_spans(first: int, more: int, width: int) -> None:
    names = expand(f"n[{first:0{width}d}-{first + more}]")
    assert len(set(names)) == more + 1
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))


# -- each format


def test_a_slurm_tree_has_its_leaves_and_their_parent() -> None:
    tree = read(TREE)
    assert find_kind(TREE, "") == "slurm"
    assert len(tree.nodes) == 18
    assert parents(tree) == {"s0": ["s3"], "s1": ["s3"], "s2": ["s3"], "s3": []}
    assert tree.levels == {"s0": 1, "s1": 1, "s2": 1, "s3": 2}
    assert [tree.distance("gpu0", other) for other in ("gpu0", "gpu5", "gpu6")] == [0, 2, 3]
    assert check(tree) == []


def test_slurm_keys_may_be_in_any_case_and_lines_may_continue() -> None:
    text = 'switchname=s0 NODES="a[1-2]" LinkSpeed=100 \\\n # the rest is a comment\n'
    assert [node.name for node in read(text).nodes] == ["a1", "a2"]


def test_slurm_blocks_are_blocks() -> None:
    blocks = read(BLOCKS)
    assert len(blocks.nodes) == 128
    assert blocks.nodes[40].block == "rack2"
    assert (blocks.distance("node1", "node32"), blocks.distance("node1", "node33")) == (1, 2)
    assert check(blocks) == []
    assert rules(read(BLOCKS.replace("32,128", "40,100"))) == {"small-block", "block-sizes"}


def test_slurm_yaml_is_read_as_its_conf() -> None:
    found = read(YAML)
    assert find_kind(YAML, "") == "slurm-yaml"
    assert parents(found) == {"top": [], "s1": ["top"], "s2": ["top"]}
    assert [(n.name, n.block, n.rails[0].switch) for n in found.nodes][::3] == [
        ("node01", "b1", "s1"),
        ("node04", "b2", "s2"),
    ]
    assert check(found) == []


def test_topographs_short_names_stand_for_the_true_ones_in_its_comments() -> None:
    tree = read(TOPOGRAPH_CONF)
    assert parents(tree)["tor-1"] == ["pod-1"]
    assert tree.distance("node-1", "node-2") == 4
    assert {node.block for node in read(TOPOGRAPH_BLOCKS).nodes} == {"nvl-1", "nvl-2"}
    assert check(tree) == []


def test_topographs_graph_names_switches_from_the_leaf_outwards() -> None:
    graph = read(TOPOGRAPH_JSON)
    assert parents(graph) == {"leaf-a": ["spine-a"], "spine-a": [], "leaf-b": ["spine-a"]}
    assert graph.nodes[0].block == "nvl-1"
    assert graph.distance("i-21", "i-22") == 3


@pytest.mark.parametrize(
    "labels",
    [
        {"network.topology.nvidia.com/leaf": "{0}", "network.topology.nvidia.com/spine": "s"},
        {"network.topology.nvidia.com/block": "{0}", "network.topology.nvidia.com/spine": "s"},
        {"fabric.topograph.run/tier-0": "{0}", "fabric.topograph.run/tier-1": "s"},
        {
            "cloud.google.com/gce-topology-subblock": "{0}",
            "cloud.google.com/gce-topology-block": "s",
        },
        {
            "topology.k8s.aws/network-node-layer-3": "{0}",
            "topology.k8s.aws/network-node-layer-2": "s",
        },
    ],
)
def test_kubernetes_labels_say_under_which_switches_a_node_is(labels: dict[str, str]) -> None:
    nodes = [
        (name, {key: value.format(leaf) for key, value in labels.items()})
        for name, leaf in (("n1", "a"), ("n2", "a"), ("n3", "b"))
    ]
    found = read(kubernetes(*nodes))
    assert parents(found) == {"a": ["s"], "b": ["s"], "s": []}
    assert [node.devices for node in found.nodes] == [8, 8, 8]
    assert (found.distance("n1", "n2"), found.distance("n1", "n3")) == (2, 3)


def test_kubernetes_labels_of_the_same_value_on_two_tiers_are_two_switches() -> None:
    labels = {"network.topology.nvidia.com/leaf": "1", "network.topology.nvidia.com/spine": "1"}
    assert parents(read(kubernetes(("n1", labels)))) == {"leaf:1": ["spine:1"], "spine:1": []}


def test_a_kubernetes_node_tells_its_devices_block_and_zone() -> None:
    labels = {
        "nvidia.com/gpu.count": "4",
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        "nvidia.com/gpu.clique": "7f3c.1",
        "fabric.topograph.run/tier-0": "leaf",
        "topology.kubernetes.io/zone": "us-east-1a",
    }
    found = read(kubernetes(("n1", labels), gpus="0"))
    assert (found.nodes[0].devices, found.nodes[0].block) == (4, "7f3c.1")
    assert found.nodes[0].product == "NVIDIA-GB200"
    assert parents(found) == {"leaf": ["us-east-1a"], "us-east-1a": []}


def test_ibnetdiscover_gives_nics_switches_and_speeds() -> None:
    fabric = read(FABRIC)
    assert find_kind(FABRIC, "") == "ibnetdiscover"
    assert [node.name for node in fabric.nodes] == ["node003", "node019"]
    assert fabric.nodes[1].rails == (
        Rail(
            switch="rmd70-01ib0", nic="ibp11s0f0", bytes_per_second=25e9, guid="H-0ff08c43217299f2"
        ),
    )
    leaf = next(s for s in fabric.switches if s.name == "rmd70-01ib0")
    assert leaf.uplinks == (Uplink(switch="rmd70-A/L01/U1", links=1, bytes_per_second=25e9),)
    assert fabric.oversubscription == {1: pytest.approx((25 + 12.5) / 25)}


def test_ibnetdiscover_tells_ends_that_disagree_and_hcas_without_a_node() -> None:
    assert rules(read(FABRIC)) == {"asymmetric-speed", "nameless-hca", "link-speed"}
    twice = FABRIC + '\nCa\t1 "H-0ff08c4321664e96"\t\t# "other mlx5_0"\n'
    assert "duplicate-guid" in rules(read(twice))


def test_a_matrix_tells_what_nvlink_joins_and_which_nic_is_near() -> None:
    board = read(V100).board
    assert board is not None
    assert (board.devices, board.domain) == (4, 4)
    assert board.nearest == (("mlx5_0",), ("mlx5_0",), ("mlx5_1",), ("mlx5_1",))
    board = read(PCIE).board
    assert board is not None
    assert (board.devices, board.domain) == (2, 1)
    assert board.nearest == (("rocep4s0f0", "rocep4s0f1"), ("rocep4s0f1",))


def test_a_matrix_whose_halves_differ_is_a_problem() -> None:
    assert rules(read(V100.replace("GPU1\tNV1", "GPU1\tNV2"))) == {"asymmetric-link"}


def test_a_table_of_nics_has_a_rail_for_each_row() -> None:
    cables = read(CABLES)
    assert [[rail.nic for rail in node.paths] for node in cables.nodes] == [
        ["ens10np0", "ens11np0"],
        ["? on Leaf-2", "ens11np0"],
    ]
    assert cables.nodes[0].paths[0].bytes_per_second == 25e9
    assert cables.rail_leaves == ((1, 0), (1, 0))
    assert rules(cables) == {"nameless-nic", "link-speed"}


def test_a_table_of_paths_keeps_switches_of_one_name_apart() -> None:
    paths = read(PATHS)
    assert parents(paths)["P10/S14"] == ["P10"]
    assert parents(paths)["P12/S14"] == ["P12"]
    assert [paths.distance("0c9d", other) for other in ("99be", "e303")] == [3, 4]


def test_a_table_may_state_speeds_and_devices() -> None:
    node = read("host,nic,leaf,spine,speed,gpus\nn1,a,l1,s1,400,8\nn1,b,l2,s1,50 GB/s,8\n").nodes[0]
    assert node.devices == 8
    assert [rail.bytes_per_second for rail in node.rails] == [50e9, 50e9]


# -- the value


def test_groups_grow_from_blocks_to_the_whole() -> None:
    tree = read(TREE)
    sizes = [len(set(groups)) for groups in tree.groups]
    assert sizes == [18, 3, 1]


def clos(spines: int = 2) -> Topology:
    """Four nodes with two rails each, on two leaves under some spines."""
    ups = tuple(Uplink(switch=f"s{i}", links=1, bytes_per_second=50e9) for i in range(spines))
    rails = tuple(Rail(switch=f"l{i}", nic=f"mlx5_{i}", bytes_per_second=50e9) for i in range(2))
    return Topology(
        nodes=tuple(Node(name=f"n{i}", rails=rails, sources=("it",)) for i in range(4)),
        switches=(
            *(Switch(name=f"l{i}", uplinks=ups) for i in range(2)),
            *(Switch(name=f"s{i}") for i in range(spines)),
        ),
        sources=("it",),
    )


def test_oversubscription_is_what_comes_in_over_what_goes_up() -> None:
    assert clos(2).oversubscription == {1: 2.0}
    assert clos(4).oversubscription == {1: 1.0}
    assert check(clos()) == []


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 8))
def test_distance_is_a_metric_of_a_tree(nodes: int, per_leaf: int, per_spine: int) -> None:
    lines, leaves = [], -(-nodes // per_leaf)
    for leaf in range(leaves):
        last = min(nodes, (leaf + 1) * per_leaf) - 1
        lines.append(f"SwitchName=l{leaf} Nodes=n[{leaf * per_leaf}-{last}]")
    for spine in range(-(-leaves // per_spine)):
        last = min(leaves, (spine + 1) * per_spine) - 1
        lines.append(f"SwitchName=s{spine} Switches=l[{spine * per_spine}-{last}]")
    tree = read("\n".join(lines))
    for a, b in ((0, nodes - 1), (0, nodes // 2), (nodes // 2, nodes - 1)):
        same = a == b, a // per_leaf == b // per_leaf
        one_spine = a // per_leaf // per_spine == b // per_leaf // per_spine
        expected = 0 if same[0] else 2 if same[1] else 3 if one_spine else 4
        assert tree.distance(f"n{a}", f"n{b}") == tree.distance(f"n{b}", f"n{a}") == expected


# -- merging


def test_a_merged_topology_knows_what_each_source_knows() -> None:
    labels = {"fabric.topograph.run/tier-0": "S-0ff08c43215bae48"}
    listed = kubernetes(("NODE003.example.com", labels), ("node019", labels))
    both = merge([read(FABRIC, "ib"), read(listed, "k8s"), read(V100, "smi")])
    node = both.nodes[0]
    assert (node.name, node.devices, node.sources) == ("node003", 8, ("ib", "k8s"))
    assert [rail.nic for rail in node.rails] == ["ibp11s0f0"]  # the GUID is the leaf's other name
    assert both.board is not None
    assert "one-source" not in rules(both)
    assert "devices" in rules(both)  # eight by Kubernetes, four by nvidia-smi


def test_a_node_that_one_source_lacks_is_a_problem_of_that_source() -> None:
    both = merge([read(TREE, "a"), read(TREE.replace("gpu[0-5]", "gpu[0-4]"), "b")])
    assert check(both) == [Problem(rule="one-source", where="b", what="does not know gpu5")]


def test_a_tree_that_cuts_through_cabled_leaves_is_a_problem() -> None:
    other = "".join(
        f"{n},nic0,leaf{i // 2}\n" for i, n in enumerate(["gpu4", "gpu5", "gpu6", "gpu7"])
    )
    table = "node,nic,leaf\n" + other
    assert "crossing-leaf" not in rules(merge([read(TREE), read(table)]))
    crossed = "node,nic,leaf\ngpu4,nic0,x\ngpu5,nic0,y\ngpu6,nic0,y\ngpu7,nic0,z\n"
    assert "crossing-leaf" in rules(merge([read(TREE), read(crossed)]))


def test_a_nic_that_two_sources_plug_in_elsewhere_is_a_problem() -> None:
    tables = [read(f"node,nic,leaf\nn1,nic0,{leaf}\n", leaf) for leaf in ("l1", "l2")]
    assert "two-switches" in rules(merge(tables))


def test_merging_with_itself_changes_nothing() -> None:
    for text in (TREE, FABRIC, CABLES, PATHS, TOPOGRAPH_JSON):
        one = read(text)
        both = merge([one, one])
        assert (both.nodes, both.switches) == (one.nodes, one.switches)


# -- checking


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("two-leaves", "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[2-3]\n"),
        (
            "two-parents",
            "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a\n",
        ),
        ("two-blocks", "BlockName=a Nodes=n[1-2]\nBlockName=b Nodes=n[2-3]\n"),
        ("unknown-switch", "SwitchName=a Nodes=n1\nSwitchName=b Switches=a,gone\n"),
        ("cycle", "SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a\n"),
        ("cycle", "SwitchName=a Nodes=n1 Switches=a\n"),
        ("duplicate", "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n"),
        ("split", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=c Switches=a\n"),
        ("no-leaf", "SwitchName=a Nodes=n1\nBlockName=b Nodes=n[1-2]\n"),
        ("missing-rails", "node,nic,leaf\nn1,a,l\nn1,b,m\nn2,a,l\nn2,b,m\nn3,a,l\n"),
        ("link-speed", "node,nic,leaf,speed\nn1,a,l,400\nn2,a,l,400\nn3,a,l,200\n"),
    ],
)
def test_a_contradiction_is_named(rule: str, text: str) -> None:
    assert rule in rules(read(text))


def test_what_is_above_a_cycle_is_not_blamed_for_it() -> None:
    text = "SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a\nSwitchName=top Switches=a\n"
    problem = next(problem for problem in check(read(text)) if problem.rule == "cycle")
    assert "top" not in problem.what


def test_a_link_to_a_switch_that_the_file_lacks_is_a_problem() -> None:
    cut = FABRIC.replace('Switch  41 "S-0ff08c432172aa1a"', '# "S-0ff08c432172aa1a"')
    cut = cut.replace('[1]     "S-0ff08c43215bae48"[25]', "# ")
    assert "unknown-switch" in rules(read(cut))


def test_rails_in_another_order_than_the_neighbours_are_a_problem() -> None:
    rows = [f"n{i},nic{r},leaf{r}\n" for i in range(20) for r in range(2)]
    swapped = (
        "".join(rows)
        .replace("n7,nic0,leaf0", "n7,nic0,LEAF")
        .replace("n7,nic1,leaf1", "n7,nic1,leaf0")
    )
    crossed = read("node,nic,leaf\n" + swapped.replace("LEAF", "leaf1"))
    assert [(p.rule, p.where) for p in check(crossed)] == [("crossed-rails", "n7")]
    odd = read("node,nic,leaf\n" + "".join(rows).replace("n7,nic1,leaf1", "n7,nic1,leaf9"))
    assert [(p.rule, p.where) for p in check(odd)] == [("odd-leaf", "n7")]


def test_two_nodes_with_one_guid_and_links_between_peers_are_problems() -> None:
    whole = clos()
    rails = tuple(replace(rail, guid=f"H-{rail.nic}") for rail in whole.nodes[0].rails)
    twins = tuple(replace(node, rails=rails) for node in whole.nodes)
    assert rules(replace(whole, nodes=twins)) == {"duplicate-guid"}
    peers = tuple(replace(s, peers=("l1",)) if s.name == "l0" else s for s in whole.switches)
    assert rules(replace(whole, switches=peers)) == {"peer-link"}


# -- the cluster file


def test_a_cluster_file_is_what_find_cluster_reads(tmp_path: Path) -> None:
    facts = load_catalog()
    whole = clos()
    path = tmp_path / "mine.toml"
    path.write_text(to_cluster_file(whole, "h100-sxm", facts))
    cluster = find_cluster(str(path), facts)
    assert cluster.gpus == 32
    assert cluster.tiers[-1].bytes_per_second == pytest.approx(2 * 50e9 / 8 / 2)
    assert cluster.topology is not None
    assert cluster.topology.groups == whole.groups
    assert cluster.topology.switches == whole.switches
    assert [node.rails for node in cluster.topology.nodes] == [node.rails for node in whole.nodes]


def test_a_pod_is_what_shares_a_leaf(tmp_path: Path) -> None:
    facts = load_catalog()
    shape = find_shape(read(TREE), "h100-sxm", facts)
    assert (shape.gpus, shape.pods, shape.oversubscription) == (144, ((48, 1.0),), None)
    assert "pod = 48" in to_cluster_file(read(TREE), "h100-sxm", facts)


def test_blocks_are_the_domain_only_where_a_scale_up_link_can_be_as_wide() -> None:
    facts = load_catalog()
    racks = read("BlockName=a Nodes=n[1-18]\nBlockName=b Nodes=m[1-18]\n")
    assert find_shape(racks, "gb200", facts).domain == 72
    shape = find_shape(racks, "h100-sxm", facts)
    assert (shape.domain, shape.pods) == (None, ((144, 1.0),))


def test_three_levels_become_tiers(tmp_path: Path) -> None:
    up = [
        Uplink(switch=name, links=1, bytes_per_second=speed)
        for name, speed in (("p0", 50e9), ("p1", 50e9), ("c", 25e9))
    ]
    rail = [Rail(switch=f"l{i}", nic="a", bytes_per_second=50e9) for i in range(4)]
    whole = Topology(
        nodes=tuple(Node(name=f"n{i}", rails=(rail[i // 2],)) for i in range(8)),
        switches=(
            *(Switch(name=f"l{i}", uplinks=(up[i // 2],)) for i in range(4)),
            *(Switch(name=f"p{i}", uplinks=(up[2],)) for i in range(2)),
            Switch(name="c"),
        ),
    )
    facts = load_catalog()
    path = tmp_path / "mine.toml"
    path.write_text(to_cluster_file(whole, "h100-sxm", facts))
    tiers = find_cluster(str(path), facts).tiers
    assert [tier.devices for tier in tiers] == [8, 16, 32, 64]
    assert [tier.bytes_per_second for tier in tiers[1:]] == [50e9 / 8 / f for f in (1, 2, 8)]


def test_the_number_of_devices_is_stated_or_the_catalogs_and_then_it_says_so() -> None:
    facts = load_catalog()
    assert find_shape(read(TREE), "h100-sxm", facts, devices=4).gpus == 72
    assumed = find_shape(read(TREE), "h100-sxm", facts).assumed
    assert assumed == ("8 devices in a node, as in the catalog's node",)


@given(
    st.from_regex(r"[A-Za-z0-9_.-]{1,20}") | st.text(min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
)
def test_any_name_survives_the_cluster_file(node: str, switch: str) -> None:
    try:
        whole = Topology(
            nodes=(Node(name=node, rails=(Rail(switch=switch),)),), switches=(Switch(name=switch),)
        )
    except InputError:
        assert not (is_host(node) and switch.isprintable() and switch.strip())
        return
    data = tomllib.loads(to_cluster_file(whole, "h100-sxm", load_catalog()))
    assert data["topology"]["nodes"] == [{"name": node, "rails": [{"switch": switch}]}]


@pytest.mark.parametrize(
    "table",
    [
        "nodes = [{name = 'a'}, {name = 'a'}]",
        "nodes = [{name = ''}]",
        "nodes = [{name = 'a', rails = [{switch = 'l', bytes_per_second = -1.0}]}]",
        "nodes = [{name = 'a', rails = [{switch = 'l', bytes_per_second = nan}]}]",
        "nodes = [{name = 'a', devices = 0}]",
        "nodes = [{nam = 'a'}]",
        "nodes = 3",
    ],
)
def test_a_cluster_file_with_a_wrong_topology_is_one_line(table: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"accelerator = 'h100-sxm'\ngpus = 8\n[topology]\n{table}\n")
    with pytest.raises(InputError, match=r"mine\.toml"):
        find_cluster(str(path), load_catalog())


# -- hostile text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not recognised"),
        ("hello\n", "not recognised"),
        ("SwitchName=a Nodes=n[1-1000000000]\n", "more than"),
        ("SwitchName=a Nodes=n[1-2\n", "line 1"),
        ("SwitchName=a Nodse=n1\n", "nearest: nodes"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nod", "line 2"),
        ("SwitchName=a\n", "no node"),
        ("RingName=a Nodes=n[1-4]\n", "topology/ring"),
        ("BlockName=a Nodes=n1\nBlockSizes=x\n", "BlockSizes"),
        ("- topology: a\n  tree: {switches: [}\n  nodes [", "line 3"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "kubectl get nodes -o json"),
        ('{"items": [', "not JSON"),
        ('{"items": 3}', "neither"),
        ('{"items": [3]}', "metadata"),
        ('{"items": [{"metadata": {"labels": 3}}]}', "labels"),
        ('{"items": []}', "no node"),
        ('{"instances": [{"id": 3}]}', "id"),
        (json.dumps({"instances": [{"id": "a", "network_layers": ["x"] * 99}]}), "tiers"),
        ("[" * 100_000, "not recognised"),
        ('{"items":' + "[" * 100_000, "JSON"),
        (FABRIC.partition("lmc 0 ")[0] + 'lmc 0\n[1]\t"S-0ff', "cut off"),
        (V100[:200], "cut off"),
        (V100.replace("NV1\tNV2", "NV1NV2", 1), "no kind of link"),
        ("GPU0 GPU0\nGPU0 X X\n", "columns"),
        ("node,leaf\n", "no rows"),
        ("node,leaf\nn1\n", "truncated"),
        ("node;leaf\nn1;l1\n", "semicolons"),
        ("node,nic,leaf,speed\nn1,a,l,fast\n", "line 2"),
        ("node,nic,leaf,speed\nn1,a,l,0\n", "speed"),
        ("node,leaf\n,l1\n", "no node"),
    ],
)
def test_text_that_cannot_be_read_is_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match="it") as caught:
        read(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_long_chains_and_crowded_trees_are_refused_or_read_in_time() -> None:
    start = time.process_time()
    chain = "SwitchName=s0 Nodes=n1\n" + "".join(
        f"SwitchName=s{i + 1} Switches=s{i}\n" for i in range(20_000)
    )
    with pytest.raises(InputError, match="levels"):
        read(chain)
    above = "SwitchName=s0 Nodes=n1 Switches=s1\n" + chain.partition("\n")[2]
    assert "cycle" in rules(read(above))
    with pytest.raises(InputError, match="times"):
        read("SwitchName=a Nodes=n[1-100000]\n" * 5)
    assert time.process_time() - start < 20


def test_a_chain_is_refused_before_its_switches_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> None:
        raise AssertionError("built first")

    monkeypatch.setattr(slurm, "_switch", build)
    chain = "".join(f"SwitchName=s{i + 1} Switches=s{i}\n" for i in range(20))
    with pytest.raises(InputError, match="levels of switches; at most 16"):
        read("SwitchName=s0 Nodes=n1\n" + chain)
    monkeypatch.setattr(slurm, "NODES", 10)
    with pytest.raises(InputError, match="more than 20 lines"):
        read("SwitchName=s0 Nodes=n1\n" + chain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "line",
    [
        "# " + "=a" * 100_000 + " x",
        "key: " + " " * 100_000 + "x",
        '"' * 100_000,
        "[1]" * 100_000,
        "\t" * 100_000,
        "GPU0 " * 50_000,
        '[1]\t"S-0"[1] # "a"' + " 4x" * 50_000,
        "[" * 100_000,
    ],
)
def test_long_lines_cost_time_in_proportion(line: str, kind: str) -> None:
    start = time.process_time()
    for text in (line, "SwitchName=a Nodes=n1\n" + line, 'Switch 1 "S-0" # "a"\n' + line):
        with contextlib.suppress(InputError):
            read_topology(text, "it", kind)
    assert time.process_time() - start < 5


PIECES = [
    TREE,
    BLOCKS,
    YAML,
    TOPOGRAPH_JSON,
    FABRIC,
    V100,
    PCIE,
    CABLES,
    PATHS,
    kubernetes(("n", {})),
]


@given(st.sampled_from(PIECES), st.data())
def test_changed_text_is_read_or_refused_and_nothing_else(text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text)))
    width = data.draw(st.integers(0, 30))
    filling = data.draw(
        st.text(max_size=10) | st.sampled_from(["[", '"', "\t", ",", "[1-9", "\n", "S-0"])
    )
    kind = data.draw(st.sampled_from([None, None, *KINDS]))
    try:
        topology = read_topology(text[:place] + filling + text[place + width :], "it", kind)
        check(merge([topology, read(TREE)]))
        to_cluster_file(topology, "h100-sxm", load_catalog())
    except ComputeFlowError as error:
        assert str(error)


@given(st.text(max_size=200), st.sampled_from([*KINDS]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        read_topology(text, "it", kind)
    except InputError as error:
        assert "it" in str(error)


# -- the command


def importing(*arguments: str) -> int:
    return run(["cluster", "import", *arguments])


def test_the_command_merges_writes_and_predict_runs_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "mine.toml")
    files = [str(EXAMPLES / name) for name in ("ibnetdiscover.txt", "topo.txt")]
    assert importing(*files, "--accelerator", "h100-sxm", "--to", target) == 0
    job = ["llama-3.1-8b", "--on", target, "--global-batch", "32", "--seq-len", "4096"]
    assert run(["predict", *job]) == 0
    assert "32 GPUs" in capsys.readouterr().out
    assert importing(*files, "--accelerator", "h100-sxm", "--to", target) == 0
    Path(target).write_text("# edited\n")
    assert importing(*files, "--accelerator", "h100-sxm", "--to", target) == 2
    assert "--force" in capsys.readouterr().err
    assert importing(*files, "--accelerator", "h100-sxm", "--to", target, "--force") == 0


def test_check_exits_3_and_lists_problems(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "ibnetdiscover.txt")
    assert importing(file) == 0
    assert importing(file, "--check") == 3
    assert "link-speed" in capsys.readouterr().out
    assert importing(str(EXAMPLES / "topology.conf"), "--check") == 0
    assert "No problems" in capsys.readouterr().out


def test_json_carries_the_topology_and_its_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert importing(str(EXAMPLES / "ibnetdiscover.txt"), "--check", "-o", "json") == 3
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "computeflow.topology/1"
    assert [problem["rule"] for problem in shown["problems"]] == ["link-speed"]
    assert len(shown["topology"]["nodes"]) == 4
    assert shown["levels"][0]["nodes"] == [4, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-file"],
        [str(EXAMPLES)],
        [str(EXAMPLES / "topology.conf"), "--to", "x.toml"],
        [str(EXAMPLES / "topology.conf"), "--accelerator", "h100-sxm", "--to", "x.txt"],
        [str(EXAMPLES / "topology.conf"), "--accelerator", "h1000"],
        [str(EXAMPLES / "topology.conf"), "--kind", "nodes-json"],
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert importing(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


# -- public data


@pytest.mark.shared
def test_the_recorded_hdr_fabric_has_three_levels(data_folder: Path) -> None:
    path = data_folder / "recordings" / "node_health" / "ib_traffic_topo_aware_ibnetdiscover.txt"
    fabric = read(path.read_text())
    assert (len(fabric.nodes), len(fabric.switches), fabric.depth) == (10, 8, 3)
    assert fabric.oversubscription == {1: 2.0, 2: 3.0}
    assert fabric.distance("RMD701091901003", "RMD701091901019") == 2
    assert fabric.distance("RMD701091901003", "RMD701091901053") == 3
    assert fabric.distance("RMD701091901003", "RMD701091906003") == 4
    assert check(fabric) == []


@pytest.mark.shared
def test_the_a100_clusters_cabling_has_five_groups_of_four_leaves(data_folder: Path) -> None:
    path = data_folder / "cluster" / "zhejianglab_a100_cluster_topology.csv"
    cables = read(path.read_text())
    assert (len(cables.nodes), len(cables.switches)) == (253, 20)
    assert {len(node.paths) for node in cables.nodes} == {4}
    assert len(set(cables.groups[1])) == 5
    assert rules(cables) == {"nameless-nic", "link-speed"}
    shape = find_shape(cables, "a100-80-sxm", load_catalog())
    assert (shape.gpus, shape.nic_bytes_per_second, shape.pods) == (2024, 12.5e9, ((480, 1.0),))


@pytest.mark.shared
def test_the_lingjun_map_is_a_tree_of_three_levels(data_folder: Path) -> None:
    paths = read((data_folder / "cluster" / "alibaba_lingjun_topo.csv").read_text())
    assert len(paths.nodes) == 847
    assert [len(set(groups)) for groups in paths.groups] == [847, 119, 3, 1]
    assert check(paths) == []
