"""`computeflow catalog` and `doctor` as a user meets them: where options stand, files, imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from computeflow.catalog.own_price_list import HEADERS
from computeflow.cli import run
from computeflow.cli.app import app

Capture = pytest.CaptureFixture[str]
LAB = """
[[accelerator]]
name = "h100-lab"
like = "H100"
tdp_watts = 550
source = "nvidia-smi on our nodes"
as_of = "2026-10-01"
"""
PRICES = "instance,gpu,count,region,price\nlab-8,H100-SXM,8,basement,16.0\n"


def answer(capsys: Capture, *arguments: str) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


def data(capsys: Capture, *arguments: str) -> dict[str, Any]:
    found = json.loads(answer(capsys, *arguments))
    assert isinstance(found, dict)
    return found


def failure(capsys: Capture, *arguments: str) -> str:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def completions(words: str) -> list[str]:
    """Completions that a shell offers at the end of `words`."""
    *before, last = words.split(" ")
    found = ShellComplete(app, {}, "computeflow", "_COMPUTEFLOW_COMPLETE").get_completions(
        before, last
    )
    return [item.type if item.type != "plain" else item.value for item in found]


def test_the_overview_is_json_too(capsys: Capture, tmp_path: Path) -> None:
    mine = written(tmp_path / "lab.toml", LAB)
    plain = data(capsys, "catalog", "-o", "json")
    assert (set(plain), plain["files"]) == ({"schema", "counts", "files"}, [])
    more = data(capsys, "catalog", "--catalog", mine, "-o", "json")
    assert more["counts"]["accelerators"] == plain["counts"]["accelerators"] + 1
    assert more["files"] == [mine]


@pytest.mark.parametrize("name", ["h100-lab", "accelerators h100-lab", "accelerator h100-lab"])
def test_options_may_stand_before_the_name_or_after_it(
    name: str, capsys: Capture, tmp_path: Path
) -> None:
    options = ["--catalog", written(tmp_path / "lab.toml", LAB), "-o", "json"]
    before = data(capsys, "catalog", *options, *name.split())
    assert before == data(capsys, "catalog", *name.split(), *options)
    assert before["rows"][0]["tdp_watts"] == 550


def test_an_option_after_the_name_wins_and_files_add_up(capsys: Capture, tmp_path: Path) -> None:
    one = written(tmp_path / "one.toml", LAB)
    two = written(tmp_path / "two.toml", LAB.replace("h100-lab", "h100-den").replace("550", "400"))
    options = ["catalog", "-o", "json", "--catalog", one, "accelerators", "--catalog", two]
    names = [row["name"] for row in data(capsys, *options)["rows"]]
    assert names[-2:] == ["h100-lab", "h100-den"]
    assert answer(capsys, *options, "-o", "table").startswith("56 of 56 rows")


@pytest.mark.parametrize("group", ["accelerators", "sites", "models", "offers"])
def test_json_lists_are_rows_that_each_say_their_kind(group: str, capsys: Capture) -> None:
    found = data(capsys, "catalog", group, "-o", "json")
    assert set(found) == {"schema", "rows", "not_shown"}
    kinds = {row["kind"] for row in found["rows"]}
    assert kinds == ({"tier", "cooling", "facility", "grid"} if group == "sites" else {group[:-1]})


def test_json_has_what_the_tables_count(capsys: Capture) -> None:
    (model,) = data(capsys, "catalog", "llama-3.1-8b", "-o", "json")["rows"]
    assert (model["kind"], model["parameters"], model["layers"]) == ("model", 8_030_261_248, 32)
    assert model["active"] == model["parameters"]
    for offer in data(capsys, "catalog", "aws/p5.48xlarge", "-o", "json")["rows"]:
        assert offer["usd_per_device_hour"] == offer["usd_per_hour"] / 8


@pytest.mark.parametrize("group", ["accelerators", "models", "sites", "offers", "providers"])
def test_every_list_says_where_sources_are_shown(group: str, capsys: Capture) -> None:
    assert "Sources: computeflow catalog NAME" in answer(capsys, "catalog", group)


def test_the_prices_of_an_instance_come_with_their_sources(capsys: Capture) -> None:
    text = answer(capsys, "catalog", "aws/p5.48xlarge")
    sources = "Sources: SkyPilot catalog aws/vms.csv @4d20ee158, as of 2026-08-22"
    assert sources in " ".join(text.split())
    assert text == answer(capsys, "catalog", "offers", "aws/p5.48xlarge")


def test_rows_that_are_no_training_target_are_marked_in_the_list(capsys: Capture) -> None:
    text = answer(capsys, "catalog", "accelerators")
    marked = {line.split(" *")[0] for line in text.splitlines() if " * " in line}
    assert {"groq-lpu", "cerebras-cs3", "rubin-sxm"} <= marked
    assert "h100-sxm" not in marked
    assert "* not a training target, no dense peak" in text


def test_availability_is_shown_with_three_decimals(capsys: Capture) -> None:
    assert "99.982 %" in answer(capsys, "catalog", "sites", "tier-3")


@pytest.mark.parametrize(
    ("name", "title", "also"),
    [
        ("vast", "provider vast", "storage vast-nfs-rdma (computeflow catalog storage vast-nfs"),
        ("gb200-nvl72", "node gb200-nvl72", "accelerator gb200 (computeflow catalog accelerators"),
    ],
)
def test_a_name_of_two_kinds_shows_one_and_names_the_other(
    name: str, title: str, also: str, capsys: Capture
) -> None:
    text = answer(capsys, "catalog", name)
    assert text.startswith(title)
    assert f"also: {also}" in text
    assert data(capsys, "catalog", name, "-o", "json")["also"][0]["kind"] == also.split()[0]


@pytest.mark.parametrize("word", ["model", "models"])
def test_a_kind_may_be_said_in_the_singular(word: str, capsys: Capture) -> None:
    assert answer(capsys, "catalog", word, "llama-3.1-8b").startswith("model llama-3.1-8b")


@pytest.mark.parametrize("name", ["xyzzy", "qwertyuiop", "x" * 5000])
def test_a_name_that_resembles_nothing_gets_no_suggestion(name: str, capsys: Capture) -> None:
    message = failure(capsys, "catalog", name)
    assert "nearest" not in message
    assert len(message) < 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--region", "mars"], "no such offer with region 'mars'"),
        (["--provider", "scaleway"], "no such offer with provider 'scaleway'"),
        (["--accelerator", "groq-lpu"], "no such offer with accelerator 'groq-lpu'"),
    ],
)
def test_offers_that_are_not_there_are_an_error_and_no_empty_table(
    arguments: list[str], words: str, capsys: Capture
) -> None:
    assert words in failure(capsys, "catalog", "offers", *arguments)


@pytest.mark.parametrize("name", ["/dev/zero", "."])
def test_a_file_that_is_none_is_one_line(name: str, capsys: Capture) -> None:
    failure(capsys, "catalog", "--catalog", name, "h100-sxm")


def test_a_bad_row_of_another_kind_is_found_in_a_named_file(
    capsys: Capture, tmp_path: Path
) -> None:
    mine = written(tmp_path / "lab.toml", LAB + '[[offer]]\nname = "x"\n')
    assert "offer x" in failure(capsys, "catalog", "h100-lab", "--catalog", mine)


def test_imports_of_one_file_name_and_two_providers_are_two_files(
    capsys: Capture, tmp_path: Path
) -> None:
    prices = written(tmp_path / "vms.csv", PRICES)
    first = data(capsys, "catalog", "import", prices, "--provider", "house", "-o", "json")
    second = data(capsys, "catalog", "import", prices, "--provider", "Amazon", "-o", "json")
    names = [Path(found["written"]).name for found in (first, second)]
    assert names == ["offers-house-vms.csv", "offers-aws-vms.csv"]
    assert "house/lab-8" in answer(capsys, "catalog", "offers", "--provider", "house")
    assert "aws/lab-8" in answer(capsys, "catalog", "aws/lab-8")


def test_an_import_is_not_written_over_an_earlier_one(capsys: Capture, tmp_path: Path) -> None:
    command = ["catalog", "import", written(tmp_path / "vms.csv", PRICES), "--provider", "house"]
    assert "1 price written" in answer(capsys, *command)
    assert "1 price written" in answer(capsys, *command)
    written(tmp_path / "vms.csv", PRICES.replace("16.0", "24.0"))
    assert "there already, with other content: --force" in failure(capsys, *command)
    answer(capsys, *command, "--force")
    (row,) = data(capsys, "catalog", "house/lab-8", "-o", "json")["rows"]
    assert row["usd_per_hour"] == 24


def test_a_list_is_never_written_over_itself(capsys: Capture, tmp_path: Path) -> None:
    prices = written(tmp_path / "vms.csv", PRICES)
    command = ["catalog", "import", prices, "--provider", "house", "--force", "--to"]
    assert "is an input of this command" in failure(capsys, *command, prices)
    assert Path(prices).read_text() == PRICES
    assert "must end in .csv" in failure(capsys, *command, str(tmp_path / "prices.toml"))
    assert [path.name for path in tmp_path.iterdir()] == ["vms.csv"]


def test_a_date_that_is_none_is_an_error_of_the_option(capsys: Capture, tmp_path: Path) -> None:
    prices = written(tmp_path / "vms.csv", PRICES)
    message = failure(capsys, "catalog", "import", prices, "--as-of", "yesterday")
    assert "--as-of 'yesterday' is not a date" in message


def test_a_list_that_may_be_cut_off_is_imported_with_a_note(
    capsys: Capture, tmp_path: Path
) -> None:
    prices = written(tmp_path / "vms.csv", PRICES.rstrip())
    text = answer(capsys, "catalog", "import", prices, "--provider", "house")
    assert "The last line has no line end: it may be cut off." in text


def test_the_help_of_import_lists_every_header_that_is_read(capsys: Capture) -> None:
    text = answer(capsys, "catalog", "import", "--help")
    assert all(header in text for headers in HEADERS.values() for header in headers)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("catalog acc", "accelerators"),
        ("catalog h100-s", "h100-sxm"),
        ("catalog -o json h100-s", "h100-sxm"),
        ("catalog models llama-3.1", "llama-3.1-8b"),
        ("catalog sites tier", "tier-3"),
        ("catalog offers aws/p5.48", "aws/p5.48xlarge"),
        ("catalog offers --accelerator h100-s", "h100-sxm"),
        ("catalog offers --provider la", "lambda"),
        ("catalog import --provider la", "lambda"),
        ("catalog models ./conf", "file"),
        ("catalog import pri", "file"),
        ("catalog --catalog mine", "file"),
        ("catalog accelerators --catalog mine", "file"),
    ],
)
def test_a_shell_completes_names_and_files(words: str, some: str) -> None:
    assert some in completions(words)


def test_a_broken_file_of_the_user_does_not_disturb_the_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path))
    written(tmp_path / "catalog" / "bad.toml", "[[")
    assert completions("catalog models lla") == []


def test_doctor_names_every_file_of_the_user_that_has_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path))
    written(tmp_path / "catalog" / "good.toml", LAB)
    assert run(["doctor"]) == 0
    capsys.readouterr()
    written(tmp_path / "catalog" / "link.toml", LAB.replace("h100-lab", "x") + 'link = "nvlonk"')
    written(tmp_path / "catalog" / "twice.toml", LAB + LAB)
    assert run(["doctor", "-o", "json"]) == 3
    checks = json.loads(capsys.readouterr().out)["checks"]
    states = [(c["state"], c["detail"]) for c in checks if c["name"] == "your catalog"]
    assert [state for state, _ in states] == ["ok", "wrong", "wrong"]
    assert "unknown fabric 'nvlonk'" in states[1][1]
    assert "second one in this file" in states[2][1]


def test_doctor_calls_a_broken_installation_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("computeflow.answers.installation._CORE", ("no-such-package",))
    assert run(["doctor"]) == 1
    assert "pip install no-such-package" in capsys.readouterr().out
