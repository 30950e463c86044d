"""Plotly's JavaScript, from its Python package, as files of the page.

The bundle adds a `<style>` of a map library, which the content policy forbids and no figure of ours
needs. It does not where an element of that style's id is there already; `marks_module` lists the ids,
so that the page can put empty ones there. Colour bars set an empty style attribute before they are
drawn, which the policy forbids, too, and which does nothing: it is left out.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache

from computeflow.views.html_report import plotly_script

_EMPTY_STYLE = '.attr("style","")'
_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')


@cache
def plotly_packed() -> bytes:
    """Compressed once (4.8 MB become 1.5 MB): it takes a second, and every browser asks for it."""
    script = plotly_script().replace(_EMPTY_STYLE, "")
    return gzip.compress(script.encode(), compresslevel=6, mtime=0)


def plotly_bytes() -> bytes:
    return gzip.decompress(plotly_packed())


@cache
def marks_module() -> bytes:
    """An ES module with the ids of styles that Plotly would add."""
    ids = sorted(set(_STYLE.findall(plotly_script())))
    return f"export const MARKS = {json.dumps(ids)};\n".encode()
