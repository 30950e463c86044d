"""Fuzz every reader, guided by coverage; benchmarks/reports/fuzzing.md.

    python -m benchmarks.fuzz_readers --minutes 60            an hour of CPU, split over all readers
    python -m benchmarks.fuzz_readers --minutes 5 --reader kineto --reader nsys

A finding is whatever escapes that is no `ComputeFlowError`, a run above `bound_seconds` of CPU, memory
above `MEMORY_BYTES`, or the end of the process. Each is made smaller and kept in `--keep`, with its
traceback; the exit code is 1. The corpus is kept there, too: the next run begins where this one
ended. Needs atheris (the extra `fuzz`), which instruments the package once; a process is forked for
each reader.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "reports" / "fuzzing.md"
DATA = REPORT.with_suffix(".json")
MAX_BYTES = 32_768
"""Largest input, in bytes."""
MEMORY_BYTES = 2 << 30
"""Memory that a process may take beyond that of the loaded package."""
HANGS_SECONDS = 120
"""Wall-clock time after which the process is ended."""
_MAX_ROUNDS = 50
SHRINK_SECONDS = 5.0
_SKIPPED = (
    "computeflow.lab",
    "computeflow.recorder",
    "computeflow.__main__",
    "computeflow.cli.__main__",
)
_STATE = re.compile(r"#(\d+)\s.*cov: (\d+) .*corp: (\d+)")


def bound_seconds(size: int) -> float:
    """CPU that an input of so many bytes may take; instrumented code is several times slower.
    Readers of formats in which a few bytes name many things have `extra_seconds`.
    """
    return 2.0 + 200e-6 * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    reader: str
    executions: int
    edges: int
    corpus: int
    seconds: float
    cpu_seconds: float
    findings: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of CPU, over all readers")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--reader", action="append", default=[], help="these alone: their rows are replaced"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, default=ROOT / "build" / "fuzz", help="corpora and findings"
    )
    arguments = parser.parse_args()
    try:
        atheris: Any = importlib.import_module("atheris")  # has no types
    except ImportError:
        print("fuzz_readers: needs atheris: pip install 'computeflow[fuzz]'", file=sys.stderr)
        return 2
    load_instrumented(atheris)
    from benchmarks.readers import all_readers

    readers = {reader.name: reader for reader in all_readers()}
    if unknown := [name for name in arguments.reader if name not in readers]:
        print(
            f"fuzz_readers: no reader {unknown[0]}; there are {', '.join(readers)}", file=sys.stderr
        )
        return 2
    names = arguments.reader or list(readers)
    slice_seconds = max(arguments.minutes * 60 / len(names), 5.0)
    outcomes = _all(atheris, [readers[name] for name in names], slice_seconds, arguments)
    _report(outcomes, arguments, list(readers))
    failures = sum(len(outcome.findings) for outcome in outcomes)
    runs = sum(outcome.executions for outcome in outcomes)
    print(f"{runs:,} executions of {len(outcomes)} readers, {failures} findings ({arguments.keep})")
    return 1 if failures else 0


def load_instrumented(atheris: Any) -> None:
    """Load all modules of the package, and discard the messages of atheris."""
    with warnings.catch_warnings(), _silent(), atheris.instrument_imports(include=["computeflow"]):
        warnings.simplefilter("ignore")
        import computeflow

        for module in pkgutil.walk_packages(computeflow.__path__, "computeflow."):
            if not module.name.startswith(_SKIPPED):
                importlib.import_module(module.name)


@contextmanager
def _silent() -> Iterator[None]:
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _all(
    atheris: Any, readers: Sequence[Any], seconds: float, arguments: argparse.Namespace
) -> list[Outcome]:
    """Fuzz each reader for so many seconds of CPU, in a process of its own, `--jobs` at a time."""
    waiting = list(readers)
    running: dict[int, tuple[Any, float]] = {}
    spent: dict[str, list[float]] = {reader.name: [0.0, 0.0] for reader in readers}
    rounds: Counter[str] = Counter()
    outcomes = []
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            reader = waiting.pop(0)
            _clear(arguments.keep / reader.name)
            pid = _fork(atheris, reader, seconds, arguments, arguments.seed)
            running[pid] = (reader, time.monotonic())
        pid, _, used = os.wait4(-1, 0)
        reader, began = running.pop(pid)
        times = spent[reader.name]
        times[0] += time.monotonic() - began
        times[1] += used.ru_utime + used.ru_stime
        left = seconds - times[1]
        # A hang, the end of the interpreter, or a busy machine: on with the rest.
        if left > 5 and rounds[reader.name] < _MAX_ROUNDS:
            rounds[reader.name] += 1
            pid = _fork(atheris, reader, left, arguments, arguments.seed + rounds[reader.name])
            running[pid] = (reader, time.monotonic())
            continue
        outcomes.append(_outcome(reader.name, arguments.keep / reader.name, times))
        last = outcomes[-1]
        print(
            f"{last.reader:24} {last.executions:9,} executions {last.edges:7,} edges "
            f"{last.cpu_seconds:5.0f} s {len(last.findings)} findings",
            flush=True,
        )
    return outcomes


def _clear(keep: Path) -> None:
    """Remove the results of an earlier run, but keep its corpus."""
    shutil.rmtree(keep / "findings", ignore_errors=True)
    (keep / "findings").mkdir(parents=True)
    (keep / "log").unlink(missing_ok=True)


def _fork(
    atheris: Any, reader: Any, seconds: float, arguments: argparse.Namespace, seed: int
) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _child(atheris, reader, seconds, arguments.keep / reader.name, seed)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _child(atheris: Any, reader: Any, seconds: float, keep: Path, seed: int) -> None:
    """Fuzz one reader; never returns, as libFuzzer ends the process."""
    from benchmarks.readers.damage import damaged, words_of

    corpus = keep / "corpus"
    corpus.mkdir(exist_ok=True)
    seeds = reader.seeds()
    for content in seeds:
        (corpus / f"seed-{hashlib.sha1(content).hexdigest()[:16]}").write_bytes(content)
    words = [*words_of(seeds), *reader.tokens]
    log = os.open(keep / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.chdir(folder)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ[name] = str(folder / "home")
    warnings.simplefilter("ignore")
    limit = _size_now() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    check = Check(reader, folder, keep / "findings")
    for content in seeds:  # what is loaded lazily is loaded now, and not timed
        check.outcome(content)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return damaged(data, chance, seeds, words)[:most]

    options = [
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-timeout={HANGS_SECONDS}",
        f"-artifact_prefix={keep}/findings/process-",
        f"-max_len={MAX_BYTES}",
        "-rss_limit_mb=0",
        "-len_control=0",
        "-report_slow_units=10000",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], check.one, custom_mutator=mutate)
    atheris.Fuzz()


def _size_now() -> int:
    """Size of this process's address space, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


