"""Output of `nvidia-smi topo -m`: how the devices and NICs of one node are joined.

Checked against published matrices of A100, H100, V100 and PCIe machines, with and without a legend
of NICs. The output does not name its node, so it is taken for every node of the cluster.
"""

from __future__ import annotations

import re

from computeflow.catalog.config import short
from computeflow.cluster.topology.topology import Board, Problem, Topology
from computeflow.errors import InputError
from computeflow.files.limits import LINE_BYTES, NODE_COLUMNS

_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # nvidia-smi underlines its header
_LEGEND = re.compile(r"[ \t]*(NIC\d+):[ \t]*(\S+)[ \t]*")
_NVLINK = re.compile(r"NV\d{1,3}")
_NEAR = ["PIX", "PXB", "PHB", "NODE", "SYS"]  # bridges between the two, fewest first
_WORDS = {"X", "SOC", "PSB", "C2C", "N/A", *_NEAR}

Matrix = dict[str, dict[str, str]]


def read_board(text: str, where: str) -> Topology:
    lines = [line for line in _ANSI.sub("", text).split("\n") if line.strip()]
    if any(len(line) > LINE_BYTES for line in lines):
        raise InputError(f"{where}: a line of more than {LINE_BYTES:,} characters, not of a matrix")
    start, columns = _header(lines, where)
    gpus = [name for name in columns if name.startswith("GPU")]
    nics = [name for name in columns if name not in gpus]
    matrix = _matrix(lines[start:], columns, gpus, where)
    names = {m[1]: m[2] for m in map(_LEGEND.fullmatch, lines) if m}
    board = Board(
        devices=len(gpus),
        domain=_domain(matrix, gpus),
        nics=_called(nics, names),
        nearest=tuple(_called(_nearest(matrix[gpu], nics), names) for gpu in gpus),
    )
    return Topology(board=board, sources=(where,), found=tuple(_unlike(matrix)))


def _called(nics: list[str], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(names.get(nic, nic) for nic in nics)


def _matrix(lines: list[str], columns: list[str], gpus: list[str], where: str) -> Matrix:
    matrix: Matrix = {}
    for line in lines:
        label, *cells = line.split()
        if label not in columns:
            break
        if label in matrix:
            raise InputError(f"{where}: two rows for {label}: give the output of one node")
        matrix[label] = _row(label, cells, columns, where)
    for gpu in gpus:
        if gpu not in matrix:
            raise InputError(f"{where}: no row for {gpu}: the matrix is cut off")
    return matrix


def _header(lines: list[str], where: str) -> tuple[int, list[str]]:
    """The line after the header, and the devices and NICs that are its columns."""
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words[0] == "GPU0" and "X" not in words:
            columns = words[: words.index("CPU")] if "CPU" in words else words
            if len(columns) > NODE_COLUMNS or len(set(columns)) < len(columns):
                raise InputError(f"{where}: {len(columns)} columns, not those of one node")
            return number, columns
    raise InputError(f"{where}: no line that begins with GPU0: not what nvidia-smi topo -m prints")


def _row(label: str, cells: list[str], columns: list[str], where: str) -> dict[str, str]:
    cells = cells[: len(columns)]
    strange = [cell for cell in cells if cell not in _WORDS and not _NVLINK.fullmatch(cell)]
    if strange or len(cells) < len(columns):
        what = f"'{short(strange[0])}' is no kind of link" if strange else "columns are missing"
        raise InputError(f"{where}: row {label}: {what}: the matrix is cut off or changed")
    return dict(zip(columns, cells, strict=True))


def _domain(matrix: Matrix, gpus: list[str]) -> int:
    """Devices in the largest set that NVLink joins, directly or through others of the set."""
    largest, seen = 1, set[str]()
    for gpu in gpus:
        joined, ready = {gpu}, [gpu]
        while ready and gpu not in seen:
            row = matrix[ready.pop()]
            new = {other for other in gpus if _NVLINK.fullmatch(row[other])} - joined
            joined |= new
            ready += new
        seen |= joined
        largest = max(largest, len(joined))
    return largest


def _nearest(row: dict[str, str], nics: list[str]) -> list[str]:
    ranks = {nic: _NEAR.index(row[nic]) for nic in nics if row[nic] in _NEAR}
    best = min(ranks.values(), default=0)
    return [nic for nic, rank in ranks.items() if rank == best]


def _unlike(matrix: Matrix) -> list[Problem]:
    """Pairs whose two cells differ."""
    return [
        Problem(rule="asymmetric-link", where=f"{a} and {b}", what=f"{cell} and {matrix[b][a]}")
        for a, row in matrix.items()
        for b, cell in row.items()
        if a < b and b in matrix and matrix[b][a] != cell
    ]
