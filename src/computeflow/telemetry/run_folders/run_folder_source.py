"""`RunFolders`: the source of run folders, one report for each of them.

A folder is one run: files of its ranks and attempts, `run.json`, and the traces of sampled windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from computeflow.engines import each
from computeflow.errors import ComputeFlowError, InputError
from computeflow.files.limits import FOLDERS, RUN_BYTES, RUN_HEAD_BYTES
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text
from computeflow.ledger import Ledger
from computeflow.recorder.frames import MAGIC
from computeflow.telemetry.run_folders.attempt_time import AttemptTime, measure_attempt
from computeflow.telemetry.run_folders.model_work import model_work
from computeflow.telemetry.run_folders.rank_file import RankFile
from computeflow.telemetry.run_folders.rank_reading import read_rank_file
from computeflow.telemetry.run_folders.records import text
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.run_folders.run_ledger import RunBooks, book_run, run_ledger
from computeflow.telemetry.run_folders.run_summary import RunDescription, summarise
from computeflow.telemetry.run_folders.window_split import WindowSplit, read_window
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest

KIND = "recording"
ENDING = ".cfr"
_ABOUT = "run.json"
_PARTS = ("kineto", "control")
"""Folders inside a run folder."""
SEALED = ("steps.parquet", "spans.parquet", "collectives.parquet", "events.parquet")
"""What `collection.sealing` makes of the files of the ranks."""
_COMMAND_CHARACTERS = 500
_LEVELS = 4
"""How deep runs may lie below a folder: team, project, day, run."""


class RunFolders:
    kind = KIND

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is that of a rank, by its first bytes, or lies beside one."""
        return head[:5] == MAGIC[:5] or (
            (path.name in (_ABOUT, *SEALED) or path.parent.name == "control")
            and _is_run_folder(run_folder_of(path))
        )

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        folders: dict[Path, list[Path]] = {}
        for path in paths:
            folders.setdefault(run_folder_of(path), []).append(path)
        if request.engine == "ray" and len(folders) > 1:
            return _observe_apart(folders, request)
        share = _share(paths)
        return [_report(folder, files, request, share) for folder, files in folders.items()]


def _observe_apart(
    folders: Mapping[Path, Sequence[Path]], request: SourceRequest
) -> list[SourceReport]:
    """Each run by a worker of its own; one that cannot be read is left out with its reason."""
    read = partial(_read_item, request=replace(request, engine="local"))
    results = each(read, [*folders.items()], request.engine)
    reports = [result for result in results if isinstance(result, SourceReport)]
    failed = [result for result in results if isinstance(result, ComputeFlowError)]
    if not reports:
        raise failed[0]
    first = replace(reports[0], left_out=(*reports[0].left_out, *map(str, failed)))
    return [first, *reports[1:]]


def _read_item(item: tuple[Path, Sequence[Path]], request: SourceRequest) -> SourceReport:
    folder, files = item
    return _report(folder, files, request, _share(files))


def _share(paths: Sequence[Path]) -> int:
    """Bytes that are read of each file, where all of them have to fit into the limit of a run."""
    share = RUN_BYTES // max(sum(path.suffix == ENDING for path in paths), 1)
    return max(share, 2 * RUN_HEAD_BYTES)


def run_folder_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name in _PARTS else path.parent


def rank_files_of(folder: Path) -> list[Path]:
    """The files of a run's ranks, by name; hidden ones are none."""
    return sorted(_rank_files(folder))


def _rank_files(folder: Path) -> Iterator[Path]:
    """None where the folder is gone meanwhile."""
    with suppress(FileNotFoundError):
        yield from (path for path in folder.glob(f"*{ENDING}") if not path.name.startswith("."))


def _is_run_folder(folder: Path) -> bool:
    return next(_rank_files(folder), None) is not None


