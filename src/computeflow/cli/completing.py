"""Shell completion of the catalog's names. A catalog that does not load completes to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from computeflow.catalog import load_catalog
from computeflow.catalog.lookup import GROUPS
from computeflow.errors import ComputeFlowError

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

Complete = Callable[["click.Context", "click.Parameter | None", str], "list[CompletionItem]"]


def names_of(group: str | None) -> Complete:
    """Complete names of one group, or of all; for models, a path completes to files."""
    return _completing(lambda: _names(group), files=group in (None, "models"))


def _completing(known: Callable[[], Iterable[str]], *, files: bool = False) -> Complete:
    def complete(
        ctx: click.Context, parameter: click.Parameter | None, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if files and incomplete.startswith((".", "/", "~")):
            return [CompletionItem(incomplete, type="file")]
        try:
            names = sorted(set(known()))
        except ComputeFlowError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _names(group: str | None) -> Iterator[str]:
    facts = load_catalog()
    for kind in (kind for name in ([group] if group else GROUPS) for kind in GROUPS[name]):
        yield from (name for name, _ in facts.names(kind))


def _sellers() -> Iterator[str]:
    yield from _names("providers")
    yield from (name.partition("/")[0] for name in _names("offers"))


accelerator_names = names_of("accelerators")
seller_names = _completing(_sellers)
