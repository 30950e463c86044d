"""`LogSource`: logs of training frameworks and of collective benchmarks, as `Observed`."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from computeflow.errors import LedgerError
from computeflow.ledger import Entry, Ledger, Window
from computeflow.telemetry.lines import head_of
from computeflow.telemetry.logs import mllog, tables
from computeflow.telemetry.logs.bandwidth import Benchmark
from computeflow.telemetry.logs.clock import YEAR, time_of, with_year
from computeflow.telemetry.logs.events import Event, Launch, Place, Setting, Step
from computeflow.telemetry.logs.facts import Run
from computeflow.telemetry.logs.findings import findings
from computeflow.telemetry.logs.frameworks import Parser
from computeflow.telemetry.logs.grouping import Group, Piece, group
from computeflow.telemetry.logs.reading import Line, read
from computeflow.telemetry.logs.story import Story
from computeflow.telemetry.observed import Asked, Observed

_LOOK_FURTHER = 1 << 20
_MARKS = re.compile(
    rb":::MLLOG |elapsed time per iteration \(ms\):|using world size: \d|time_per_iteration_ms: "
    rb"|train_step_timing in s: |completed step: \d+, seconds: |\[titan\] \d{4}-"
    rb"|step:\s+[\d,]+\s+(?:\x1b\[\d+m)?loss:|iter time \(s\): [\d.]+ samples/sec|dist_world_size=\d"
    rb"|\{'(?:loss|eval_loss|train_runtime)': .*'epoch': |\d+%\|[^|\n\r]*\| *\d+/\d+ \[[\d:]+<"
    rb"|\*\*\*\*\* Running training \*\*\*\*\*|Watchdog caught collective operation timeout"
    rb"|elastic\.multiprocessing\.errors\.ChildFailedError|torch\.(?:cuda\.)?OutOfMemoryError"
)
_BENCHMARKS = re.compile(
    rb"# +size +count +type|# nThread \d+ nGpus \d+ minBytes|\d data size: [\d.]+ GB\s"
)


class LogSource:
    kind = "log"

    def recognises(self, path: Path, head: bytes) -> bool:
        """By a mark of some framework in its first megabyte: scripts print much before it starts."""
        if b"\x00" in head[:512] and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            return False
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            head = head.decode("utf-16", "replace").encode()
        if tables.is_trainer_state(head) or tables.is_metrics_csv(head):
            return True
        if head.lstrip()[:1] == b"{" and b"{'" not in head[:2]:  # JSON is of other kinds
            return bool(_MARKS.match(head))
        if _MARKS.search(head) or _BENCHMARKS.search(head):
            return True
        further = head_of(path, _LOOK_FURTHER)
        return bool(_MARKS.search(further) or _BENCHMARKS.search(further))

    def observe(self, paths: Sequence[Path], asked: Asked) -> list[Observed]:
        logs: list[Path] = []
        found: list[Observed] = []
        for path in paths:
            head = head_of(path, _LOOK_FURTHER)
            if _BENCHMARKS.search(head):
                found.append(_benchmark(path))
                if _MARKS.search(head):  # a check before training starts
                    logs.append(path)
            elif tables.is_trainer_state(head):
                found += _told(_of_table(tables.trainer_state(path), path), [], [])
            elif tables.is_metrics_csv(head):
                broken: list[str] = []
                found += _told(_of_table(tables.metrics_csv(path, broken), path), broken, [])
            else:
                logs.append(path)
        for run in group(logs):
            found += _observe(run, asked)
        return found


def _benchmark(path: Path) -> Observed:
    broken: list[str] = []
    benchmark = Benchmark(str(path))
    benchmark.read(_raw(path, broken))
    facts = benchmark.told()
    if not facts.rows:
        broken.append(f"{path}: a benchmark's header without figures")
    if benchmark.more:
        broken.append(f"{path}: {benchmark.more:,} further lines of figures")
    return Observed(
        kind=LogSource.kind,
        sources=(str(path),),
        facts=facts,
        ledger_reason="a benchmark of collectives, not a training run",
        left_out=tuple(broken),
    )


def _raw(path: Path, broken: list[str]) -> Iterator[str]:
    """Lines with the number that `reading` takes for a task's."""
    for line in read(path, broken):
        yield f"{line.stream} {line.text}" if line.stream else line.text


