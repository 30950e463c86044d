"""Whatever a model, a host or a file is called: its name is refused, or it is only a name.

Every file that is written is parsed by the parser of its language and compared with the file of a
plainly named plan: the name is where it belongs, and nothing else differs. Some are run.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from computeflow.answers.catalogs import import_prices
from computeflow.answers.topologies import import_topology
from computeflow.catalog import Catalog, find_model, load_catalog
from computeflow.catalog.price_lists import import_prices as read_prices
from computeflow.catalog.price_lists import write_offers
from computeflow.cluster import find_cluster
from computeflow.cluster.placement import Placement
from computeflow.cluster.topology import read_topology, to_cluster_file
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.wiring import wiring_of
from computeflow.comparison.own_sites import own_offerings
from computeflow.errors import InputError
from computeflow.files.languages import (
    comment,
    to_markdown,
    to_python,
    to_toml,
    to_yaml,
    to_yaml_and_json,
)
from computeflow.files.names import is_host
from computeflow.planning.exports import read_file, setup_of
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.exports.launchers import LaunchSettings, launchers
from computeflow.planning.placement import launch
from computeflow.prediction.stack import find_stack
from computeflow.simulation.site_scenarios import load_sites
from computeflow.workload import Job, Layout

FACTS = load_catalog()
PLAIN = "plain"
HOSTILE = [
    'x"; __import__("os").system("touch pwned") #', "x' + __import__('os').system('id') + '",
    'x", "y": __import__("os").system("touch pwned"), "z": "', "\\", "'''", '"""', "*/", "<!-- -->",
    "coding: utf_7 +AAo-import os+AAo-", "-*- coding: rot13 -*-", "$(touch pwned)", "`touch pwned`",
    "x; touch pwned", "x && touch pwned", "'", '"', "{name}", "{0}", "%s", "#", "# x", "---", "]", "}",
    "null", "yes", "1e5", "!!python/object/apply:os.system [id]", "&a", "*a", "[[model]]", "😀", "é",
    "def parallelize(", "--micro-batch-size", "nemo llm pretrain", "local_batch_size", "SBATCH -N 9",
    "../../etc/passwd", "/etc/passwd", "~", "=1+1", "@x", "-x", "<script>alert(1)</script>", "a|b",
]  # fmt: skip
"""Hostile names that can be printed, which are allowed."""
BROKEN = [
    "", " ", "a\nimport os", "a\r\nb", "a\x1b[2J", "a\x00b", "a\x07", "a\x7f", "a\x85b", "a\u2028b",
    "a\u2029b", "a\u202eb", "\ud800", "\ufeffa", "a\tb", "x" * 201, "a\x0c", "a\U000e0001",
]  # fmt: skip
"""Texts that are refused as names."""
names = st.sampled_from(HOSTILE) | st.text(max_size=20) | st.text(max_size=6).map("x {}".format)
texts = st.sampled_from([*HOSTILE, *BROKEN]) | st.text(max_size=12)
COMMAND = ["python", "train.py", *HOSTILE]
HOSTS = ("node-0", "node-1", "node-2", "node-3")


def a_setup(name: str = PLAIN) -> Setup:
    cluster = find_cluster("h100-sxm:32", FACTS)
    model = replace(FACTS.models["llama-3.1-8b"], name=name)
    return Setup(
        job=Job(model=model, global_batch=256, seq_len=8192),
        cluster=cluster,
        layout=Layout(gpus=32, sharding="fsdp"),
        stack=find_stack("torchtitan"),
        tokens=1e12,
    )


def configurations(setup: Setup) -> dict[str, str]:
    written = [framework.write(setup) for framework in FRAMEWORKS.values()]
    return {name: text for each in written for name, text in each.files.items()}


def launch_files(setup: Setup, hosts: tuple[str, ...] = HOSTS) -> dict[str, str]:
    started = launchers(LaunchSettings(name="job", hosts=hosts)).values()
    written = [launcher.write(setup, COMMAND) for launcher in started]
    return {name: text for each in written for name, text in each.files.items()}


@cache
def exported(name: str) -> dict[str, str]:
    """Every file of every format, for a plan of a model of this name."""
    setup = a_setup(name)
    return configurations(setup) | launch_files(setup)


