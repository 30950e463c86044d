"""Every option of every command that writes: inputs stay, edits stay, the same twice is fine."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import computeflow as cf
from computeflow.answers.checking import outputs
from computeflow.cli import run
from computeflow.cli.command import AnswerCommand
from computeflow.errors import InputError
from test_front_door import COMMANDS

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[1] / "examples" / "cluster"
JOB = ["llama-3.1-8b", "--on", "h100-sxm:8", "--global-batch", "32", "--seq-len", "4096"]
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": True,
}
PRICES = "instance,accelerator,gpus,usd_per_hour\nlab-8,h100-sxm,8,16.0\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input of each kind; commands run in it."""
    shutil.copy(DATA / "h200_traces" / "healthy-wide.json.gz", tmp_path / "trace.json.gz")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "prices.csv").write_text(PRICES)
    (tmp_path / "run.sqlite").write_text("no database")
    (tmp_path / "run.sqlite-wal").write_text("its log")
    shutil.copy(tmp_path / "trace.json.gz", tmp_path / "copy.json.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRITING = {
    "audit --html": ["audit", "trace.json.gz", "--html", "{out}.html"],
    "audit --perfetto": ["audit", "trace.json.gz", "--perfetto", "{out}.json.gz"],
    "audit --calibrate": ["audit", "trace.json.gz", "--calibrate", "{out}.json"],
    "predict --html": ["predict", *JOB, "--html", "{out}.html"],
    "cluster import --to": ["cluster", "import", str(EXAMPLES / "ibnetdiscover.txt"),
                            "--accelerator", "h100-sxm", "--to", "{out}.toml"],
    "catalog import --to": ["catalog", "import", "prices.csv", "--provider", "house",
                            "--to", "{out}.csv"],
}  # fmt: skip
"""Commands that give the same content twice, and the file that they write."""


def words(name: str, out: str) -> list[str]:
    return [word.replace("{out}", out) for word in WRITING[name]]


def target(arguments: list[str]) -> Path:
    return Path(arguments[-1])


@pytest.mark.parametrize("name", WRITING)
def test_an_output_is_kept_unless_it_is_the_same_or_forced(
    name: str, inputs: Path, capsys: Capture
) -> None:
    command = words(name, "out")
    assert run(command) == 0
    first = target(command).read_bytes()
    assert first
    assert run(command) == 0, "the same content once more"
    target(command).write_text("edited")
    capsys.readouterr()
    assert run(command) == 2
    said = capsys.readouterr().err
    assert "--force" in said
    assert said.count("\n") == 1
    assert target(command).read_text() == "edited"
    assert run([*command, "--force"]) == 0
    assert target(command).read_bytes() == first
    assert not list(inputs.glob(".computeflow*"))


OVER_INPUTS = [
    ["audit", "trace.json.gz", "--html", "trace.json.gz"],
    ["audit", "trace.json.gz", "--html", "./sub/../trace.json.gz"],
    ["audit", ".", "--html", "trace.json.gz"],
    ["audit", ".", "--perfetto", "trace.json.gz"],
    ["audit", "trace.json.gz", "--calibrate", "trace.json.gz"],
    ["audit", "run.sqlite", "--html", "run.sqlite-wal"],
    ["audit", ".", "--html", "copy.json.gz"],
    ["audit", "trace.json.gz", "--expect", "config.json", "--html", "config.json"],
    ["predict", "config.json", *JOB[1:], "--html", "config.json"],
    ["plan", "config.json", *JOB[1:], "--html", "config.json"],
    ["calibrate", "prices.csv", "--to", "prices.csv"],
    ["catalog", "import", "prices.csv", "--provider", "house", "--to", "prices.csv"],
    ["claims", "--catalog", "prices.csv", "--page", "prices.csv"],
    ["cluster", "import", "prices.csv", "--accelerator", "h100-sxm", "--to", "prices.csv"],
]  # fmt: skip


@pytest.mark.parametrize("command", OVER_INPUTS, ids=lambda words: " ".join(words))
def test_an_input_is_never_written_over(command: list[str], inputs: Path, capsys: Capture) -> None:
    (inputs / "sub").mkdir()
    before = {path: path.read_bytes() for path in inputs.iterdir() if path.is_file()}
    for force in ([], ["--force"]):
        assert run([*command, *force]) == 2
        assert "is an input of this command" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in inputs.iterdir() if path.is_file()} == before


