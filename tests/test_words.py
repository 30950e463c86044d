"""One word for one thing: names, docstrings and layout of the code as CONTRIBUTING.md asks for."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "computeflow"
VAGUE = set(
    "base common core facts helpers manager misc model settings source utils values".split()
)
"""File names that say nothing of what is inside."""
MAX_NAMESAKES = 3
"""Files of one name: a noun has one in `answers`, one in `views`, and one where it is computed."""


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def public_classes(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the texts under fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text.strip()


def skips_outside_tables(text: str) -> list[int]:
    """Lines with `fmt: skip` that do not end a table: an assignment in the module's body."""
    ends = {
        node.end_lineno
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.end_lineno != node.lineno
    }
    numbered = enumerate(text.splitlines(), 1)
    return [n for n, line in numbered if line.endswith("# fmt: skip") and n not in ends]


def test_no_two_public_classes_have_one_name() -> None:
    count = Counter(
        name for path in sources("src") for name in public_classes(ast.parse(path.read_text()))
    )
    assert [name for name, times in count.items() if times > 1] == []


def test_a_file_is_named_after_what_is_inside() -> None:
    stems = Counter(
        path.stem
        for path in sources("src")
        if not path.stem.startswith("__") and path.parent != PACKAGE / "cli"
    )
    assert sorted(VAGUE & stems.keys()) == []
    assert [stem for stem, times in stems.items() if times > MAX_NAMESAKES] == []


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "docs", "examples"])
def test_a_docstring_reads_alone(folder: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(folder)
        for line, text in docstrings(ast.parse(path.read_text()))
        if text.startswith(("Of ", "Of:"))
    ]
    assert fragments == []


def test_lines_are_laid_out_by_hand_in_tables_alone() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources("src", "tests", "benchmarks", "docs", "examples")
        for line in skips_outside_tables(path.read_text())
    ]
    assert places == []


def test_what_breaks_these_rules_is_seen() -> None:
    """The checks themselves, on code that is wrong."""
    skip = "# fmt: " + "skip"
    classes = "class A: ...\nclass A: ...\n"
    text = f'{classes}def f():\n    """Of one."""\n    return [1,\n        2]  {skip}\n'
    tree = ast.parse(text)
    assert list(public_classes(tree)) == ["A", "A"]
    assert list(docstrings(tree)) == [(4, "Of one.")]
    assert skips_outside_tables(text) == [6]
    assert skips_outside_tables(f"A = [\n    1,\n]  {skip}\n") == []
