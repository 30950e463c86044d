"""Lines of a log as people see them: decompressed, decoded, without colours, with their writer.

Progress bars rewrite their line with carriage returns; each state of a bar is a line here, and line
numbers count line feeds, as editors do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.opening import open_recording

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}\x07|[@-Z\\-_])")
_PREFIX = re.compile(
    r"\[(?:rank|default)(?P<rank>\d+)\]:\s?"  # torchrun
    r"|\s*(?P<task>\d{1,6}): "  # srun --label
    r"|\((?P<actor>\w[\w.()]*) (?:rank=(?P<ray>\d+),? ?)?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:-]+))?\)\s"
    r"|(?P<host>[A-Za-z][A-Za-z.-]*+\d[A-Za-z0-9.-]*+):(?: |$)"  # pdsh
    r"|\[(?P<pod>pod/[^\]]+)\] "  # kubectl logs --prefix
)
_PREFIXES = 3


class LogLine(NamedTuple):
    number: int
    text: str
    rank: int | None
    node: str
    stream: str


def read(path: Path, broken: list[str]) -> Iterator[LogLine]:
    """All lines; a broken compressed file ends early, and `broken` says so."""
    number = 1
    with open_recording(path) as raw:
        file = io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="")
        while text := file.readline(LINE_BYTES):
            while not text.endswith(("\n", "\r")):  # cut; the rest is skipped
                if not (rest := file.readline(LINE_BYTES)):
                    break
                if rest.endswith(("\n", "\r")):
                    text += rest[-1]
            yield _line(number, text)
            number += text.endswith("\n")
        if raw.broken:
            broken.append(f"{path}: its compressed end is broken, read to line {number:,}")


def _line(number: int, text: str) -> LogLine:
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    text = text.replace("\x00", "")
    rank, node, stream = None, "", ""
    for _ in range(_PREFIXES):
        match = _PREFIX.match(text)
        if match is None:
            break
        groups = match.groupdict()
        number_text = groups["rank"] or groups["task"] or groups["ray"] or ""
        rank = int(number_text) if 0 < len(number_text) < 7 else rank
        node = groups["ip"] or groups["host"] or node
        stream += match[0].strip()
        text = text[match.end() :]
    return LogLine(number, text, rank, node, stream)