@cache
def plain_value(file: str) -> Any:
    return parsed(file, exported(PLAIN)[file])


def code_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def python_tree(text: str) -> str:
    """Syntax tree as Python reads a file's bytes, in whatever encoding a comment names."""
    return ast.dump(ast.parse(text.encode()))


PARSERS: dict[str, Callable[[str], Any]] = {
    ".py": python_tree,
    ".toml": tomllib.loads,
    ".yaml": lambda text: yaml.load(text, yaml.CSafeLoader),
    ".yml": lambda text: yaml.load(text, yaml.CSafeLoader),
    ".json": json.loads,
    ".args": lambda text: [shlex.split(line) for line in code_lines(text)],
    ".sh": code_lines,
    ".sbatch": code_lines,
    ".txt": lambda text: len(text.splitlines()),
}


def parsed(file: str, text: str) -> Any:
    return PARSERS[Path(file).suffix](text)


def renamed(value: Any, name: str) -> Any:
    """A parser's result for the plain plan, with its name changed."""
    if isinstance(value, dict):
        return {key: renamed(part, name) for key, part in value.items()}
    if isinstance(value, list):
        return [renamed(part, name) for part in value]
    if isinstance(value, str) and value.startswith("Module("):
        return value.replace(f"Constant(value={PLAIN!r})", f"Constant(value={name!r})")
    return name if value == PLAIN else f"llama/{name}" if value == f"llama/{PLAIN}" else value


def test_every_framework_and_launcher_is_looked_at() -> None:
    assert len(exported(PLAIN)) == 18
    assert {Path(name).suffix for name in exported(PLAIN)} == PARSERS.keys()


@given(names)
def test_a_models_name_is_refused_or_a_value_of_every_file(name: str) -> None:
    try:
        files = exported(name)
    except InputError:
        assert not name.isprintable() or not name.strip()
        return
    for file, text in files.items():
        assert parsed(file, text) == renamed(plain_value(file), name), file
        assert text.count("\n") == exported(PLAIN)[file].count("\n"), file


def test_a_models_name_does_not_change_how_a_file_is_read() -> None:
    """A name may look like another format; with the format given, the file reads the same."""
    for each in FRAMEWORKS.values():
        file = next(iter(each.write(a_setup()).files))
        plain = read_file(exported(PLAIN)[file], file, each.name)
        for name in HOSTILE:
            text = exported(name)[file]
            found = read_file(text, file, each.name)
            assert found == replace(plain, job=renamed(plain.job, name)), (file, name)
            try:
                assert read_file(text, file) == found
            except InputError as error:
                assert "give --format" in str(error)
                assert file in ("fsdp2.py", "torchtitan.toml"), "they alone state it, as a value"


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_name_is_refused_wherever_a_name_enters(name: str) -> None:
    model, device = FACTS.models["llama-3.1-8b"], FACTS.accelerators["h100-sxm"]
    offer, provider = next(iter(FACTS.offers)), next(iter(FACTS.providers))
    named: list[Any] = [model, device, offer, provider, load_sites().site[0]]
    fields: list[tuple[Any, str]] = [(row, "name") for row in named]
    if name:
        fields += [(model, "family"), (device, "vendor")]
        fields += [(offer, field) for field in ("region", "provider", "instance", "commitment")]
    for row, field in fields:
        with pytest.raises(InputError):
            replace(row, **{field: name})
    with pytest.raises(InputError):
        replace(model, aliases=(name,))
    with pytest.raises(InputError):
        LaunchSettings(name=name)
    if not is_host(name):
        with pytest.raises(InputError):
            LaunchSettings(hosts=(name,))


def test_a_site_and_a_catalog_file_with_a_broken_name_are_one_line(tmp_path: Path) -> None:
    row = 'source = "s"\nas_of = "2026"\naccelerator = "h100-sxm"\nusd_per_gpu_hour = 2.0\n'
    with pytest.raises(InputError, match="cannot be printed"):
        own_offerings(f'[[site]]\nname = "a\\u001b[2J"\nmost_gpus = 64\n{row}', "mine", FACTS)
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[model]]\nlike = "llama-3.1-8b"\nname = "x\\nimport os"\nsource = "s"\nas_of = "2026"\n'
    )
    with pytest.raises(InputError, match="cannot be printed"):
        find_model(FACTS, str(path))


