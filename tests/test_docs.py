"""README and docs are executed: Python blocks run, console blocks print what they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from computeflow.cli import run
from computeflow.ledger import ACCOUNTS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("name", ACCOUNTS)
def test_every_account_has_a_page_that_opens_with_its_owner(name: str) -> None:
    page = (ROOT / "docs" / "accounts" / f"{name}.md").read_text()
    account = ACCOUNTS[name]
    doc = account.doc[0].upper() + account.doc[1:]
    opening = f"# `{name}`\n\nOwner: **{account.owner}**. {doc}."
    assert " ".join(page.split()).startswith(" ".join(opening.split()))


def test_the_command_line_reference_is_the_generated_one() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.reference() == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"