def _of_table(events: Iterator[tuple[Event, Place]], path: Path) -> list[Story]:
    story = Story()
    story.files.append(str(path))
    story.feed(Launch(), Place(file=str(path), line=1))
    for event, place in events:
        story.lines = max(story.lines, place.line)
        story.feed(event, place)
    if story.stated_seconds and not story.timeline.seen:
        _spread(story, story.stated_seconds)
    return [story]


def _spread(story: Story, seconds: float) -> None:
    """A table that only says how long all of it took: evaluations are known, the rest is steps."""
    evaluated = min(story.evaluated_seconds, seconds)
    story.timeline.booked["compute"] = seconds - evaluated
    if evaluated:
        story.timeline.booked["evaluation"] = evaluated
    story.timeline.cursor = story.timeline.seen = seconds
    story.spread = True


def _observe(run: Group, asked: Asked) -> list[Observed]:
    broken: list[str] = []
    strong = any(piece.strong for piece in run.pieces)
    stories = [Story()]
    for number, launch in enumerate(run.launches):
        if number:
            stories[-1].leave_gap()
        _read_launch(launch, stories, asked, broken, strong)
    notes = []
    if len(run.launches) > 1:
        notes.append(f"{len(run.launches)} launches of one run: they save to the same place")
    return _told(stories, broken, notes)


def _read_launch(
    launch: Sequence[Piece], stories: list[Story], asked: Asked, broken: list[str], strong: bool
) -> None:
    """Rotated files one after the other; files of ranks side by side, by their times."""
    parsers = {piece.path: Parser() for piece in launch}
    lines = (
        heapq.merge(*(_dated(piece, broken) for piece in launch), key=lambda item: item[0])
        if any(piece.rank is not None for piece in launch)
        else (item for piece in launch for item in _dated(piece, broken))
    )
    for now, piece, line, stamp in lines:
        if (asked.start is not None and now < asked.start) or (
            asked.end is not None and now > asked.end
        ):
            continue
        story = stories[-1]
        if str(piece.path) not in story.files:
            story.files.append(str(piece.path))
        story.lines += 1
        event = parsers[piece.path].event(line.text, line.stream)
        if isinstance(event, Step) and event.weak and strong:
            event = None
        if event is None and stamp is None:
            continue
        if story.finished and story.stepped and _launches(event):
            stories.append(story := Story())
            story.files.append(str(piece.path))
        story.feed(event, _place(piece, line, stamp))
        story.framework = parsers[piece.path].framework or story.framework


def _launches(event: Event | None) -> bool:
    return isinstance(event, Launch) or (isinstance(event, Setting) and event.launch)


def _place(piece: Piece, line: Line, stamp: tuple[float, bool] | None) -> Place:
    rank = line.rank if line.rank is not None else piece.rank
    stream = f"{piece.rank}/{line.stream}" if piece.rank is not None else line.stream
    seconds, dated = stamp if stamp else (None, True)
    return Place(file=str(piece.path), line=line.number, rank=rank, node=line.node, stream=stream,
                 seconds=seconds, dated=dated)  # fmt: skip


def _dated(
    piece: Piece, broken: list[str]
) -> Iterator[tuple[float, Piece, Line, tuple[float, bool] | None]]:
    """Lines with the time that they were written at or after, and their own time."""
    now, years, last = 0.0, 0.0, None
    year_known = False
    for line in read(piece.path, broken):
        text = line.text
        stamp: tuple[float, bool] | None
        if mllog.MARK in text:
            at = mllog.time_of(text)
            stamp = None if at is None else (at, True)
        else:
            stamp = time_of(text)
        if stamp is not None and not stamp[1]:
            if year_known:
                stamp = (with_year(stamp[0], now), True)
            else:
                seconds = stamp[0] + years
                if last is not None and seconds < last - YEAR / 2:
                    years += YEAR
                    seconds += YEAR
                stamp, last = (seconds, False), seconds
        elif stamp is not None:
            year_known = True
        if stamp is not None:
            now = max(now, stamp[0])
        yield now, piece, line, stamp