class Check:
    """Checks one input after the other and keeps each kind of failure once."""

    def __init__(self, reader: Any, folder: Path, findings: Path) -> None:
        self.reader, self.folder, self.findings = reader, folder, findings
        self.known = {path.name.partition("-")[0] for path in findings.glob("*-input")}

    def one(self, content: bytes) -> None:
        failure = self.outcome(content)
        if failure is None:
            return
        name = hashlib.sha1(failure[0].encode()).hexdigest()[:10]
        if name in self.known:
            return
        self.known.add(name)
        if failure[0].startswith("takes"):
            failure = self.outcome(content)  # not only the first time
            if failure is None or not failure[0].startswith("takes"):
                return
        else:
            content = self.smaller(content, failure[0])
        (self.findings / f"{name}-input").write_bytes(content)
        (self.findings / f"{name}-words").write_text(f"{failure[0]}\n\n{failure[1]}")

    def outcome(self, content: bytes) -> tuple[str, str] | None:
        """The failure and its traceback; None if the input was read or refused."""
        from computeflow.errors import ComputeFlowError

        began = time.process_time()
        try:
            self.reader.read(content, self.folder)
        except ComputeFlowError:
            pass
        except BaseException as error:
            return _named(error), "".join(traceback.format_exception(error, limit=-12))
        spent = time.process_time() - began
        if spent > bound_seconds(len(content)) + self.reader.extra_seconds:
            return "takes too long", f"{spent:.1f} s of CPU for {len(content):,} bytes"
        return None

    def smaller(self, content: bytes, name: str) -> bytes:
        """A smaller input with the same failure: pieces are removed as long as it fails."""
        ends = time.process_time() + SHRINK_SECONDS
        piece = max(len(content) // 2, 1)
        while piece and time.process_time() < ends:
            at = 0
            while at < len(content) and time.process_time() < ends:
                tried = content[:at] + content[at + piece :]
                failure = self.outcome(tried)
                if failure is not None and failure[0] == name:
                    content = tried
                else:
                    at += piece
            piece //= 2
        return content


def _named(error: BaseException) -> str:
    """Name of a failure: the kind of error and the last line of our code it passed."""
    line_name = "?"
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if "computeflow" in file:
            line_name = f"{file.rpartition('computeflow/')[2]}:{line}"
    return f"{type(error).__name__} at {line_name}"


def _outcome(name: str, keep: Path, times: Sequence[float]) -> Outcome:
    executions = edges = corpus = 0
    log = (keep / "log").read_text(errors="replace")
    last = (0, 0, 0)
    for match in _STATE.finditer(log):
        now = (int(match[1]), int(match[2]), int(match[3]))
        if now[0] < last[0]:  # a new process counts from zero
            executions += last[0]
        last, edges, corpus = now, max(edges, now[1]), max(corpus, now[2])
    findings = [
        path.read_text().partition("\n")[0] for path in sorted((keep / "findings").glob("*-words"))
    ]
    findings += [
        f"the process ended: {path.name}" for path in sorted((keep / "findings").glob("process-*"))
    ]
    return Outcome(
        reader=name,
        executions=executions + last[0],
        edges=edges,
        corpus=corpus,
        seconds=times[0],
        cpu_seconds=times[1],
        findings=tuple(findings),
    )


def _with_others(outcomes: Sequence[Outcome], order: Sequence[str]) -> list[Outcome]:
    """These, and those of other readers in the report so far."""
    known: dict[str, Any] = {"readers": []}
    if DATA.is_file():
        known = json.loads(DATA.read_text(encoding="utf-8"))
    every = {row["reader"]: Outcome(**row) for row in known["readers"]}
    every |= {outcome.reader: outcome for outcome in outcomes}
    return [every[name] for name in order if name in every]


def _run_again(chosen: Sequence[str], order: Sequence[str]) -> list[str]:
    """Readers whose rows are not of the last run of all."""
    if not chosen or not DATA.is_file():
        return []
    known = json.loads(DATA.read_text(encoding="utf-8")).get("again", [])
    return [name for name in order if name in {*known, *chosen}]


def _report(
    outcomes: Sequence[Outcome], arguments: argparse.Namespace, order: Sequence[str]
) -> None:
    again = _run_again(arguments.reader, order)
    outcomes = _with_others(outcomes, order)
    whole = sum(outcome.seconds for outcome in outcomes)
    cpu = sum(outcome.cpu_seconds for outcome in outcomes)
    runs = sum(outcome.executions for outcome in outcomes)
    failures = [(outcome.reader, text) for outcome in outcomes for text in outcome.findings]
    lines = [
        "# Fuzzing the readers",
        "",
        f"`python -m benchmarks.fuzz_readers`: {runs:,} executions of "
        f"{len(outcomes)} readers in {whole / 60:.0f} minutes ({cpu / 60:.0f} of CPU), seed "
        f"{arguments.seed}, inputs of at most {MAX_BYTES:,} bytes; {len(failures)} findings.",
        "",
        "A finding is anything that escapes and is no `ComputeFlowError`, a run above 2 s (32 s "
        "where ranges of Slurm name up to 100,000 nodes) + 0.2 ms "
        f"a byte of CPU (instrumented), more than {MEMORY_BYTES >> 30} GiB, or the end of the process.",
        "",
        *([f"Run again later, on changed code: {', '.join(again)}.", ""] if again else []),
        "| reader | executions | edges | corpus | findings | seconds | of CPU |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {o.reader} | {o.executions:,} | {o.edges:,} | {o.corpus:,} | {len(o.findings)} "
            f"| {o.seconds:.0f} | {o.cpu_seconds:.0f} |"
            for o in outcomes
        ),
        *(
            ["", "Findings:", "", *(f"- {reader}: {text}" for reader, text in failures)]
            if failures
            else []
        ),
    ]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"seed": arguments.seed, "again": again, "readers": [asdict(o) for o in outcomes]}
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(130)
