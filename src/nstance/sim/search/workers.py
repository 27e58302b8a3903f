"""Work spread over processes, with results in the order of what was asked for.

Ctrl-C reaches every process of a terminal: workers do not hear it, and whoever waits for them ends them at once. The traps:
a pool that is interrupted while it starts or ends never ends, so the interruption is noted and raised between two results,
and a second one changes nothing; and a future that was cancelled, as those of `pool.map` are, makes the pool stumble over
it when its workers are killed, so nothing is cancelled and little is asked for ahead.
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

AHEAD = 3  # chunks for each worker
LOOK_SECONDS = 0.2  # how soon an interruption is noticed


def spread(work: Callable[[A], B], over: Iterable[A], *, jobs: int, chunk: int) -> Iterator[B]:
    """For the main thread, which alone hears signals."""
    asked: deque[Future[list[B]]] = deque()
    left = iter(over)
    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number))
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        try:
            while some := list(islice(left, chunk)):
                asked.append(pool.submit(_work, work, some))
                if len(asked) >= AHEAD * jobs:
                    yield from _result(asked.popleft(), interrupted)
            while asked:
                yield from _result(asked.popleft(), interrupted)
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
        finally:
            if not interrupted:
                signal.signal(signal.SIGINT, before)


def _result(future: Future[B], interrupted: Sequence[int]) -> B:
    while not interrupted:
        if wait([future], timeout=LOOK_SECONDS).done:
            return future.result()
    raise KeyboardInterrupt


def _work(work: Callable[[A], B], some: Sequence[A]) -> list[B]:
    return [work(each) for each in some]


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool that was killed cannot tell its workers, and they would wait for more work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
