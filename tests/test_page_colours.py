"""Figures on the page follow its theme: it knows their colours and has its own for light and dark."""

from __future__ import annotations

import re
from pathlib import Path

import computeflow as cf
from computeflow.views.figures import ACCENT, GREY, SECOND
from page_client import page_client
from test_web_traced import TRACES

STATIC = Path(cf.__file__).parent / "web" / "static"


def themed() -> dict[str, str]:
    """The page's property for a colour of a figure."""
    line = re.search(r"THEMED = \{(.*)\}", (STATIC / "plot.js").read_text())
    assert line is not None
    return dict(re.findall(r'"([^"]+)": "([^"]+)"', line[1]))


def test_the_page_draws_colours_of_figures_in_its_own() -> None:
    figures = page_client(TRACES).get(f"/runs/{TRACES.name}").json()["figures"]
    scale = next(trace["colorscale"] for each in figures for trace in each["data"] if "z" in trace)
    assert set(themed()) == {ACCENT, SECOND, GREY, scale[-1][1]}


def test_light_and_dark_have_each_of_these_colours() -> None:
    css = (STATIC / "page.css").read_text()
    light, *dark = re.findall(r":root[^{]*\{([^}]*)\}", css)
    assert len(dark) == 2  # chosen by the reader, and by the system
    assert all(f"--{name}:" in light for name in themed().values())
    assert all(f"--{name}:" in part for part in dark for name in ("accent", "second", "strongest"))
