"""`Sender`: a thread that posts what a sink gives it, tries again some times, and counts.

    sender = Sender("alertmanager", address, work)
    sender.start()
    sender.wake()         from any thread: there is something to send
    sender.deliver(body)  from `work`, which the sender's own thread calls
    sender.close(5.0)

`work(now)` posts what is due and returns the seconds until it wants to be called again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from computeflow.collection.outputs.posting import Address, Posted, post

TRIES = 5
_FIRST_WAIT_SECONDS = 1.0
_SAY_EVERY_SECONDS = 60.0
_LOG = logging.getLogger("computeflow.outputs")


class Sender:
    def __init__(
        self,
        name: str,
        address: Address,
        work: Callable[[float], float],
        *,
        first_wait_seconds: float = _FIRST_WAIT_SECONDS,
    ) -> None:
        self.name = name
        self.address = address
        self._work = work
        self._first_wait = first_wait_seconds
        self._counts: Counter[str] = Counter({"sent": 0, "retries": 0, "failed": 0, "dropped": 0})
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._give_up = threading.Event()
        self._said = -_SAY_EVERY_SECONDS
        self._thread = threading.Thread(target=self._run, name=f"computeflow-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def counts(self) -> dict[str, float]:
        """Figures for `/metrics`: `alertmanager_sent_total` and its like."""
        with self._lock:
            return {f"{self.name}_{what}_total": float(n) for what, n in self._counts.items()}

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def deliver(
        self,
        body: bytes,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Whether it arrived; blocks the sender's thread only."""
        wait = self._first_wait
        for attempt in range(1, TRIES + 1):
            answer = post(self.address, body, kind, headers=headers)
            if answer.is_done:
                self.count("sent")
                return True
            if not answer.is_worth_another_try or attempt == TRIES:
                break
            self.count("retries")
            if self._give_up.wait(answer.wait_seconds or wait):
                break
            wait *= 2
        self.count("failed")
        self._say(answer)
        return False

    def close(self, seconds: float = 5.0) -> None:
        """Send what is waiting, then stop; after `seconds` give up."""
        self._stop.set()
        self._wake.set()
        self._thread.join(seconds)
        self._give_up.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            pause = self._step()
        self._step()

    def _step(self) -> float:
        try:
            return self._work(time.time())
        except Exception:
            # The collector goes on whatever a sink does.
            self.count("failed")
            _LOG.exception("%s: an error of ComputeFlow", self.name)
            return _SAY_EVERY_SECONDS

    def _say(self, answer: Posted) -> None:
        """Log a failure, once a minute at most."""
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_SECONDS:
            self._said = now
            _LOG.warning("%s: not delivered: %s", self.name, answer.error)