def find_run_folders(folder: Path, left_out: list[str]) -> list[Path]:
    """The folder itself if it is a run, else the runs below it, as deep as runs are kept."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    if _is_run_folder(folder):
        return [folder]
    below = list(islice(_folders_below(folder), FOLDERS + 1))
    if len(below) > FOLDERS:
        left_out.append(f"{folder}: runs are looked for in {FOLDERS:,} folders; it has more")
    return [path for path, is_run in below[:FOLDERS] if is_run]


def _folders_below(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Folders, level by level, and whether each is a run; runs and links are not entered."""
    level = [folder]
    for _ in range(_LEVELS):
        below: list[Path] = []
        for path in chain.from_iterable(map(_folders_in, level)):
            is_run = _is_run_folder(path)
            yield path, is_run
            if not is_run and not path.is_symlink():
                below.append(path)
        level = below


def _folders_in(folder: Path) -> list[Path]:
    """Those in it that are not hidden, by name; none where it may not be read."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    return [path for path in paths if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # behind a link, where nothing may be looked at
        return False


def has_begun(folder: Path) -> bool:
    """Whether it is a run, or holds one, of which no rank may have written yet."""
    return any(next(folder.glob(name), None) for name in (_ABOUT, f"*/{_ABOUT}"))


def read_run_folder(folder: Path, request: SourceRequest) -> SourceReport:
    """The report of one run, without the traces of its windows."""
    files = rank_files_of(folder)
    return _report(folder, files, request, _share(files))


def join_traces(files: Mapping[str, Sequence[Path]]) -> dict[str, tuple[Path, ...]]:
    """Files by kind, with the traces of a run folder's windows beside the files of its ranks."""
    folders = {run_folder_of(path) for path in files.get(KIND, ())}
    joined: dict[str, tuple[Path, ...]] = {}
    windows: list[Path] = []
    for kind, paths in files.items():
        ours = [p for p in paths if kind != KIND and _is_window(p) and run_folder_of(p) in folders]
        windows += ours
        if kept := tuple(path for path in paths if path not in ours):
            joined[kind] = kept
    if KIND in joined:
        joined[KIND] = (*joined[KIND], *windows)
    return joined


def _is_window(path: Path) -> bool:
    return path.parent.name == "kineto"


def read_run(files: Sequence[Path], most: int, left_out: list[str]) -> list[AttemptTime]:
    """The attempts of a run, from the files of its ranks."""
    read: list[RankFile] = []
    for path in sorted(files):
        try:
            file = read_rank_file(path, most)
        except ComputeFlowError as error:
            left_out.append(str(error))
            continue
        left_out += file.left_out
        read.append(file)
    if not read:
        raise InputError("; ".join(left_out) or "no file of a rank")
    return measure_run(read, left_out)


def measure_run(files: Iterable[RankFile], left_out: list[str]) -> list[AttemptTime]:
    """The attempts of a run, in order."""
    by_attempt: dict[int, dict[int, RankFile]] = {}
    for file in files:
        ranks = by_attempt.setdefault(file.start.attempt, {})
        other = ranks.get(file.start.rank)
        if other is not None:
            fewer, file = sorted((other, file), key=lambda each: len(each.steps))
            left_out.append(f"{fewer.path}: rank {file.start.rank} again, as in {file.path}")
        ranks[file.start.rank] = file
    return [
        measure_attempt(number, list(ranks.values()))
        for number, ranks in sorted(by_attempt.items())
    ]


def report_run(
    attempts: Sequence[AttemptTime],
    about: RunDescription,
    request: SourceRequest,
    *,
    sources: Sequence[str] = (),
    split: WindowSplit | None = None,
    left_out: Sequence[str] = (),
) -> SourceReport:
    """The report of a run, or of a window of one that goes on."""
    books = book_run(attempts)
    facts = summarise(attempts, books, about)
    ledger, reason, notes = _ledger(books, attempts, facts, request, split)
    return SourceReport(
        kind=KIND,
        sources=tuple(sources),
        facts=facts,
        ledger=ledger,
        ledger_reason=reason,
        happenings=_events(attempts),
        left_out=tuple(left_out),
        notes=(*notes, *_notes(attempts, facts)),
    )


