"""`Answer`: what every library function returns, as data, as tables and as a report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computeflow import codec
from computeflow.catalog.loading import user_files
from computeflow.files.writing import check_target, inputs_kept, write_file
from computeflow.views.tables import Table, lead_html, to_html

if TYPE_CHECKING:
    from computeflow.views.html_report import Part

PROBLEMS = 3
"""Exit code of an answer that reports problems."""
INTERRUPTED = 130
"""The exit code of an answer that is the best so far, because the user interrupted."""


class Answer(ABC):
    """Base class. A subclass is a frozen dataclass that holds values and knows how to show them."""

    __slots__ = ("_inputs",)
    _inputs: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with its `schema`: the content of `-o json`."""
        data: dict[str, Any] = codec.with_lists(self._data())
        return data

    @abstractmethod
    def _data(self) -> dict[str, Any]: ...

    @abstractmethod
    def tables(self) -> list[Table]:
        """The tables that a terminal shows."""

    @property
    def headline(self) -> str:
        """The answer in one to three lines, shown before all tables; "": the first table says it."""
        return ""

    def parts(self) -> Sequence[Part]:
        """Tables and figures of the report."""
        return self.tables()

    @property
    def title(self) -> str:
        return self.tables()[0].title

    @property
    def exit_code(self) -> int:
        """0, or 3 where the answer reports problems."""
        return 0

    @property
    def prints(self) -> bool:
        """False in a process that prints nothing because another one prints for all."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def _repr_html_(self) -> str:
        return lead_html(self.headline) + "".join(to_html(table) for table in self.tables())

    def remember_inputs(self, inputs: tuple[Path, ...]) -> None:
        """Remember the caller's input files: no report is written over one."""
        object.__setattr__(self, "_inputs", inputs)

    @property
    def input_files(self) -> tuple[Path, ...]:
        return (*getattr(self, "_inputs", ()), *self._files_read())

    def _files_read(self) -> tuple[Path, ...]:
        """Files read from folders that the caller named."""
        return ()

    def save_html(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write headline, tables and figures as one self-contained file."""
        from computeflow.views.html_report import report_html

        with inputs_kept((*self.input_files, *user_files())):
            check_target(path, "--html")
            page = report_html(self.title, self.parts(), lead=self.headline)
            write_file(path, page, "--html", force=force)
