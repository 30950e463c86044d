"""A reader for the fuzzer and the proof of limits: how it is called, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SEED_BYTES = 32_000
"""Size of one seed; longer recordings are cut, so that a fuzzer does not spend its time copying."""

Build = Callable[[int], bytes]
"""Builds a content of about so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    name: str
    read: Callable[[bytes, Path], object]
    """Reads a content in a folder of its own; answers or raises `ComputeFlowError`."""
    shapes: Mapping[str, Build]
    """Shapes of content, "natural" first, then hostile ones."""
    recorded: Callable[[], Sequence[bytes]] = list
    """Real files, in addition to small ones of each shape."""
    tokens: Sequence[bytes] = ()
    """Words of the format that no seed has."""
    extra_seconds: float = 0.0
    """CPU that the fuzzer allows beyond that of the size, where a few bytes name many things."""

    def seeds(self) -> list[bytes]:
        grown = [build(3000) for build in self.shapes.values()]
        return [content[:SEED_BYTES] for content in (*self.recorded(), *grown)]


def records(
    record: Callable[[int], bytes], head: bytes = b"", tail: bytes = b"", between: bytes = b"\n"
) -> Build:
    """Numbered records until the size is reached."""

    def build(size: int) -> bytes:
        parts: list[bytes] = []
        left = size - len(head) - len(tail)
        while left > 0:
            part = record(len(parts))
            parts.append(part)
            left -= len(part) + len(between)
        return head + between.join(parts) + tail

    return build


