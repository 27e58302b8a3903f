"""The one thread that touches the cache, and its queue (F41, F44).

Nobody waits for it: changes are handed over and forgotten, and a slow disk only makes the queue longer. The queue is
bounded because changes to one thing replace each other. When the file fails, the cache goes on in memory with what could
be read of the file, and moves back when the disk works again. The trap: answers are read from the same connection, so
everything put before a question is in its answer.
"""

import asyncio
import contextlib
import functools
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from nstance.clock import Clock
from nstance.server.cache import disk
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_PENDING = 50_000  # things with a change that is not applied yet
MAX_EVENTS = 10_000  # not applied yet
MAX_QUESTIONS = 1_000
KEEP_EVENTS = 50_000
TRIM_AFTER = 1_000  # more than that
GATHER_SECONDS = 0.05  # changes are gathered for so long: many small commits would only disturb the event loop
ANSWER_SECONDS = 5.0
CLOSE_SECONDS = 2.0
DISK_RETRY = Backoff(1.0, 60.0)

Change = Callable[[sqlite3.Connection], object]


class CacheUnavailableError(Exception):
    """The cache has no answer now. Ask the truth, or later."""


_Question = tuple[Callable[[sqlite3.Connection], Any], "asyncio.Future[Any]"]


@dataclass(frozen=True, slots=True)
class _Taken:
    updates: list[Change]
    events: list[Change]
    count: int  # of the events in them
    questions: list[_Question]
    last: bool  # nothing comes after this


