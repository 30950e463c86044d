"""The program as a user meets it: answers, JSON, errors in one line, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from computeflow.cli import run
from computeflow.cli.app import COMMANDS

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama-3.1-405b.json"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(arguments)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    return code, printed.err


def test_a_row_is_shown_with_units_source_and_date(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "catalog", "h100-sxm")
    assert "bf16 989 TFLOP/s" in text
    assert "source" in text
    assert "as of" in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_is_one_object_with_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(answer(capsys, "catalog", "h100-sxm", "-o", "json"))
    assert data["schema"] == "computeflow.catalog/1"
    assert data["rows"][0]["dense_flops"]["bf16"] == 989e12


@pytest.mark.parametrize(
    "kind",
    [
        "accelerators",
        "models",
        "nodes",
        "fabrics",
        "storage",
        "sites",
        "providers",
        "offers",
        "collectives",
    ],
)
def test_every_list_fits_80_columns_and_counts_what_it_hides(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = answer(capsys, "catalog", kind)
    assert max(map(len, text.splitlines())) <= 80
    shown = json.loads(answer(capsys, "catalog", kind, "-o", "json"))
    rows = shown["rows"]
    count = sum(map(len, rows.values())) if isinstance(rows, dict) else len(rows)
    hidden = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) more rows not shown", text))
    shown_rows = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of [\d,]+ rows", text))
    assert shown_rows + hidden == count


def test_prices_can_be_narrowed_down(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        answer(
            capsys,
            "catalog",
            "offers",
            "--accelerator",
            "H100 SXM",
            "--provider",
            "aws",
            "--term",
            "spot",
            "-o",
            "json",
        )
    )
    assert data["rows"]
    assert {(r["provider"], r["accelerator"], r["term"]) for r in data["rows"]} == {
        ("aws", "h100-sxm", "spot")
    }
    prices = [row["usd_per_hour"] / row["count"] for row in data["rows"]]
    assert prices == sorted(prices)


def test_a_price_list_is_imported_into_the_users_catalog(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "provider,instance,gpu,count,region,price\nhouse,lab-8,H100-SXM,8,basement,16.0\n"
    )
    assert "1 price written" in answer(capsys, "catalog", "import", str(prices))
    rows = json.loads(answer(capsys, "catalog", "house/lab-8", "-o", "json"))["rows"]
    assert (rows[0]["usd_per_hour"], rows[0]["accelerator"]) == (16.0, "h100-sxm")


def test_a_ledger_file_is_shown_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "ledger", str(EXAMPLE), "--expect", str(EXAMPLE))
    assert "34.6 %" in text
    assert "unexplained" in text
    assert "Measured against expected" in text


def test_the_example_ledger_is_what_its_script_writes() -> None:
    from computeflow.ledger import ledger_from_data

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import llama_405b as e, json; from computeflow.ledger import *; "
            "print(json.dumps(ledger_to_data(e.published_run())))",
        ],
        cwd=EXAMPLE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ledger_from_data(json.loads(EXAMPLE.read_text())) == ledger_from_data(
        json.loads(done.stdout)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["catalgo"], "unknown command 'catalgo'; nearest: catalog"),
        (["catalog", "h100-smx"], "unknown name 'h100-smx'; nearest: h100-sxm"),
        (["catalog", "accelerators", "b20"], "unknown accelerator 'b20'; nearest: b200-sxm"),
        (["catalog", "models", "lama-3.1-8b"], "nearest: llama-3.1-8b"),
        (["catalog", "offers", "--provider", "amazn"], "unknown provider 'amazn'"),
        (["catalog", "h100-sxm", "--outptu", "json"], "No such option"),
        (["catalog", "h100-sxm", "-o", "yaml"], "'yaml' is not one of"),
        (["catalog", "import", "absent.csv"], "No such file"),
        (["catalog", "models", "absent.json"], "No such file"),
        (["ledger", "absent.json"], "No such file"),
        (["ledger"], "Missing argument"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = failure(capsys, *arguments)
    assert code == 2
    assert words in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"model_type": "hal9000"}', "hal9000"),
        ('{"model_type": "llama"}', "the key num_attention_heads is missing"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "config"),
    ],
)
def test_a_model_file_we_cannot_use_is_one_line_and_exit_2(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    code, message = failure(capsys, "catalog", "models", str(path))
    assert code == 2
    assert words in message


def test_doctor_says_what_works_and_what_installs_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads(answer(capsys, "doctor", "-o", "json"))
    states = {check["name"]: check["state"] for check in data["checks"]}
    assert states["python"] == states["msgspec"] == states["catalog"] == "ok"
    torch = next(check for check in data["checks"] if check["name"] == "torch")
    assert torch["state"] == "ok" or "pip install torch" in torch["fix"]


def test_doctor_finds_a_bad_row_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMPUTEFLOW_CONFIG", str(tmp_path))
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "bad.toml").write_text('[[accelerator]]\nname = "x"\n')
    assert run(["doctor"]) == 3
    assert "bad.toml" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "_COMPUTEFLOW_COMPLETE" in answer(capsys, "completion", shell)


def test_completion_offers_commands_and_catalog_names() -> None:
    def complete(words: str) -> str:
        done = subprocess.run(
            [Path(sys.executable).parent / "computeflow"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ
            | {
                "_COMPUTEFLOW_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
        )
        return done.stdout

    assert "plain,catalog" in complete("computeflow cat")
    assert "plain,h100-sxm" in complete("computeflow catalog h100")


@pytest.mark.parametrize("arguments", [[], ["--help"], *([c, "--help"] for c in COMMANDS)])
def test_help_fits_80_columns(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, *arguments)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("PROGRAM catalog offers --all >/dev/full", 1, "cannot write the answer: No space left"),
        ("PROGRAM catalog h100-sxm >&-", 1, "standard output is closed"),
        ("PROGRAM catalog h100-sxm -o json >&-", 1, "standard output is closed"),
        ("PROGRAM --help >/dev/full", 1, "No space left"),
        ("PROGRAM nonsense 2>/dev/full", 2, ""),
        ("PROGRAM catalog h100-sxm >/dev/full 2>&-", 1, ""),
        ("PYTHONIOENCODING=ascii PROGRAM catalog storage >/dev/null", 0, ""),
    ],
)
def test_an_output_that_takes_nothing_is_no_traceback(shell: str, code: int, words: str) -> None:
    program = f"'{sys.executable}' -m computeflow.cli"
    done = subprocess.run(
        ["bash", "-c", shell.replace("PROGRAM", program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_work_ratio_without_an_expectation_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, message = failure(capsys, "ledger", str(EXAMPLE), "--work-ratio", "2")
    assert (code, "needs --expect" in message) == (2, True)


def test_a_comparison_is_json_with_both_ledgers(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        answer(capsys, "ledger", str(EXAMPLE), "--expect", str(EXAMPLE), "-o", "json")
    )
    assert data["schema"] == "computeflow.comparison/1"
    assert data["measured"] == data["expected"]
    assert all(gap["measured"] == gap["expected"] for gap in data["gaps"])


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; '{sys.executable}' -m computeflow.cli catalog offers "
            "--all | head -1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
