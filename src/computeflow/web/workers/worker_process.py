"""`WorkerProcess`: a process that answers one question after the other, over its pipes.

It starts with the first question, ends with the server (its input ends then), and is ended where one
question takes longer than it may, or is not wanted any more; the next one starts another. `RunHere` is
the same without a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from computeflow.collection.collector.clients import RefusedError
from computeflow.errors import ComputeFlowError, OutputError, UnavailableError, UnknownNameError
from computeflow.web.workers.tasks import answer_task, prepare
from computeflow.web.wrong_fields import WrongFieldError, field_of, form_text

_MODULE = "computeflow.web.workers.worker_process"
_NICENESS = 5
"""Pages that are open come first."""
_LOOK_SECONDS = 0.25


class WorkerProcess:
    """`limit_seconds` of a core for each question: how long that takes is up to what else runs."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self,
        task: str,
        parameters: Mapping[str, Any],
        progress: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> bytes:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        answered, killed, ending = threading.Event(), threading.Event(), threading.Lock()

        def watch() -> None:
            while wanted():
                if answered.wait(_LOOK_SECONDS):
                    return
            with ending:
                if not answered.is_set():
                    killed.set()
                    process.kill()

        threading.Thread(target=watch, daemon=True).start()
        try:
            process.stdin.write(
                json.dumps([task, parameters, self._limit_seconds]).encode() + b"\n"
            )
            process.stdin.flush()
            return _read_answer(process.stdout, progress)
        except (OSError, EOFError):
            self._process = None
            with suppress(OSError):
                process.stdin.close()
            if process.wait() == -signal.SIGPROF:
                limit = f"{self._limit_seconds:g} s of a core"
                raise RefusedError(400, f"no answer within {limit}: ask for less") from None
            raise RefusedError(503, "the computation ended early: try again", 1.0) from None
        finally:
            with ending:
                answered.set()
            if killed.is_set():  # perhaps in the moment in which it answered
                process.wait()
                self._process = None

    def start(self) -> None:
        self._started()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],  # nothing of the folder that it starts in
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C at a terminal is for the server, which ends its workers
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()  # it has imported what it needs: that is no one's time
        return self._process


class RunHere:
    """Answers in the process that asks, without a limit of time: for tests and notebooks."""

    def __init__(self, limit_seconds: float = 0.0) -> None:
        pass

    def run(
        self,
        task: str,
        parameters: Mapping[str, Any],
        progress: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> bytes:
        return _unwrap(*_answer(task, parameters, progress))

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


def _read_answer(stream: IO[bytes], progress: Callable[[str], None]) -> bytes:
    """Lines: "p" and a text, or "a", or "e" and a refusal; after "a" the answer."""
    while True:
        line = stream.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        kind, rest = line[:1], line[1:-1]
        if kind == b"p":
            progress(json.loads(rest))
            continue
        return _unwrap(kind.decode(), rest)


def _unwrap(kind: str, body: bytes) -> bytes:
    if kind == "a":
        return body
    status, text, where = json.loads(body)
    raise WrongFieldError(status, text, where)


def _answer(
    task: str, parameters: Mapping[str, Any], progress: Callable[[str], None]
) -> tuple[str, bytes]:
    try:
        content = answer_task(task, parameters, progress)
    except ComputeFlowError as error:
        return "e", json.dumps([status_of(error), form_text(str(error)), field_of(error)]).encode()
    return "a", json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def status_of(error: ComputeFlowError) -> int:
    if isinstance(error, UnknownNameError):
        return 404
    return 503 if isinstance(error, UnavailableError | OutputError) else 400


def main() -> None:
    os.nice(_NICENESS)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints does not speak in between

    def send(kind: str, body: bytes) -> None:
        try:
            out.write(kind.encode() + body + b"\n")
            out.flush()
        except BrokenPipeError:  # the server has ended
            os._exit(0)

    prepare()
    send("p", b'"ready"')
    for line in sys.stdin.buffer:
        task, parameters, limit_seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_seconds)  # it ends this process
        send(*_answer(task, parameters, lambda text: send("p", json.dumps(text).encode())))
        signal.setitimer(signal.ITIMER_PROF, 0.0)


if __name__ == "__main__":
    main()
