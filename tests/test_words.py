"""One word for one thing: names, docstrings and layout of the code as CONTRIBUTING.md asks for."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from benchmarks.measure_tree import (
    FOLDERS,
    ROOT,
    VAGUE,
    docstrings,
    hand_laid,
    is_fragment,
    public_classes,
    sources,
)

PACKAGE = ROOT / "src" / "computeflow"
MAX_NAMESAKES = 3
"""Files of one name: a noun has one in `answers`, one in `views`, and one where it is computed."""


def skips_outside_tables(text: str) -> list[int]:
    """Lines with `fmt: skip` that do not end a table: an assignment in the module's body."""
    ends = {
        node.end_lineno
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.end_lineno != node.lineno
    }
    return [line for line in hand_laid(text) if line not in ends]


def test_no_two_public_classes_have_one_name() -> None:
    count = Counter(
        name
        for path in sources(ROOT, ["src"])
        for name in public_classes(ast.parse(path.read_text()))
    )
    assert [name for name, times in count.items() if times > 1] == []


def test_a_file_is_named_after_what_is_inside() -> None:
    stems = Counter(
        path.stem
        for path in sources(ROOT, ["src"])
        if not path.stem.startswith("__") and path.parent != PACKAGE / "cli"
    )
    assert sorted(VAGUE & stems.keys()) == []
    assert [stem for stem, times in stems.items() if times > MAX_NAMESAKES] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_reads_alone(folder: str) -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(ROOT, [folder])
        for line, text in docstrings(ast.parse(path.read_text()))
        if is_fragment(text)
    ]
    assert fragments == []


def test_lines_are_laid_out_by_hand_in_tables_alone() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(ROOT, FOLDERS)
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