def test_an_input_is_known_from_another_folder_and_one_s_own_rows_are_inputs(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Path(os.environ["COMPUTEFLOW_CONFIG"]) / "catalog" / "mine.toml"
    rows.parent.mkdir(parents=True)
    rows.write_text("# computeflow: mine\n")
    answer = cf.audit("trace.json.gz")
    monkeypatch.chdir("/")
    for target in (inputs / "trace.json.gz", rows):
        with pytest.raises(InputError, match="is an input of this command"):
            answer.save_html(target, force=True)
    for nothing in (None, 5):
        with pytest.raises(InputError, match="names no file"):
            answer.save_html(nothing)  # type: ignore[arg-type]


def test_a_report_in_a_folder_that_is_read_is_written_again(inputs: Path) -> None:
    command = ["audit", ".", "--html", "report.html"]
    assert run(command) == 0
    assert run([*command, "--price", "2", "--force"]) == 0


def test_a_report_has_nothing_that_a_terminal_obeys(inputs: Path) -> None:
    name = "a\x1b[31m\x9bred.json.gz"
    (inputs / "trace.json.gz").rename(inputs / name)
    assert run(["audit", name, "--html", "report.html"]) == 0
    text = (inputs / "report.html").read_text()
    assert "\\x1b[31m" in text
    assert not any(letter in text for letter in "\x1b\x9b")


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "trace.json.gz", "--perfetto", "same", "--calibrate", "./same"],
        ["audit", "trace.json.gz", "--perfetto", "same", "--html", "same"],
    ],
)
def test_two_outputs_of_one_name_are_refused(
    command: list[str], inputs: Path, capsys: Capture
) -> None:
    assert run([*command, "--force"]) == 2
    assert "is also written by --perfetto" in capsys.readouterr().err
    assert not (inputs / "same").exists()


def test_an_output_inside_of_an_exported_folder_is_refused(inputs: Path, capsys: Capture) -> None:
    for html in ("ex/slurm/job.sbatch", "ex/report.html"):
        assert run(["plan", *JOB, "--export", "ex", "--html", html, "--force"]) == 2
        assert "lies in the folder of --export" in capsys.readouterr().err
    assert not (inputs / "ex").exists()


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """Let no file grow beyond `limit` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITING)
def test_a_disk_that_takes_no_more_leaves_what_was_there(
    name: str, inputs: Path, capsys: Capture
) -> None:
    command = [*words(name, "out"), "--force"]
    target(command[:-1]).write_text("old")
    capsys.readouterr()
    with small_files(30):
        code = run(command)
    said = capsys.readouterr().err
    assert code == 1
    assert "File too large" in said
    assert target(command[:-1]).read_text() == "old"
    assert not list(inputs.glob(".computeflow*"))


def test_an_export_keeps_what_somebody_edited(inputs: Path, capsys: Capture) -> None:
    command = ["plan", *JOB, "--export", "out"]
    assert run(command) == 0
    files = {path: path.read_text() for path in (inputs / "out").rglob("*") if path.is_file()}
    assert len(files) > 10
    assert run(command) == 0
    edited = min(files)
    edited.write_text("edited")
    assert run(command) == 2
    assert "--force" in capsys.readouterr().err
    assert edited.read_text() == "edited"
    with small_files(30):
        assert run([*command, "--force"]) == 1
    assert edited.read_text() == "edited"
    assert run([*command, "--force"]) == 0
    assert {path: path.read_text() for path in files} == files


@pytest.mark.parametrize(
    "option", [["plan", *JOB, "--export", ""], ["predict", *JOB, "--html", ""]]
)
def test_an_output_without_a_name_is_refused(
    option: list[str], inputs: Path, capsys: Capture
) -> None:
    assert run(option) == 2
    assert "names no file" in capsys.readouterr().err


def test_every_command_that_writes_can_be_forced() -> None:
    """Every keyword that names a new file is known as one, so that it is checked."""
    writing = {"to", "page", "export", "perfetto", "calibrate", "write_calibration"}
    for command in COMMANDS.values():
        assert isinstance(command, AnswerCommand)
        names = {parameter.name for parameter in command.params}
        function = command.library_function()
        found = set(outputs(getattr(function, "func", function)))
        assert found == names & writing - {"html"}, command.name
        assert not (found or "html" in names) or "force" in names, command.name
