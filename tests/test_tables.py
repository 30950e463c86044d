from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from computeflow.ledger import Entry, Gap, Ledger, Window
from computeflow.views import Table, gap_table, ledger_table, to_html, to_rich, to_text
from computeflow.views.tables import columns

CELLS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=60)


def ledger() -> Ledger:
    return Ledger.closed(
        [
            Entry(account="compute.model", gpu_seconds=38.0),
            Entry(account="comm.dp", gpu_seconds=12.0),
        ],
        gpus=8, gpus_total=64, wall_seconds=10.0, basis="measured",
        window=Window(label="steps 10 to 12"), unavailable={"straggler": "the other ranks"},
    )  # fmt: skip


def test_a_ledger_fits_80_columns_and_says_what_is_missing() -> None:
    text = to_text(ledger_table(ledger()))
    assert max(map(len, text.splitlines())) <= 80
    assert "8 of 64 ranks" in text
    assert "straggler: unavailable, needs the other ranks" in text
    assert "MFU 47.5 %" in text


def test_gaps_are_listed_largest_loss_first_and_add_up() -> None:
    lines = [
        Gap(accounts=("host",), measured=1.0, expected=2.0),
        Gap(accounts=("input",), measured=6.0, expected=1.0),
    ]
    rows = gap_table(lines).rows
    assert [row[0] for row in rows] == ["input", "host", "total"]
    assert rows[-1][3] == "+4.0"


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_wide_cells_wrap_and_no_word_is_lost(rows: list[tuple[str, str]]) -> None:
    table = Table(title="t", columns=columns("a", "b", wrap="a,b"), rows=tuple(rows))
    text = to_text(table, 60)
    assert max(map(len, text.splitlines())) <= 60
    letters = "".join("".join(row) for row in rows).split()
    assert "".join("".join(letters).split()) is not None
    for row in rows:
        for cell in row:
            for letter in "".join(cell.split()):
                assert letter in text


def test_html_and_rich_show_the_same_cells_unharmed() -> None:
    from rich.console import Console

    table = Table(title="t", columns=columns("a"), rows=(("<script>[bold]x",),))
    assert "&lt;script&gt;[bold]x" in to_html(table)
    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(table))
    assert isinstance(console.file, io.StringIO)
    assert "<script>[bold]x" in console.file.getvalue()
