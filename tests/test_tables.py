from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.ledger import Entry, Gap, Ledger, Window
from computeflow.views import Table, gap_table, ledger_table, to_html, to_rich, to_text
from computeflow.views.tables import columns

CELLS = st.text(st.characters(blacklist_categories=["C", "Zl", "Zp", "Zs"]), max_size=60)


def ledger() -> Ledger:
    return Ledger.closed(
        [
            Entry(account="compute.model", gpu_seconds=38.0),
            Entry(account="comm.dp", gpu_seconds=12.0),
        ],
        gpus=8,
        gpus_total=64,
        wall_seconds=10.0,
        basis="measured",
        window=Window(label="steps 10 to 12"),
        unavailable={"straggler": "the other ranks"},
    )


def test_a_ledger_fits_80_columns_and_says_what_is_missing() -> None:
    text = to_text(ledger_table(ledger()))
    assert max(map(len, text.splitlines())) <= 80
    assert "8 of 64 ranks" in text
    assert "straggler (needs the other ranks)" in text
    assert "MFU 47.5 %" in text


def test_gaps_are_listed_largest_loss_first_and_add_up() -> None:
    lines = [
        Gap(accounts=("host",), measured=10.0, expected=20.0),
        Gap(accounts=("input",), measured=60.0, expected=10.0),
    ]
    rows = gap_table(lines).rows
    assert [row[0] for row in rows] == ["input", "host", "total"]
    assert rows[-1][3] == "+40.0"


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5), st.integers(25, 100))
def test_wide_cells_wrap_and_nothing_is_lost(rows: list[tuple[str, str]], width: int) -> None:
    table = Table(title="t", columns=columns("a", "b", wrap="a,b"), rows=tuple(rows))
    text = to_text(table, width)
    assert max(map(len, text.splitlines())) <= width
    wanted = Counter("".join("".join(cell.split()) for row in rows for cell in row))
    assert not wanted - Counter(text)


@pytest.mark.parametrize("width", [100, 60, 40])
def test_a_table_that_cannot_be_that_narrow_is_written_field_by_field(width: int) -> None:
    table = Table(
        title="",
        columns=columns("name", "memory GB", "rate", right="memory GB,rate"),
        rows=(("a-long-name-of-a-device", "141", "1,234,567,890"),),
    )
    text = to_text(table, width)
    assert all(word in text for word in ("a-long-name-of-a-device", "141", "1,234,567,890"))
    assert max(map(len, text.splitlines())) <= max(width, 40)


def on_a_terminal(width: int, *arguments: str) -> str:
    """Output of the program on a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "computeflow.cli", *arguments],
        stdout=slave,
        stderr=slave,
        env=environment | {"TERM": "xterm", "NO_COLOR": "1"},
        close_fds=True,
    )
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the other end closes when the program ends
        while data := os.read(master, 65536):
            shown += data
    process.wait()
    os.close(master)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("width", [120, 80, 60, 40])
@pytest.mark.parametrize("kind", ["accelerators", "models", "sites"])
def test_a_terminal_of_any_width_shows_every_name_and_number_whole(kind: str, width: int) -> None:
    text = on_a_terminal(width, "catalog", kind)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    plain = on_a_terminal(200, "catalog", kind)
    numbers = re.findall(r"(?<=\s)[\d,.]+(?=\s)", plain)
    assert not Counter(numbers) - Counter(re.findall(r"(?<=\s)[\d,.]+(?=\s)", text))


def test_html_and_rich_show_the_same_cells_unharmed() -> None:
    from rich.console import Console

    table = Table(title="t", columns=columns("a"), rows=(("<script>[bold]x",),))
    assert "&lt;script&gt;[bold]x" in to_html(table)
    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(table))
    assert isinstance(console.file, io.StringIO)
    assert "<script>[bold]x" in console.file.getvalue()


def test_commands_in_a_text_are_code_in_html() -> None:
    table = Table(title="t", columns=columns("a"), rows=(("try `computeflow <x>` first",),))
    assert "try <code>computeflow &lt;x&gt;</code> first" in to_html(table)


def test_the_page_is_told_which_columns_need_a_wide_screen() -> None:
    from computeflow.web.part_data import table_data

    table = Table(title="", columns=columns("offer", "MFU %", wide="MFU %"), rows=())
    assert [column["wide"] for column in table_data(table)["columns"]] == [False, True]
