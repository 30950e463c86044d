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
    from computeflow.views.report import Part

PROBLEMS = 3
"""The exit code of an answer that is: there are problems."""
INTERRUPTED = 130
"""Of one that is the best so far, because somebody would not wait."""


class Answer(ABC):
    """A subclass is a frozen dataclass that holds values and knows how they are shown."""

    __slots__ = ("_inputs",)
    _inputs: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with its `schema`: what `-o json` prints, and what reading that gives."""
        data: dict[str, Any] = codec.with_lists(self._data())
        return data

    @abstractmethod
    def _data(self) -> dict[str, Any]: ...

    @abstractmethod
    def tables(self) -> list[Table]:
        """What a terminal shows."""

    @property
    def headline(self) -> str:
        """The answer itself in one to three lines, shown before every table; "": the tables are it."""
        return ""

    def parts(self) -> Sequence[Part]:
        """Tables and figures of the report."""
        return self.tables()

    @property
    def title(self) -> str:
        return self.tables()[0].title

    @property
    def exit_code(self) -> int:
        """0, or 3 where the answer is that there are problems."""
        return 0

    @property
    def speaks(self) -> bool:
        """False in a process beside the one that prints the answer for all."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    def _repr_html_(self) -> str:
        return lead_html(self.headline) + "".join(to_html(table) for table in self.tables())

    def remember_inputs(self, inputs: tuple[Path, ...]) -> None:
        """The files that the caller named; no report is written over one."""
        object.__setattr__(self, "_inputs", inputs)

    @property
    def input_files(self) -> tuple[Path, ...]:
        return (*getattr(self, "_inputs", ()), *self._files_read())

    def _files_read(self) -> tuple[Path, ...]:
        """Files of folders that the caller named."""
        return ()

    def save_html(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write tables and figures as one file that needs nothing else."""
        from computeflow.views.report import report_html

        with inputs_kept((*self.input_files, *user_files())):
            check_target(path, "--html")
            page = report_html(self.title, self.parts(), lead=self.headline)
            write_file(path, page, "--html", force=force)
