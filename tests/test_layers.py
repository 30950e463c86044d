"""Imports point one way (docs/design.md): lower lines never see higher ones, nor their neighbours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "computeflow"
LAYERS = [
    {"_lazy"},
    {"errors"},
    {"files"},
    {"units"},
    {"codec", "engines", "recorder"},
    {"ledger", "catalog"},
    {"workload", "cluster"},
    {"prediction", "telemetry", "economics"},
    {"planning", "replay"},
    {"diagnosis"},
    {"auditing"},
    {"scheduling"},
    {"simulation"},
    {"comparison"},
    {"collection"},
    {"actions"},
    {"lab"},
    {"views"},
    {"answers"},
    {"web"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


@cache
def imported_areas(source: str) -> frozenset[str]:
    """The areas of computeflow that a module imports, at its top or inside its functions."""
    return frozenset(_imported_areas(source))


def _imported_areas(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError("relative import: write computeflow.<area>")
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "computeflow":
                names = [f"computeflow.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "computeflow" and len(parts) > 1:
                yield parts[1]


def violations(area: str, source: str) -> list[str]:
    return [
        other
        for other in imported_areas(source)
        if other in LEVEL and other != area and LEVEL[other] >= LEVEL[area]
    ]


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        area = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if area not in ("__init__", "__main__"):
            found.append((area, path))
    return found


@pytest.mark.parametrize(("area", "path"), modules(), ids=lambda x: getattr(x, "name", x))
def test_a_module_imports_only_from_lower_layers(area: str, path: Path) -> None:
    assert area in LEVEL, f"{area} has no layer: give it one in tests/test_layers.py"
    assert violations(area, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from computeflow.views import Table",
        "import computeflow.cli.app",
        "def f():\n    from computeflow import catalog",
        "if TYPE_CHECKING:\n    from computeflow.prediction import predict",
    ],
)
def test_an_import_that_points_up_or_sideways_is_caught(source: str) -> None:
    assert violations("ledger", source)


def test_no_two_areas_import_each_other() -> None:
    edges = {
        (area, other) for area, path in modules() for other in imported_areas(path.read_text())
    }
    assert not [(a, b) for a, b in edges if a != b and (b, a) in edges]
