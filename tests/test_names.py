"""Every package says what it offers, and has it."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import computeflow
from computeflow._lazy import lazy_exports

PACKAGES = [
    "computeflow",
    *(
        found.name
        for found in pkgutil.walk_packages(computeflow.__path__, "computeflow.")
        if found.ispkg
    ),
]


def hidden_or_missing(package: ModuleType) -> list[str]:
    """Names that a package lists and does not give, also when all of its modules are imported: one of
    the same name would hide what is meant.
    """
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)} - {"__main__"}
    for name in modules:
        importlib.import_module(f"{package.__name__}.{name}")
    subpackages = {name for name in modules if f"{package.__name__}.{name}" in PACKAGES}
    return [
        name
        for name in package.__all__
        if not hasattr(package, name)
        or (isinstance(getattr(package, name), ModuleType) and name not in subpackages)
    ]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_its_names_and_has_them(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__
    assert hidden_or_missing(package) == []


@pytest.mark.parametrize("name", ["no_such_name", "codec"])
def test_a_name_that_is_absent_or_hidden_by_a_module_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computeflow, "__all__", [name])
    assert hidden_or_missing(computeflow) == [name]


def test_a_lazy_name_is_imported_once_and_an_unknown_one_is_an_attribute_error() -> None:
    get, names = lazy_exports("computeflow.ledger", {"Window": "book"})
    from computeflow.ledger.book import Window

    assert get("Window") is Window
    assert "Window" in names()
    with pytest.raises(
        AttributeError, match=r"module 'computeflow.ledger' has no attribute 'Books'"
    ):
        get("Books")
