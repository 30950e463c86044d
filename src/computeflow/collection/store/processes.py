"""Helper processes of a collector: started with their settings as JSON, ended by the end of a pipe.

A process that was killed closes its pipes, so that its helpers end with it, however it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from computeflow import codec

_STOP_SECONDS = 60.0


class HelperProcess:
    """A module of ComputeFlow that runs as a process of its own; `output` is its standard output."""

    def __init__(self, module: str, settings: Any) -> None:
        words = [sys.executable, "-m", module, codec.to_json(codec.encode(settings))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> int:
        """End it by the end of its input; what it is doing is finished first."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def parent_gone() -> Callable[[], bool]:
    """Whether the process that started this one has gone or closed our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    over = threading.Event()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    return over.is_set


def say_line(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"[computeflow] {text}\n".encode("utf-8", "replace"))
