"""One plan as files for every framework and launcher that can take it, each in its own folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from computeflow.errors import ComputeFlowError
from computeflow.planning.exports.config_formats import Setup, WrittenConfig
from computeflow.planning.exports.frameworks import FRAMEWORKS
from computeflow.planning.exports.launchers import LAUNCHERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One format of a plan."""

    name: str
    version: str
    written: WrittenConfig | None
    refused: str = ""
    """Why the format cannot take the plan."""


def export(setup: Setup, command: list[str], names: tuple[str, ...] = ()) -> list[Exported]:
    """Write all formats, or those named; what one cannot take is reported, and the others go on."""
    exported = []
    for name, framework in FRAMEWORKS.items():
        if not names or name in names:
            exported.append(_one(name, framework.version, partial(framework.write, setup)))
    for name, launcher in LAUNCHERS.items():
        if not names or name in names:
            exported.append(_one(name, launcher.version, partial(launcher.write, setup, command)))
    return exported


def _one(name: str, version: str, write: Callable[[], WrittenConfig]) -> Exported:
    try:
        return Exported(name=name, version=version, written=write())
    except ComputeFlowError as error:
        return Exported(name=name, version=version, written=None, refused=str(error))
