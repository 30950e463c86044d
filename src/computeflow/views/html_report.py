"""`report_html`: tables, figures and cards as one HTML file that needs nothing else.

Text and numbers are in the page itself; Plotly's JavaScript, written into it once and compressed (it is
most of the file), draws the figures. The page's content policy forbids every request. The only module
that imports plotly.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from string import Template

from computeflow import __version__
from computeflow.errors import UnavailableError
from computeflow.files.reading import read_text
from computeflow.views.cards import Cards, cards_html
from computeflow.views.figures import OWNERS, Figure
from computeflow.views.tables import Table, lead_html, text_html, to_html

Part = Table | Figure | Cards
_OPEN_ROWS = 32
"""Longer tables under a figure are folded."""


_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"
}
"""Control characters, escaped for readers who print the page in a terminal."""


def report_html(title: str, parts: Sequence[Part], *, lead: str = "") -> str:
    figures = [part for part in parts if isinstance(part, Figure)]
    numbers = count()
    body = [
        _figure(part, next(numbers))
        if isinstance(part, Figure)
        else cards_html(part, OWNERS)
        if isinstance(part, Cards)
        else _table(part)
        for part in parts
    ]
    page = Template(read_text(Path(__file__).with_name("report.html")))
    text = page.substitute(
        title=escape(title),
        body="\n".join([lead_html(lead), *body]),
        version=__version__,
        plotly=_packed(plotly_script()) if figures else "",
        figures=_script_json([{"data": f.data, "layout": f.layout} for f in figures]),
    )
    return text.translate(_CONTROLS)


def require_plotly() -> None:
    """Fails before a long computation if its report could not be written."""
    if find_spec("plotly") is None:
        raise UnavailableError("figures need plotly: pip install 'computeflow[plot]'")


def plotly_script() -> str:
    """Plotly's JavaScript, from its Python package."""
    require_plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _packed(script: str) -> str:
    """Compressed and encoded as the page unpacks it: 4.8 MB become 2.0 MB. Without a time inside: same
    parts, same bytes.
    """
    return b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _table(table: Table) -> str:
    return f'<section class="table">{to_html(table)}</section>'


def _figure(figure: Figure, number: int) -> str:
    unfolded = " open" if len(figure.numbers.rows) <= _OPEN_ROWS else ""
    return (
        f"<figure><h2>{escape(figure.title)}</h2>"
        f'<div class="plot" id="figure-{number}" role="img" aria-label="{escape(figure.title)}"></div>'
        f"<figcaption>{text_html(figure.summary)}</figcaption>"
        f"<details{unfolded}><summary>The numbers</summary>{_table(figure.numbers)}</details></figure>"
    )


def _script_json(data: object) -> str:
    """JSON that cannot close the script element around it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")