class CacheThread:
    def __init__(self, path: str, stamp: disk.Stamp, *, clock: Clock) -> None:
        self.on_disk = False
        self.stale = True  # something was lost since the last sync
        self.lost_updates = 0
        self.lost_events = 0
        self.refused = 0
        self._path = path
        self._stamp = stamp
        self._clock = clock
        self._condition = threading.Condition()
        self._pending: dict[Hashable, Change] = {}
        self._events: list[Change] = []
        self._count = 0  # of the events in them
        self._questions: deque[_Question] = deque()
        self._idle = False
        self._torn = False
        self._closing = False
        self._ended = False
        # Only the thread itself touches what follows.
        self._db: sqlite3.Connection
        self._complete = True  # in memory: everything that the file held is here
        self._kept = 0  # events in the database
        self._number: int | None = None  # of the file
        self._retry_at = 0.0
        self._disk_failures = 0
        self._thread = threading.Thread(target=self._run, name="cache", daemon=True)
        self._thread.start()

    # ---- called by the event loop

    def put(self, key: Hashable, change: Change) -> None:
        """A change that takes the place of an earlier one to the same thing. Never waits, never raises."""
        with self._condition:
            if self._ended:
                return
            self._pending.pop(key, None)  # the order of the last changes counts
            if len(self._pending) >= MAX_PENDING:
                del self._pending[next(iter(self._pending))]
                self.lost_updates += 1
                self._torn = True
            self._pending[key] = change
            self._wake()

    def append(self, events: Change, *, count: int) -> None:
        """A change of its own that keeps so many events, dropped when there are too many. Never waits, never raises."""
        with self._condition:
            if self._ended or self._count >= MAX_EVENTS:
                self.lost_events += count
                return
            self._events.append(events)
            self._count += count
            self._wake()

    def _wake(self) -> None:
        if self._idle:  # while it gathers, waking it would only take the event loop's time
            self._condition.notify()

    async def ask(self, question: Callable[[sqlite3.Connection], T], *, timeout: float = ANSWER_SECONDS) -> T:
        """Raises CacheUnavailableError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._condition:
            if self._ended or self._closing:
                raise CacheUnavailableError("the cache is closed")
            if len(self._questions) >= MAX_QUESTIONS:
                raise CacheUnavailableError("the cache is behind with its answers")
            self._questions.append((question, future))
            self._condition.notify()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise CacheUnavailableError(f"the cache did not answer within {timeout:g} s") from None

    async def close(self, *, timeout: float = CLOSE_SECONDS) -> None:
        """Writes what is pending, if that takes no longer than the timeout."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, timeout)
        if self._thread.is_alive():
            log.warning("the cache did not close in time and is left behind")

    # ---- the thread

    def _run(self) -> None:
        try:
            self._start()
            while True:
                taken = self._take()
                if taken.updates or taken.events:
                    self._safely(functools.partial(self._commit, taken))
                for question, future in taken.questions:
                    self._answer(question, future)
                if not self.on_disk and (taken.last or self._clock.monotonic() >= self._retry_at):
                    self._return_to_disk()
                if taken.last:
                    break
            self._db.close()
        except Exception:
            log.exception("the cache failed and is switched off")
        finally:
            with self._condition:
                self._ended = True
                self._pending.clear()
                questions, self._questions = list(self._questions), deque()
            for _, future in questions:
                _settle(future, None, CacheUnavailableError("the cache is closed"))

    def _take(self) -> "_Taken":
        with self._condition:
            patience = None if self.on_disk else max(0.0, self._retry_at - self._clock.monotonic())
            self._idle = True
            self._condition.wait_for(
                lambda: self._pending or self._events or self._questions or self._closing, patience
            )
            self._idle = False
            self._condition.wait_for(lambda: self._questions or self._closing, GATHER_SECONDS)
            updates = list(self._pending.values())
            if self._torn:
                updates.insert(0, self._forget)
            taken = _Taken(updates, self._events, self._count, list(self._questions), self._closing)
            self._torn = False
            self._pending.clear()
            self._events, self._count = [], 0
            self._questions.clear()
            return taken

    def _start(self) -> None:
        try:
            self._use(disk.open_file(self._path, self._stamp), on_disk=True)
        except (sqlite3.Error, OSError) as problem:
            self._leave_disk(problem)

    def _use(self, db: sqlite3.Connection, *, on_disk: bool) -> None:
        self._db = db
        self.on_disk = on_disk
        self._number = disk.number(self._path) if on_disk else None
        self._kept = db.execute("SELECT count(*) FROM events").fetchone()[0]

    def _safely(self, act: Callable[[], T]) -> T:
        """On the disk; or, if that fails, in memory."""
        try:
            return act()
        except (sqlite3.Error, OSError) as problem:
            if not self.on_disk or not disk.environment(problem):
                raise
            self._leave_disk(problem)
            return act()

    def _commit(self, taken: "_Taken") -> None:
        if self.on_disk and disk.number(self._path) != self._number:
            self._make_again()
        kept = self._kept + taken.count  # at most: some take the place of others
        with disk.transaction(self._db):
            for change in (*taken.updates, *taken.events):
                try:
                    change(self._db)
                except Exception as problem:
                    if disk.environment(problem):
                        raise
                    self.refused += 1
                    log.exception("something cannot be kept in the cache")
            if kept > KEEP_EVENTS + TRIM_AFTER:
                oldest = "SELECT id FROM events ORDER BY id DESC LIMIT -1 OFFSET ?"
                self._db.execute(f"DELETE FROM events WHERE id IN ({oldest})", (KEEP_EVENTS,))
                kept = KEEP_EVENTS
        self._kept = kept

    def _make_again(self) -> None:
        """Somebody removed the file. Its content is still here, as long as it is open."""
        log.warning("the cache's file was removed and is made again", extra={"path": self._path})
        memory = disk.open_memory(self._stamp)
        disk.transfer(self._db, memory, replace=True)
        self._db.close()  # before there is another one: it would take that one's log along
        disk.remove(self._path)
        self._complete = True
        self._use(memory, on_disk=False)
        self._return_to_disk()

    def _forget(self, db: sqlite3.Connection) -> None:
        """Updates were lost: nothing said is better than something wrong."""
        self.stale = True
        for table in disk.PROJECTIONS:
            db.execute(f"DELETE FROM {table}")

    def _answer(self, question: Callable[[sqlite3.Connection], T], future: asyncio.Future[T]) -> None:
        if future.cancelled():
            return
        try:
            answer = self._safely(lambda: question(self._db))
        except (sqlite3.Error, OSError) as problem:
            _settle(future, None, CacheUnavailableError(f"the cache cannot be read: {problem}"))
        except Exception as problem:
            _settle(future, None, problem)
        else:
            _settle(future, answer, None)

    def _leave_disk(self, problem: Exception) -> None:
        log.warning("the cache goes on in memory", extra={"path": self._path, "error": str(problem)})
        if self.on_disk:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        memory = disk.open_memory(self._stamp)
        self._complete = True
        try:
            disk.read_file(self._path, self._stamp, memory)
        except (sqlite3.Error, OSError, ValueError):
            self._complete = False
            self.stale = True
        self._use(memory, on_disk=False)
        self._disk_failures = 1
        self._retry_at = self._clock.monotonic() + DISK_RETRY.delay(self._disk_failures)

    def _return_to_disk(self) -> None:
        try:
            file = disk.open_file(self._path, self._stamp)
            try:
                disk.transfer(self._db, file, replace=self._complete)
            except BaseException:
                file.close()
                raise
        except (sqlite3.Error, OSError) as problem:
            log.debug("the cache's disk still fails", extra={"path": self._path, "error": str(problem)})
            self._disk_failures += 1
            self._retry_at = self._clock.monotonic() + DISK_RETRY.delay(self._disk_failures)
            return
        self._db.close()
        self._use(file, on_disk=True)
        log.info("the cache is on disk again", extra={"path": self._path})


def _settle(future: asyncio.Future[Any], answer: object, problem: Exception | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(answer)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        future.get_loop().call_soon_threadsafe(settle)
