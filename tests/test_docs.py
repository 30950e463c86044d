"""README and docs are executed: Python blocks run, console blocks print what they show."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import computeflow
from computeflow.cli import run
from computeflow.ledger import ACCOUNTS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WIDTH = 100
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), text)
        for page in PAGES
        for found, text in BLOCK.findall(page.read_text())
        if found == language
    ]


def commands(block: str) -> list[tuple[str, str]]:
    """`$ command` lines, each with the output shown under it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [(page, *pair) for page, block in blocks("console") for pair in commands(block)],
)
def test_a_command_in_the_docs_prints_what_is_shown(
    page: str,
    command: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    if program != "computeflow":
        pytest.skip(f"{program} is not run by this test")
    run(arguments)
    printed = capsys.readouterr()
    got = [line.rstrip() for line in (printed.out + printed.err).strip().splitlines()]
    want = [line.rstrip() for line in shown.strip().splitlines()]
    if "..." in want:
        cut = want.index("...")
        assert got[:cut] == want[:cut]
        tail = want[cut + 1 :]
        assert got[len(got) - len(tail) :] == tail
    else:
        assert got == want


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_in_the_docs_runs(page: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_at_one_width(page: Path) -> None:
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        table = line.lstrip().startswith("|")
        assert code or table or len(line) <= WIDTH, f"line {number}: {line}"


def test_the_readme_fits_its_length() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_index_of_the_docs_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "sources").glob("*.md")]
    links = {(ROOT / "docs" / link).resolve() for link in LINK.findall(index)}
    assert not {page.resolve() for page in pages} - links - {ROOT / "docs" / "README.md"}


def test_the_example_of_a_prediction_is_what_predict_gives() -> None:
    saved = json.loads((ROOT / "examples" / "lab-0.5b-predicted.json").read_text())
    now = computeflow.predict(
        str(ROOT / "examples" / "lab-0.5b.toml"),
        on="h200-sxm:1",
        global_batch=4,
        micro_batch=4,
        seq_len=2048,
        sharding="ddp",
        stack="lab",
    )
    assert saved["step_seconds"] == pytest.approx(now.to_dict()["step_seconds"], rel=1e-3)


@pytest.mark.parametrize("name", ACCOUNTS)
def test_every_account_has_a_page_that_opens_with_its_owner(name: str) -> None:
    page = (ROOT / "docs" / "accounts" / f"{name}.md").read_text()
    account = ACCOUNTS[name]
    doc = account.doc[0].upper() + account.doc[1:]
    opening = f"# `{name}`\n\nOwner: **{account.owner}**. {doc}."
    assert " ".join(page.split()).startswith(" ".join(opening.split()))


@cache
def script(name: str) -> Any:
    """A module of the docs folder."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_command_line_reference_is_the_generated_one() -> None:
    reference = script("generate").reference()
    assert reference == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"


def test_the_map_of_the_design_is_the_drawn_one() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    assert script("import_map").with_map(page) == page, "run `make docs`"


def test_the_map_follows_a_name_to_its_definition_and_sees_every_import() -> None:
    drawn = script("import_map")
    assert drawn.find_definition("computeflow.auditing", "audit") == (
        "computeflow.auditing.audit_report",
        "audit",
    )
    assert drawn.find_definition("computeflow.answers.audits", "absent") is None
    for package, others in drawn.imports().items():
        assert all(drawn.level(other) < drawn.level(package) for other in others)
    assert {"auditing", "diagnosis", "telemetry", "ledger"} <= {
        *drawn.flow("computeflow.answers.audits", "audit")
    }
