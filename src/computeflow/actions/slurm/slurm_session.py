"""`SlurmSession`: what a step needs of Slurm: its state, its commands, and a folder for scripts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from computeflow.actions.engine import ClusterState, EngineJob, RefusedStepError, StepProgress
from computeflow.actions.slurm import slurm_commands as commands
from computeflow.actions.slurm.command_line import CommandLine
from computeflow.actions.slurm.slurm_commands import Words, mark
from computeflow.actions.slurm.slurm_state import job_name, read_jobs, read_state
from computeflow.errors import OutputError


class StateReader(Protocol):
    """Where jobs and nodes are read: the command line, or slurmrestd; JSON as Slurm writes it."""

    def jobs(self) -> str: ...

    def nodes(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLineReader:
    line: CommandLine

    def jobs(self) -> str:
        return self.line.run(commands.SHOW_JOBS)

    def nodes(self) -> str:
        return self.line.run(commands.SHOW_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSession:
    line: CommandLine
    reader: StateReader
    folder: Path
    now: Callable[[], float]

    def observe(self) -> ClusterState:
        return read_state(self.reader.jobs(), self.reader.nodes(), self.now())

    def rows(self) -> list[dict[str, Any]]:
        """Jobs as Slurm has them."""
        return read_jobs(self.reader.jobs())

    def done(self, *words: Words, note: str = "") -> StepProgress:
        return StepProgress(done=True, commands=self._given(words), note=note)

    def wait(self, *words: Words, note: str) -> StepProgress:
        return StepProgress(done=False, commands=self._given(words), note=note)

    def _given(self, words: tuple[Words, ...]) -> tuple[Words, ...]:
        for each in words:
            self.line.run(each)
        return words

    def submit(self, words: Words, more: Mapping[str, str] | None = None) -> str:
        """The number of the job that `sbatch --parsable` made."""
        return self.line.run(words, more).strip().partition(";")[0]

    def keep(self, name: str, text: str) -> Path:
        """A file whole or not at all, whatever a controller wrote there before it was killed."""
        path = self.folder / name
        part = path.with_name(f".{path.name}")
        try:
            part.write_text(text)
            part.replace(path)
        except OSError as error:
            raise OutputError(f"{path}: {error.strerror or error}") from None
        return path

    @contextmanager
    def secret(self, name: str, data: bytes) -> Iterator[Path]:
        """A file that nobody else can read, until the end of the block."""
        path = self.folder / name
        try:
            path.unlink(missing_ok=True)  # of a controller that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(data)
            yield path
        except OSError as error:
            raise OutputError(f"{path}: {error.strerror or error}") from None
        finally:
            path.unlink(missing_ok=True)


def this_user() -> str:
    """Who Slurm takes this process for."""
    return pwd.getpwuid(os.geteuid()).pw_name


def find_job(state: ClusterState, name: str) -> EngineJob:
    job = state.jobs.get(name)
    if job is None:
        raise RefusedStepError(f"job {name}: Slurm knows none of this number, or no longer")
    return job


def marked_job(rows: list[dict[str, Any]], key: str, other_than: str = "") -> str | None:
    """The job that carries the action's mark."""
    for row in rows:
        if mark(key) in str(row.get("comment") or "").split() and job_name(row) != other_than:
            return job_name(row)
    return None