def test_a_models_folder_gives_a_name_or_is_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    for folder, is_name in (
        ('it\'s "mine"', True),
        ("a\nimport os", False),
        ("a\x1b[2J", False),
        (os.fsdecode(b"\xff"), False),
    ):
        path = tmp_path / folder / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config))
        if is_name:
            assert find_model(FACTS, str(path)).name == folder
            continue
        with pytest.raises(InputError, match="cannot be printed") as told:
            find_model(FACTS, str(path))
        assert str(told.value).isprintable()


def test_a_file_that_names_a_file_as_its_model_does_not_have_it_read(tmp_path: Path) -> None:
    job = {"model": str(tmp_path / "secret.json"), "global_batch": 8, "seq_len": 4096}
    reading = ConfigReading(format="fsdp2", job=job)
    with pytest.raises(InputError, match="give --model"):
        setup_of(reading, find_cluster("h100-sxm:8", FACTS), {}, FACTS)


hosts = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True) | texts
TOPOLOGIES: dict[str, Callable[[str], str]] = {
    "slurm": lambda host: f"SwitchName=leaf Nodes={host},other\n",
    "csv": lambda host: _csv([["node", "leaf"], [host, "leaf"], ["other", "leaf"]]),
    "nodes-json": lambda host: json.dumps(
        {"instances": [{"id": name, "network_layers": ["leaf"]} for name in (host, "other")]}
    ),
}


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@given(hosts, st.sampled_from(sorted(TOPOLOGIES)), texts)
def test_a_host_of_a_topology_is_refused_or_the_same_in_every_file(
    host: str, kind: str, where: str
) -> None:
    """The cluster file and the input of launchers; `where` is the path of the source."""
    try:
        topology = read_topology(TOPOLOGIES[kind](host), where, kind)
        text = to_cluster_file(topology, "h100-sxm", FACTS)
    except (InputError, csv.Error):
        return
    read = [node.name for node in topology.nodes]
    assert all(map(is_host, read))
    data = tomllib.loads(text)
    assert data["topology"]["sources"] == [where]
    assert [node["name"] for node in data["topology"]["nodes"]] == read
    assert code_lines(text)[0] == 'accelerator = "h100-sxm"'
    wiring = wiring_of(topology, 8)
    nodes = wiring.name_order(np.arange(wiring.nodes))
    placement = Placement.of_nodes(nodes, devices=8, ranks=8 * len(read))
    order = [wiring.names[node] for node in placement.node_order.tolist()]
    lines = launch.hostfile(placement, wiring).splitlines()
    assert lines == [f"{name} slots=8" for name in order]
    assert launch.slurm_hostfile(placement, wiring).split() == [n for n in order for _ in range(8)]
    assert json.loads(launch.ray_bundles(placement, wiring)) == order
    assert list(json.loads(launch.pod_indices(placement, wiring)).values()) == order
    assert [
        line.split()[0] for line in launch.torchrun_node_ranks(placement, wiring).splitlines()
    ] == order


@settings(max_examples=40, deadline=None)
@given(hosts.map("qz9{}".format))
def test_a_host_is_refused_or_a_word_of_every_launch_file(host: str) -> None:
    try:
        files = launch_files(a_setup(), (host, *HOSTS[1:]))
    except InputError:
        assert not is_host(host)
        return
    for file, text in files.items():
        found = parsed(file, text)
        if isinstance(found, list):
            found = [line.replace(host, HOSTS[0]) for line in found]
        elif isinstance(found, str):
            found = found.replace(f"value={host!r}", f"value={HOSTS[0]!r}")
        assert found == plain_value(file), file


@pytest.mark.parametrize(
    "odd",
    [
        "a b",
        "a;b",
        "$(id)",
        "a'b",
        "a\nb",
        "-x",
        "a/b",
        "é",
        "a=b",
        "a#b",
        "a:b",
        "x" * 254,
        "",
        "../x",
    ],
)
def test_a_topology_file_with_an_odd_host_is_refused_and_the_host_named(odd: str) -> None:
    for kind in ("csv", "nodes-json"):
        with pytest.raises(InputError) as told:
            read_topology(TOPOLOGIES[kind](odd), "mine", kind)
        assert str(told.value).startswith("mine: ")
        assert str(told.value).isprintable()