def _report(folder: Path, paths: Sequence[Path], request: SourceRequest, most: int) -> SourceReport:
    left_out: list[str] = []
    files = [path for path in paths if path.suffix == ENDING or not _is_beside(path)]
    about = describe(folder, left_out)
    attempts = read_run(files, most, left_out)
    windows = [path for path in paths if _is_window(path)]
    split = read_window(windows, request.catalog, left_out)
    return report_run(
        attempts,
        about,
        request,
        sources=[str(path) for path in paths],
        split=split,
        left_out=left_out,
    )


def _ledger(
    books: RunBooks,
    attempts: Sequence[AttemptTime],
    facts: RecordedRun,
    request: SourceRequest,
    split: WindowSplit | None,
) -> tuple[Ledger | None, str, list[str]]:
    """The ledger; FLOPs of the model as the user states them, or as the recorder saw its shapes."""
    first = attempts[-1].ranks[0].file
    seen = model_work(first, facts.tokens_per_step, facts.samples_per_step)
    if request.work is not None or seen is None:
        return run_ledger(books, attempts, request, split)
    try:
        ledger, reason, notes = run_ledger(books, attempts, replace(request, work=seen), split)
    except InputError as error:
        ledger, reason, notes = run_ledger(books, attempts, request, split)
        return ledger, reason, [*notes, f"FLOPs of the recorded shapes are not used: {error}"]
    return ledger, reason, [*notes, "FLOPs are of the model's shapes, as the recorder saw them"]


def _is_beside(path: Path) -> bool:
    return path.name in (_ABOUT, *SEALED) or path.parent.name in _PARTS


def describe(folder: Path, left_out: list[str]) -> RunDescription:
    """What `run.json` says; nothing where there is none."""
    path = folder / _ABOUT
    data: Any = {}
    if path.is_file():
        try:
            data = parse_json(read_text(path), str(path), finite=False)
        except InputError as error:
            left_out.append(str(error))
    fields = data if isinstance(data, dict) else {}
    command = fields.get("command")
    words = " ".join(map(str, command)) if isinstance(command, list) else command
    return RunDescription(
        folder=str(folder),
        name=text(fields.get("name")) or folder.resolve().name,
        command=text(words, _COMMAND_CHARACTERS),
        more=fields,
    )


def _events(attempts: Sequence[AttemptTime]) -> tuple[Event, ...]:
    """Attempts after the first, and what the ranks noted."""
    events = [
        Event(seconds=attempt.begin / 1e6, what="restart", fault=True) for attempt in attempts[1:]
    ]
    for attempt in attempts:
        for rank in attempt.ranks:
            start = rank.file.start
            events += [
                Event(
                    seconds=event.end / 1e6,
                    what=event.what,
                    node=start.host,
                    rank=start.rank,
                    gpu=start.gpu_uuid,
                    detail=event.text,
                )
                for event in rank.file.events
            ]
    return tuple(events)


def _notes(attempts: Sequence[AttemptTime], facts: RecordedRun) -> list[str]:
    notes = [note for attempt in attempts for note in attempt.notes]
    if facts.dropped:
        notes.append(
            f"the recorder dropped {facts.dropped:,} records: their steps are in unexplained"
        )
    if facts.profiled_steps:
        notes.append(
            f"{facts.profiled_steps:,} steps ran under a profiler: they are not in the step times; "
            f"profiler windows cost {facts.profiler_seconds:.1f} s of a rank, booked on host"
        )
    if any(attempt.waits.sampled for attempt in attempts):
        notes.append("not every collective was kept: waits are at least as long as shown")
    led = [bool(len(rank.file.leads)) for each in attempts for rank in each.ranks]
    on_device = [rank.file.start.device != "cpu" for each in attempts for rank in each.ranks]
    if any(on_device) and not all(led):
        notes.append("no times of the device were kept: the host's phases stand for it")
    return list(dict.fromkeys(notes))