def _told(stories: list[Story], broken: list[str], notes: list[str]) -> list[Observed]:
    found = []
    for story in stories:
        if len(stories) > 1 and not story.stepped and not story.happenings:
            continue
        run = story.told()
        ledger, reason, unavailable_notes = _ledger(story, run)
        found.append(
            Observed(
                kind=LogSource.kind,
                sources=run.files,
                facts=run,
                ledger=ledger,
                ledger_reason=reason,
                findings=findings(run, ledger) if ledger else (),
                happenings=tuple(story.happenings),
                left_out=(*broken, *(f"{n:,} further {what}" for what, n in story.left.items())),
                notes=(*notes, *unavailable_notes, *_notes(story, run)),
            )
        )
    return found


def _ledger(story: Story, run: Run) -> tuple[Ledger | None, str, list[str]]:
    timeline = story.timeline
    wall = sum(timeline.booked.values())
    if not wall:
        missing = "no time of day and no step time in it" if run.steps else "no step in it"
        return None, f"{missing}: nothing to divide", []
    gpus, notes = run.world_size or 1, []
    if run.world_size is None:
        notes.append("the log does not say how many ranks ran: GPU-seconds are of one rank")
    unavailable = {"compute.model": "the model's FLOPs", "host": "a trace", "straggler": "a trace",
                   "imbalance": "a trace", "bubble": "a trace"}  # fmt: skip
    fell_to = {"host": "compute"}
    for name in ("optimizer", "comm", "input"):
        if not any(a == name or a.startswith(f"{name}.") for a in timeline.booked):
            unavailable[name], fell_to[name] = "timers in the log", "compute"
    if "comm" in unavailable:
        fell_to |= dict.fromkeys(("imbalance", "straggler", "bubble"), "compute")
    if timeline.offset is None and "startup" not in timeline.booked:
        unavailable["startup"] = "times of day in the log"
    if story.spread:
        unavailable |= {"checkpoint": "times in the log", "restart": "times in the log"}
        fell_to |= {"checkpoint": "compute"}
    start = timeline.unix(0.0) if story.dated and not timeline.left_out else None
    window = Window(
        label=f"the whole log, {run.steps:,} {run.unit}",
        first_step=run.first_step if not run.restarts else None,
        last_step=run.last_step if not run.restarts else None,
        start_seconds=start,
        end_seconds=None if start is None else start + wall,
    )
    try:
        ledger = Ledger.closed(
            [Entry(account=name, gpu_seconds=s * gpus) for name, s in timeline.booked.items()],
            gpus=gpus,
            wall_seconds=wall,
            basis="measured",
            window=window,
            gpus_total=run.world_size,
            unavailable=unavailable,
            fell_to=fell_to,
        )
    except LedgerError as error:
        return None, f"its figures cannot be meant: {error}", notes
    return ledger, "", notes


def _notes(story: Story, run: Run) -> list[str]:
    timeline, notes = story.timeline, []
    if timeline.offset is not None and not story.dated:
        notes.append("times without a year: only their distances are used")
    elif timeline.offset is not None:
        notes.append("times without a zone are read as UTC")
    if story.speakers.echoes:
        notes.append(
            f"{story.speakers.echoes:,} step lines of other ranks say the same and are not counted"
        )
    if len(story.worlds) > 1:
        sizes = ", ".join(map(str, sorted(story.worlds)))
        notes.append(f"the world size changes ({sizes}): GPU-seconds are counted with the largest")
    if timeline.left_out:
        notes.append(f"{timeline.left_out:,.0f} s between launches are not in the ledger: the log "
                     "does not say that the GPUs were held")  # fmt: skip
    if timeline.set_backs:
        notes.append(f"the clock goes back {timeline.set_backs} times: read as going on from there")
    if timeline.overbooked:
        notes.append(
            f"timers of {timeline.overbooked:,} intervals exceed their step time: not used"
        )
    forms = {"one": "of the one rank that prints them", "most": "of the slowest rank: not booked",
             "least": "least over the ranks; the wait beyond is in compute"}  # fmt: skip
    timed = any(name.startswith(("comm", "optimizer", "input")) for name in timeline.booked)
    if run.timers_form in forms and (timed or run.timers_form == "most"):
        notes.append(f"timers are {forms[run.timers_form]}")
    if run.claimed_mfu is not None or run.claimed_gpu_tflops is not None:
        notes.append("MFU and TFLOP/s are the log's own claims, by its own count of FLOPs")
    return notes