def test_an_hca_whose_description_is_no_host_is_left_out_and_said() -> None:
    text = "\n".join(
        line
        for number, host in enumerate(("good", "$(id)"))
        for line in (
            f'Ca 1 "H-{number}" # "{host} mlx5_0"',
            f'[1](a) "S-0"[{number + 1}] # lid 1 lmc 0 "leaf" lid 2 4xNDR',
        )
    )
    topology = read_topology(f'Switch 2 "S-0" # "leaf"\n{text}\n', "ib")
    assert [node.name for node in topology.nodes] == ["good"]
    assert [problem.rule for problem in topology.found] == ["nameless-hca"]


def test_a_host_list_does_not_multiply_a_long_name() -> None:
    with pytest.raises(InputError, match="more than 253"):
        expand("x" * 100_000 + "[1-100000]")


def test_a_source_with_a_line_end_in_its_path_stays_in_its_comment(tmp_path: Path) -> None:
    source = tmp_path / 'a\ngpus = 9\n[x] "b\x7f'
    source.write_text("SwitchName=leaf Nodes=a[1-2]\n")
    target = tmp_path / "mine.toml"
    import_topology([source], accelerator="h100-sxm", to=target)
    data = tomllib.loads(target.read_text())
    assert set(data) == {"accelerator", "gpus", "topology", "pod"} - {"pod"} | (
        data.keys() & {"pod"}
    )
    assert data["gpus"] == 16
    assert find_cluster(str(target), FACTS).gpus == 16


PRICES = "provider,instance,gpu,count,price,region,note,source\n"


def offers_of(text: str) -> Any:
    return read_prices(
        text,
        "list",
        as_of="2026-01-01",
        source="s",
        provider=None,
        accelerators=FACTS.accelerators,
        providers=FACTS.providers,
    )


@given(texts, texts, texts, texts)
def test_an_imported_price_is_left_out_or_the_same_when_it_is_read_again(
    provider: str, instance: str, region: str, note: str
) -> None:
    row = [provider, instance, "H100 SXM", "8", "24", region, note, "their list"]
    text = PRICES + _csv([row, ["them", "good", "H100 SXM", "8", "24", "here", "", "s"]])
    try:
        found = offers_of(text)
    except InputError:
        return
    written = write_offers(found.offers)
    cells = [cell for line in csv.reader(io.StringIO(written)) for cell in line]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    assert all(cell.isprintable() for cell in cells)
    read = list(csv.DictReader(io.StringIO(written)))
    assert [(r["name"], r["note"]) for r in read] == [(o.name, o.note) for o in found.offers]


def test_prices_are_written_beside_the_others_whatever_the_list_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path / "config"))
    source = tmp_path / "a\n;b .csv"
    source.write_text(PRICES + "../../x,good,H100 SXM,8,24,here,=1+1,s\n")
    written = import_prices(source).written
    assert written.parent == tmp_path / "config" / "catalog"
    assert written.name.isascii() and written.name.isprintable() and "/" not in written.name
    assert next(o for o in Catalog([written]).offers if o.instance == "good").note == "'=1+1"


