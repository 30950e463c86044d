"""Files that are read whole: what is no text, what each language refuses, and that time is linear."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.cluster.topology.hostlist import expand
from computeflow.cluster.topology.topology_reader import read_topology
from computeflow.errors import InputError
from computeflow.files import parsing, reading
from computeflow.files.limits import DEPTH, KEY_CHARACTERS, NODES
from computeflow.files.parsing import parse_csv, parse_json, parse_toml, parse_yaml
from computeflow.files.reading import read_text
from computeflow.planning.exports.config_reader import read_file
from computeflow.prediction.published_runs import PACKAGED, read_cases
from computeflow.units import parse

FACTS = load_catalog()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x28\xb5\x2f\xfd rest", "zstd -d"),
        (lzma.compress(b"a = 1"), "xz -d"),
        (b"BZh91AY", "bzip2 -d"),
        (b"PK\x03\x04\x14", "spreadsheet"),
        (b"SQLite format 3\x00", "SQLite"),
        ("a = 1".encode("utf-16"), "UTF-16, not UTF-8"),
        ("a = 1".encode("utf-16-le"), "UTF-16, not UTF-8"),
        ("a = 1".encode("utf-32"), "UTF-32, not UTF-8"),
        (b"a = 1\x00\x07", "zero bytes"),
        (b"a = '\xff'", "byte 5"),
        (b"\x1f\x8b\x08 no gzip", "damaged"),
        (gzip.compress(b"a = 1", mtime=0)[:-9], "cut off"),
        (gzip.compress(b"a" * 257 + b"ustar", mtime=0), "tar archive"),
    ],
)
def test_what_is_no_text_is_named_with_a_remedy(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_text(path)


def test_gzip_is_read_and_bounded_by_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a\r\n1\r\n", mtime=0))
    assert read_text(path) == "a\n1\n"
    monkeypatch.setattr(reading, "TEXT_BYTES", 1 << 20)
    path.write_bytes(gzip.compress(b"0" * (2 << 20), mtime=0))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_text(path)


def test_a_pipe_a_folder_a_device_and_an_odd_name_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "a pipe"),
        (tmp_path, "a folder"),
        (Path("/dev/zero"), "a device"),
        (Path("a\0b"), "not the name"),
        (tmp_path / "\x1b[31m", r"\\x1b\[31m: No such file"),
    ):
        with pytest.raises(InputError, match=said):
            read_text(path)


REFUSED = [
    (parse_json, '{"a": 1, "a": 2}', "the key a appears twice"),
    (parse_json, '{"a": [1, {"b": NaN}]}', r"a\[1\]\.b: nan is not a finite number"),
    (parse_json, '{"a": 1e999}', "a: inf is not a finite number"),
    (parse_json, "1" * 5000, "too large a number"),
    (parse_json, f'{{"a": {2**64}}}', "a: too large a number"),
    (parse_json, "[" * 70 + "]" * 70, f"more than {DEPTH} levels"),
    (parse_json, "[" * 100_000, "JSON nested too deeply"),
    (parse_json, '{"a": "\\ud800"}', "half a character"),
    (parse_json, '{"\\u001b[31m": Infinity}', r"\\x1b\[31m: inf"),
    (parse_json, f'{{"{"k" * 300}": 1}}', f"300 characters; at most {KEY_CHARACTERS}"),
    (parse_toml, "price = inf", "price: inf is not a finite number"),
    (parse_toml, "a = 1\na = 2", "not TOML"),
    (parse_toml, "a = " + "9" * 5000, "too large a number"),
    (parse_toml, ".".join("a" * 50_000) + " = 1", f"more than {DEPTH} dots"),
    (parse_toml, "[x" + ' . "x"' * 50_000 + "]", f"more than {DEPTH} dots"),
    (parse_toml, "x = 0." + "7" * 2_000_001, "2,000,003 characters"),
    (parse_yaml, "a: 1\nb: 2\na: 3", "the key a appears twice"),
    (parse_yaml, "1: a\n1: b", "the key 1 appears twice"),
    (parse_yaml, "a: .nan", "a: nan is not a finite number"),
    (parse_yaml, f"{2**64}: a", "too large a number"),
    (parse_yaml, "a: !!int 1:1", "tags"),
    (parse_yaml, "a: !!timestamp x", "tags"),
    (parse_yaml, "a: &b 1\nc: *b", "aliases"),
    (parse_yaml, "? [1]\n: 2", "line 1: found unhashable key"),
    (parse_yaml, "[" * 70, f"more than {DEPTH} levels"),
    (parse_csv, "a,b,a\n1,2,3", "two columns are called 'a'"),
    (parse_csv, "a,b\n1", "line 2 has 1 of 2 columns"),
    (parse_csv, f"{'k' * 300}\n1", f"at most {KEY_CHARACTERS}"),
    (parse_csv, f"a\n{'k' * 200_000}", "line 2: field larger"),
]


@pytest.mark.parametrize(("parse_text", "text", "said"), REFUSED)
def test_each_language_refuses_in_one_line(
    parse_text: Callable[[str, str], object], text: str, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_text(text, "file")
    message = str(caught.value)
    assert message.startswith("file: ")
    assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize(
    ("parse_text", "text"),
    [
        (parse_json, "[1, 2, 3]"),
        (parse_csv, "a,b\n1,2\n3,4\n"),
        (parse_yaml, "[1, 2]"),
        (parse_toml, "a = [1, 2]\n[b.c]\n" + "# a.b" * 20),
    ],
)
def test_the_number_of_values_is_bounded(
    parse_text: Callable[[str, str], object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_text(text, "file")
    monkeypatch.setattr(parsing, "VALUES", 2)
    monkeypatch.setattr(parsing, "NAMED_VALUES", 2)
    with pytest.raises(InputError, match="more than 2 values"):
        parse_text(text, "file")


def test_dots_of_texts_and_numbers_are_no_levels() -> None:
    dots = "." * 100
    text = f"a = '{dots}'\nb = '''\n{dots}'''\nc = [{'1.5, ' * 100}]  # {dots}\n"
    assert parse_toml(text, "file")["c"] == [1.5] * 100


def test_yaml_scalars_are_those_of_the_frameworks_but_for_base_60_and_dates() -> None:
    text = "a: on\nb: no\nc: 010\nd: 1:30\ne: 2026-01-01\nf: 1_000\ng: 1:1.5\nh: null"
    assert parse_yaml(text, "file") == {
        "a": True,
        "b": False,
        "c": 8,
        "d": "1:30",
        "e": "2026-01-01",
        "f": 1000,
        "g": "1:1.5",
        "h": None,
    }


def test_infinity_may_stand_in_a_models_config_where_nobody_looks() -> None:
    assert parse_json('{"time_step_limit": [0.0, Infinity]}', "c", finite=False)


def case_with_link(n: int) -> str:
    header, row = PACKAGED.read_text().split("\n")[:2]
    return f"{header}\n{row.replace(row.split(',')[19], '1' * n)}\n"


def script(text: str) -> object:
    return read_file(f"{text}\npython x.py --micro-batch-size 1\n", "f", "megatron")


LINEAR: dict[str, tuple[Callable[[int], str], Callable[[str], object], int]] = {
    "toml": (lambda n: "".join(f"a{i}.b = 1\n" for i in range(n)), lambda t: parse_toml(t, "f"), 2000),
    "json": (lambda n: '{"a": [1.5]},' * n, lambda t: parse_json(f"[{t}1]", "f"), 4000),
    "json keys": (lambda n: "{" + ",".join(f'"{i}":1' for i in range(n)) + "}",
                  lambda t: parse_json(t, "f"), 10_000),
    "yaml keys": (lambda n: "".join(f"a{i}: 1\n" for i in range(n)),
                  lambda t: parse_yaml(t, "f"), 1500),
    "yaml base 60": (lambda n: "a: 1" + ":1" * n, lambda t: parse_yaml(t, "f"), 50_000),
    "csv columns": (lambda n: ",".join(map(str, range(n))) + "\n" + "1," * (n - 1) + "1",
                    lambda t: parse_csv(t, "f"), 10_000),
    "cell of a case": (case_with_link, lambda t: read_cases(t, FACTS), 20_000),
    "assignments": (lambda n: "A=1 " * n, script, 3000),
    "brackets": (lambda n: "( " * n, script, 5000),
    "negations": (lambda n: f"if [ {'! ' * n} x ]; then A=1; fi", script, 5000),
    "arrays": (lambda n: "A=(" * n, script, 5000),
    "patterns": (lambda n: f"case x in {'|'.join(f'a{i}*' for i in range(n))}) A=1;; esac",
                 script, 1500),
    "quantity": (lambda n: f"1{' ' * n}{'x ' * n},", lambda t: parse(t, "bytes"), 20_000),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_time_grows_with_the_size_and_no_faster(name: str) -> None:
    make, read, size = LINEAR[name]

    def seconds(times: int) -> float:
        text = make(size * times)
        spent = []
        for _ in range(2):
            start = time.process_time()
            with contextlib.suppress(InputError):
                read(text)
            spent.append(time.process_time() - start)
        return min(spent)

    # A square would be 16 times as long, and 100 ms is what a busy machine may add.
    assert seconds(4) < 8 * seconds(1) + 0.1


def peak(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text", ["n" + "[1-99999]" * 300, "x" * 3000 + "[1-99999]", "[0-9]" * 60 + ",a"]
)
def test_host_lists_that_multiply_are_refused_before_they_are_made(text: str) -> None:
    assert peak(lambda: expand(text)) < 30 << 20


def test_values_of_a_script_that_multiply_are_refused_before_they_are_made() -> None:
    long = "A=" + "x" * 20_000
    for last in ("$A" * 20_000, f"$(({'A ' * 20_000}))"):
        assert peak(lambda last=last: script(f"{long}\nB={last}")) < 60 << 20  # type: ignore[misc]


def test_a_line_of_slurm_says_a_thing_once() -> None:
    for text in (
        "SwitchName=a Nodes=n1 Nodes=n2\n",
        "- topology: t\n  tree:\n  - switch: a\n    nodes: n1\n    nodes: n2\n",
    ):
        with pytest.raises(InputError, match="odes appears twice"):
            read_topology(text, "f")


def test_one_node_has_so_many_rails() -> None:
    rows = "".join(f"n,nic{i},leaf{i}\n" for i in range(300))
    with pytest.raises(InputError, match="300 rails; at most 256"):
        read_topology(f"node,nic,leaf\n{rows}", "f")
    assert len(expand("n[1-300]")) <= NODES


def test_a_table_of_measured_runs_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(PACKAGED.read_text()[:1500])
    assert run(["validate", "--cases", str(path)]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["ledger", "FILE"],
        ["validate", "--cases", "FILE"],
        ["calibrate", "FILE"],
        ["cluster", "import", "FILE"],
        ["catalog", "import", "FILE"],
        ["catalog", "list", "--catalog", "FILE"],
        ["compare-sites", "--sites", "FILE"],
        ["check", "FILE", "--on", "h100-sxm:8"],
        ["plan", "--from", "FILE", "--on", "h100-sxm:8"],
        ["predict", "FILE", "--on", "h100-sxm:8", "--global-batch", "8", "--seq-len", "128"],
    ],
)
def test_careless_files_end_every_command_in_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, content in enumerate(
        (
            b"",
            b"{",
            b"[[[",
            b"\x00",
            b"a\n",
            b"null",
            b'{"schema": {}, "model_type": []}',
            b"a = nan",
            "a: 1".encode("utf-16"),
            b"\x1b[31m = 1\n",
            b'{"items": [[]], "instances": {}}',
        )
    ):
        for suffix in ("toml", "json", "csv"):
            path = tmp_path / f"{number}.{suffix}"
            path.write_bytes(content)
            assert run([str(path) if word == "FILE" else word for word in arguments]) == 2
            assert capsys.readouterr().err.count("\n") == 1