def repeated(piece: bytes, head: bytes = b"", tail: bytes = b"", after: bytes = b"") -> Build:
    """A piece repeated; `after` is repeated as often behind it."""

    def build(size: int) -> bytes:
        times = max((size - len(head) - len(tail)) // max(len(piece) + len(after), 1), 1)
        return head + piece * times + after * times + tail

    return build


def long_lines(piece: bytes, head: bytes = b"", tail: bytes = b"", lines: int = 16) -> Build:
    """A fixed number of longer and longer lines, to show expressions that are not linear in a line."""

    def build(size: int) -> bytes:
        each = piece * max((size - len(head)) // lines // len(piece), 1)
        return head + (each + tail + b"\n") * lines

    return build


def files(pattern: str, folder: Path = DATA) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(folder.glob(pattern))]


def json_shapes(head: bytes, tail: bytes) -> dict[str, Build]:
    """Hostile JSON values between a head and a tail of the reader's format."""
    return {
        "deep lists": repeated(b"[", head, b"1" + tail, b""),
        "deep closed": repeated(b"[", head, tail, b"]"),
        "deep tables": repeated(b'{"a":', head, tail, b"}"),
        "many keys": records(lambda n: b'"k%d":%d' % (n, n), head + b"{", b"}" + tail, b","),
        "one key": records(lambda n: b'"k":%d' % n, head + b"{", b"}" + tail, b","),
        "long text": repeated(b"x", head + b'"', b'"' + tail),
        "long escapes": repeated(b"\\u00e9", head + b'"', b'"' + tail),
        "digits": repeated(b"7", head, tail),
        "many numbers": records(lambda n: b"%d" % n, head + b"[", b"]" + tail, b","),
        "blanks": repeated(b" ", head, b"1" + tail),
    }


def toml_shapes(head: bytes = b"") -> dict[str, Build]:
    return {
        "dotted key": repeated(b"a.", head, b"a = 1\n"),
        "dotted table": repeated(b"a.", head + b"[", b"a]\n"),
        "deep lists": repeated(b"[", head + b"x = ", b"\n", b"]"),
        "deep tables": repeated(b"{a=", head + b"x = ", b"\n", b"}"),
        "many keys": records(lambda n: b"k%d = %d" % (n, n), head, b"\n"),
        "many tables": records(lambda n: b"[[t%d]]\na = 1" % n, head, b"\n"),
        "many dotted": records(lambda n: b"a.b%d.c = 1" % n, head, b"\n"),
        "long text": repeated(b"x", head + b'x = "', b'"\n'),
        "open text": repeated(b"x", head + b'x = """', b""),
        "digits": repeated(b"7", head + b"x = ", b"\n"),
        "decimals": repeated(b"7", head + b"x = 0.", b"\n"),
        "many numbers": records(lambda n: b"%d" % n, head + b"x = [", b"]\n", b","),
        "comments": repeated(b"# nothing\n", head),
    }


def yaml_shapes(head: bytes = b"") -> dict[str, Build]:
    return {
        "flow lists": repeated(b"[", head + b"x: ", b"\n", b"]"),
        "flow tables": repeated(b"{a: ", head + b"x: ", b"\n", b"}"),
        "dashes": repeated(b"- ", head + b"x:\n  ", b"1\n"),
        "indents": _indented(head),
        "many keys": records(lambda n: b"k%d: %d" % (n, n), head, b"\n"),
        "many numbers": records(lambda n: b"- %d" % n, head + b"x:\n", b"\n"),
        "base 60": repeated(b"1:", head + b"x: ", b"1\n"),
        "digits": repeated(b"7", head + b"x: ", b"\n"),
        "long text": repeated(b"x", head + b"x: ", b"\n"),
        "long quoted": repeated(b"\\n", head + b'x: "', b'"\n'),
        "anchors": records(lambda n: b"k%d: &a%d 1" % (n, n), head, b"\n"),
        "aliases": records(lambda n: b"k%d: *a" % n, head + b"k: &a [1, 2]\n", b"\n"),
        "comments": repeated(b"# nothing\n", head + b"x: 1\n"),
    }


def _indented(head: bytes) -> Build:
    """Keys indented by one more space each: the file grows as the square of its depth."""

    def build(size: int) -> bytes:
        depth = int((2 * size) ** 0.5)
        return head + b"".join(b"%sk:\n" % (b" " * level) for level in range(depth))

    return build


def csv_shapes(head: bytes, row: bytes) -> dict[str, Build]:
    """Hostile tables below a header of the reader's format, or beside it."""
    cells = head.count(b",")
    return {
        "many columns": records(lambda n: b"c%d" % n, head + b",", b"\n" + row + b"\n", b","),
        "long cell": repeated(b"x", head + b"\n", b"," * cells + b"\n"),
        "open quote": repeated(b"x,\n", head + b'\n"'),
        "quotes": repeated(b'""', head + b'\n"', b'"' + b"," * cells + b"\n"),
        "empty rows": repeated(b"," * cells + b"\n", head + b"\n"),
        "digits": repeated(b"7", head + b"\n", b"," * cells + b"\n"),
        "same row": repeated(row + b"\n", head + b"\n"),
    }


def line_shapes(head: bytes = b"", lines: Sequence[bytes] = ()) -> dict[str, Build]:
    """Lines of one repeated piece, which make an expression backtrack; and real ones."""
    pieces = {
        "digits": b"7",
        "letters": b"x",
        "blanks": b" ",
        "tabs": b"\t",
        "dots": b".",
        "colons": b"1:",
        "commas": b"1,",
        "equals": b"a=1 ",
        "bars": b"a | ",
        "brackets": b"[",
        "pairs": b"[1]",
        "quotes": b"'",
        "slashes": b"/a",
        "dashes": b"-",
        "escapes": b"\x1b[",
        "percents": b" 5%|",
        "stamps": b"2025-03-04 10:01:00 ",
        "returns": b"x\r",
        "zeros": b"\0",
    }
    shapes = {f"lines of {name}": long_lines(piece, head) for name, piece in pieces.items()}
    shapes["empty lines"] = repeated(b"\n", head)
    return shapes | real_lines(head, lines)


def real_lines(head: bytes, lines: Sequence[bytes]) -> dict[str, Build]:
    """Long versions of lines that a reader knows: repeated in one, or stuffed in the middle."""
    shapes = {}
    for number, line in enumerate(lines, 1):
        shapes[f"line {number} again"] = long_lines(line + b" ", head)
        shapes[f"line {number} stuffed"] = _stuffed(line, head)
    return shapes


def _stuffed(line: bytes, head: bytes) -> Build:
    """A line with digits and blanks in its middle, so that the text before is scanned again."""
    middle = len(line) // 2

    def build(size: int) -> bytes:
        each = max((size - len(head)) // 16 - len(line), 1)
        stuffed = line[:middle] + b"7" * (each // 2) + b" " * (each // 2) + line[middle:]
        return head + (stuffed + b"\n") * 16

    return build
