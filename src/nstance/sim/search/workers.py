"""Spreads work over processes and yields the results in order.

Ctrl-C reaches every process of a terminal: workers ignore it, and the parent kills them. Two traps: a pool that is
interrupted while it starts or ends never ends, so the signal is noted and raised between two results; and a cancelled
future, as `pool.map` leaves behind, breaks the pool when its workers are killed, so only few futures are submitted ahead.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

CHUNKS_AHEAD = 3  # for each worker
POLL_SECONDS = 0.2  # within which an interruption is noticed


def spread(work: Callable[[A], B], inputs: Iterable[A], *, jobs: int, chunk: int) -> Iterator[B]:
    """Only for the main thread: it handles signals."""
    submitted: deque[Future[list[B]]] = deque()
    remaining = iter(inputs)
    interrupted: list[int] = []
    default = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    with ProcessPoolExecutor(jobs, initializer=_start_worker) as pool:
        try:
            while batch := list(islice(remaining, chunk)):
                submitted.append(pool.submit(_work, work, batch))
                if len(submitted) >= CHUNKS_AHEAD * jobs:
                    yield from _result(submitted.popleft(), interrupted)
            while submitted:
                yield from _result(submitted.popleft(), interrupted)
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            if not interrupted:
                signal.signal(signal.SIGINT, default)


def _result(future: Future[B], interrupted: Sequence[int]) -> B:
    while not interrupted:
        if wait([future], timeout=POLL_SECONDS).done:
            return future.result()
    raise KeyboardInterrupt


def _work(work: Callable[[A], B], batch: Sequence[A]) -> list[B]:
    return [work(each) for each in batch]


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed pool cannot stop its workers, and they would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
