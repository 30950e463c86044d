"""Many files, one after another or side by side: `each` runs a function over items.

`local` uses this machine's processors, one item in each process at a time; `ray` a Ray cluster. Both
give results in the order of the items, and a failure as the value it raised.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from computeflow.errors import ComputeFlowError, InputError, UnavailableError

T = TypeVar("T")
R = TypeVar("R")
Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")
Progress = Callable[[int, int], None]
"""Items done, of how many."""


def each(
    function: Callable[[T], R],
    items: Sequence[T],
    engine: Engine = "local",
    progress: Progress | None = None,
) -> list[R | ComputeFlowError]:
    say = progress or (lambda done, of: None)
    if engine == "ray":
        return _with_ray(function, items, say)
    workers = min(len(items), _processors())
    if workers <= 1:
        results = []
        for done, item in enumerate(items):
            say(done, len(items))
            results.append(_tried(function, item))
        return results
    return _with_processes(function, items, workers, say)


def _tried(function: Callable[[T], R], item: T) -> R | ComputeFlowError:
    try:
        return function(item)
    except ComputeFlowError as error:
        return error


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _with_processes(
    function: Callable[[T], R], items: Sequence[T], workers: int, say: Progress
) -> list[R | ComputeFlowError]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children

    others = active_children()
    results = []
    with ProcessPoolExecutor(workers, initializer=_serve) as pool:
        try:
            waiting = [pool.submit(_tried, function, item) for item in items]
            for done, future in enumerate(waiting):
                say(done, len(items))
                results.append(future.result())
        except BrokenProcessPool:
            raise InputError(
                "a worker was killed, most likely for its memory: audit fewer ranks at once"
            ) from None
        except BaseException:  # interrupted: half-done work is dropped
            for process in active_children():
                if process not in others:
                    process.kill()
            raise
    return results


def _serve() -> None:
    """Set up a worker: the parent handles interrupts, and no worker outlives it."""
    import signal
    from multiprocessing import parent_process
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=follow, daemon=True).start()


def _with_ray(
    function: Callable[[T], R], items: Sequence[T], say: Progress
) -> list[R | ComputeFlowError]:
    """Run on the cluster of RAY_ADDRESS, or on one that is started here and stopped again."""
    try:
        import ray
    except ImportError:
        raise UnavailableError("--engine ray needs Ray: pip install 'computeflow[ray]'") from None

    started = not ray.is_initialized()
    if started:
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    try:
        remote: Any = ray.remote(num_cpus=1)(_tried)
        waiting = [remote.remote(function, item) for item in items]
        results: list[R | ComputeFlowError] = []
        for done, reference in enumerate(waiting):
            say(done, len(items))
            results.append(ray.get(reference))
        return results
    finally:
        if started:
            ray.shutdown()