trees = st.dictionaries(
    texts,
    st.recursive(
        texts | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(texts, part, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def _any(value: Any, is_so: Callable[[Any], bool]) -> bool:
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return is_so(value) or (isinstance(value, dict | list) and any(_any(p, is_so) for p in parts))


@given(trees)
def test_toml_and_yaml_say_any_tree_that_they_can(tree: dict[str, Any]) -> None:
    if _any(tree, lambda value: isinstance(value, str) and not _encodes(value)):
        for write in (to_toml, to_yaml, to_yaml_and_json):
            with pytest.raises(InputError):
                write(tree)
        return
    assert tomllib.loads(to_toml(tree)) == tree
    if _any(tree, lambda value: isinstance(value, float) and math.isinf(value)):
        return
    for load in (yaml.CSafeLoader, yaml.SafeLoader):
        assert (yaml.load(to_yaml(tree), load) or {}) == tree
        assert yaml.load(to_yaml_and_json(tree), load) == tree
    assert json.loads(to_yaml_and_json(tree)) == tree
    assert ast.literal_eval(to_python(list(tree))) == list(tree)


def _encodes(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


@given(texts)
def test_a_comment_is_one_line_in_every_language(text: str) -> None:
    line = comment([text])
    assert line.splitlines() == [line[:-1]]
    assert line[:-1].isprintable()
    assert ast.dump(ast.parse(f"1\n{line}2\n")) == ast.dump(ast.parse("1\n2\n"))
    assert tomllib.loads(f"a = 1\n{line}b = 2\n") == {"a": 1, "b": 2}
    assert yaml.load(f"a: 1\n{line}b: 2\n", yaml.CSafeLoader) == {"a": 1, "b": 2}


@given(texts)
def test_a_cell_of_markdown_is_one_cell_and_no_html(text: str) -> None:
    cell = to_markdown(text)
    assert "<" not in cell and cell.isprintable()
    assert cell.replace("\\|", "").count("|") == 0


GUARD = """
import argparse, contextlib, functools, gc, os, socket, subprocess, sys
from unittest.mock import MagicMock

for name in ("torch", "torch.distributed", "torch.nn", "torch.nn.functional", "torch.nn.parallel",
             "torch.distributed.device_mesh", "torch.distributed.fsdp", "torch.utils.checkpoint",
             "ray", "ray.train", "ray.train.torch"):
    sys.modules[name] = MagicMock()

def refuse(event, args):
    writes = event == "open" and (isinstance(args[1], str) and args[1] != "r" and args[1] != "rb")
    if writes or event in ("import", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn",
                           "os.remove", "os.rename", "os.mkdir", "socket.connect", "os.fork"):
        print("caught", event, args[:1], flush=True)
        os._exit(9)

files = {path: open(path, "rb").read() for path in sys.argv[1:]}
sys.addaudithook(refuse)
for path, source in files.items():
    exec(compile(source, path, "exec"), {"__name__": "exported"})
print("quiet")
"""


def test_exported_python_does_nothing_beside_what_it_is_for(tmp_path: Path) -> None:
    paths = []
    for number, name in enumerate(HOSTILE):
        for file, text in exported(name).items():
            if file.endswith(".py"):
                paths.append(tmp_path / f"{number}_{file}")
                paths[-1].write_text(text)
    told = subprocess.run(
        [sys.executable, "-c", GUARD, *map(str, paths)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (told.stdout, told.returncode) == ("quiet\n", 0), told.stderr[-500:]
    assert {path for path in tmp_path.iterdir() if path.is_file()} == set(paths)


STUB = '#!/bin/bash\nprintf "%s\\0" "$@" > "$TOLD"\n'


def test_exported_scripts_write_only_where_they_are_run(tmp_path: Path) -> None:
    """Programs only record their arguments; all names are in one run of each script."""
    programs, scratch = tmp_path / "bin", tmp_path / "scratch"
    programs.mkdir()
    for name in ("torchrun", "srun", "mpirun", "ray", "scontrol"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    env = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "TOLD": str(tmp_path / "told"),
        "NODE_NAME": "node-0",
        "TMPDIR": str(tmp_path / "tmp"),
        "HOME": str(tmp_path / "home"),
        "SLURM_JOB_NODELIST": "x",
    }
    for folder in (scratch, tmp_path / "tmp", tmp_path / "home"):
        folder.mkdir()
    files = launch_files(a_setup("$(touch pwned) `touch pwned` '; touch pwned #"))
    for file, text in files.items():
        if not file.endswith((".sh", ".sbatch")):
            continue
        done = subprocess.run(
            ["bash"], input=text.encode(), env=env, cwd=scratch, capture_output=True
        )
        assert done.returncode == 0, (file, done.stderr)
        words = (tmp_path / "told").read_bytes().decode().split("\0")[:-1]
        if file != "ray_submit.sh":
            assert words[-len(COMMAND) :] == COMMAND, file
    assert {path.name for path in scratch.iterdir()} == {"flight-records"}
    assert not list((tmp_path / "home").iterdir())
