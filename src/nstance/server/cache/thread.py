"""The one thread that uses the cache's database, and its queue.

The event loop never waits for the disk: changes are queued, and a slow disk only makes the queue longer. The queue is
bounded, because a change replaces an earlier one with the same key. When the file fails, the cache continues in memory
with what can be read of the file, and returns to the disk when it works again. Queries run on the same connection after
the changes that were queued before them, so they see these changes.
"""

import asyncio
import contextlib
import functools
import logging
import sqlite3
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nstance.clock import Clock
from nstance.server.cache import disk
from nstance.tasks.backoff import Backoff

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_SECONDS = 0.05  # many small commits would disturb the event loop
QUERY_TIMEOUT_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 2.0

Change = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    pending_updates: int = 50_000
    pending_events: int = 10_000
    pending_queries: int = 1_000
    kept_events: int = 50_000
    trim_after_events: int = 1_000  # more than the kept ones
    disk_retry: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))
    lock_seconds: float = 1.0  # that a file may be locked by another process


LIMITS = Limits()


class CacheUnavailableError(Exception):
    """The cache has no answer now. Use the source of truth, or try again later."""


_Query = tuple[Callable[[sqlite3.Connection], Any], "asyncio.Future[Any]"]


@dataclass(frozen=True, slots=True)
class _Batch:
    updates: list[Change]
    events: list[Change]
    event_count: int
    queries: list[_Query]
    is_last: bool


class CacheThread:
    def __init__(self, path: str, stamp: disk.Stamp, *, clock: Clock, limits: Limits = LIMITS) -> None:
        self.on_disk = False
        self.dropped = 0
        self._path = path
        self._stamp = stamp
        self._clock = clock
        self._limits = limits
        self._condition = threading.Condition()
        self._updates: dict[Hashable, Change] = {}
        self._events: list[Change] = []
        self._event_count = 0
        self._queries: list[_Query] = []
        self._is_idle = False
        self._has_lost_updates = False
        self._is_closing = False
        self._has_ended = False
        # Only the thread itself uses what follows.
        self._db: sqlite3.Connection
        self._is_complete = True  # in memory: holds everything that the file held
        self._kept_events = 0
        self._inode: int | None = None
        self._retry_at = 0.0
        self._disk_failures = 0
        self._thread = threading.Thread(target=self._run, name="cache", daemon=True)
        self._thread.start()

    # ---- called by the event loop

    def put(self, key: Hashable, update: Change) -> None:
        """Queues a change that replaces an earlier one with the same key. Never waits, never raises."""
        with self._condition:
            if self._has_ended:
                return
            self._updates.pop(key, None)  # the last changes count in their order
            if len(self._updates) >= self._limits.pending_updates:
                del self._updates[next(iter(self._updates))]
                self.dropped += 1
                self._has_lost_updates = True
            self._updates[key] = update
            self._wake()

    def append(self, events: Change, *, count: int) -> None:
        """Queues a change that writes `count` events; drops it if too many wait. Never waits, never raises."""
        with self._condition:
            if self._has_ended or self._event_count >= self._limits.pending_events:
                self.dropped += count
                return
            self._events.append(events)
            self._event_count += count
            self._wake()

    def _wake(self) -> None:
        if self._is_idle:  # while it gathers a batch, waking it would only take the event loop's time
            self._condition.notify()

    async def query(self, query: Callable[[sqlite3.Connection], T], *, timeout: float = QUERY_TIMEOUT_SECONDS) -> T:
        """Raises CacheUnavailableError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._condition:
            if self._has_ended or self._is_closing:
                raise CacheUnavailableError("the cache is closed")
            if len(self._queries) >= self._limits.pending_queries:
                raise CacheUnavailableError("the cache is overloaded with queries")
            self._queries.append((query, future))
            self._condition.notify()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise CacheUnavailableError(f"the cache did not answer within {timeout:g} s") from None

    async def close(self, *, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Writes pending changes, if that takes no longer than the timeout."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, timeout)
        if self._thread.is_alive():
            log.warning("failed to close the cache in time: its thread is left behind")

    # ---- the thread

    def _run(self) -> None:
        try:
            self._open()
            while True:
                batch = self._next_batch()
                if batch.updates or batch.events:
                    self._run_on_disk_or_memory(functools.partial(self._commit, batch))
                for query, future in batch.queries:
                    self._answer(query, future)
                if not self.on_disk and (batch.is_last or self._clock.monotonic() >= self._retry_at):
                    self._return_to_disk()
                if batch.is_last:
                    break
            self._db.close()
        except Exception:
            log.exception("failed to run the cache: it is switched off")
        finally:
            with self._condition:
                self._has_ended = True
                self._updates.clear()
                queries, self._queries = self._queries, []
            for _, future in queries:
                _resolve(future, None, CacheUnavailableError("the cache is closed"))

    def _next_batch(self) -> _Batch:
        with self._condition:
            timeout = None if self.on_disk else max(0.0, self._retry_at - self._clock.monotonic())
            self._is_idle = True
            self._condition.wait_for(
                lambda: self._updates or self._events or self._queries or self._is_closing, timeout
            )
            self._is_idle = False
            self._condition.wait_for(lambda: self._queries or self._is_closing, BATCH_SECONDS)
            updates = list(self._updates.values())
            if self._has_lost_updates:
                updates.insert(0, _clear)
            batch = _Batch(updates, self._events, self._event_count, self._queries, self._is_closing)
            self._has_lost_updates = False
            self._updates.clear()
            self._events, self._event_count, self._queries = [], 0, []
            return batch

    def _open(self) -> None:
        try:
            self._use(disk.open_file(self._path, self._stamp, lock_seconds=self._limits.lock_seconds), on_disk=True)
        except (sqlite3.Error, OSError) as error:
            self._leave_disk(error)

    def _use(self, db: sqlite3.Connection, *, on_disk: bool) -> None:
        self._db = db
        self.on_disk = on_disk
        self._inode = disk.inode(self._path) if on_disk else None
        self._kept_events = db.execute("SELECT count(*) FROM events").fetchone()[0]

    def _run_on_disk_or_memory(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except (sqlite3.Error, OSError) as error:
            if not self.on_disk or not disk.is_file_error(error):
                raise
            self._leave_disk(error)
            return act()

    def _commit(self, batch: _Batch) -> None:
        if self.on_disk and disk.inode(self._path) != self._inode:
            self._recreate_file()
        kept_events = self._kept_events + batch.event_count  # at most: some replace others
        with disk.transaction(self._db):
            for change in (*batch.updates, *batch.events):
                try:
                    change(self._db)
                except Exception as error:
                    if disk.is_file_error(error):
                        raise
                    self.dropped += 1
                    log.exception("failed to write a change to the cache")
            most = self._limits.kept_events
            if kept_events > most + self._limits.trim_after_events:
                oldest = "SELECT id FROM events ORDER BY id DESC LIMIT -1 OFFSET ?"
                self._db.execute(f"DELETE FROM events WHERE id IN ({oldest})", (most,))
                kept_events = most
        self._kept_events = kept_events

    def _recreate_file(self) -> None:
        """Somebody removed the file. Its content can be read as long as it is open."""
        log.warning("cache file was removed and is created again", extra={"path": self._path})
        memory = disk.open_memory(self._stamp)
        disk.copy_tables(self._db, memory, replace=True)
        self._db.close()  # before there is a new file, whose write-ahead log it would remove
        disk.remove(self._path)
        self._is_complete = True
        self._use(memory, on_disk=False)
        self._return_to_disk()

    def _answer(self, query: Callable[[sqlite3.Connection], T], future: asyncio.Future[T]) -> None:
        if future.cancelled():
            return
        try:
            answer = self._run_on_disk_or_memory(lambda: query(self._db))
        except (sqlite3.Error, OSError) as error:
            _resolve(future, None, CacheUnavailableError(f"the cache cannot be read: {error}"))
        except Exception as error:
            _resolve(future, None, error)
        else:
            _resolve(future, answer, None)

    def _leave_disk(self, error: Exception) -> None:
        log.warning(
            "failed to use the cache file: continuing in memory", extra={"path": self._path, "error": str(error)}
        )
        if self.on_disk:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        memory = disk.open_memory(self._stamp)
        self._is_complete = True
        try:
            disk.read_file(self._path, self._stamp, memory, lock_seconds=self._limits.lock_seconds)
        except (sqlite3.Error, OSError, ValueError):
            self._is_complete = False
        self._use(memory, on_disk=False)
        self._disk_failures = 1
        self._retry_at = self._clock.monotonic() + self._limits.disk_retry.delay(self._disk_failures)

    def _return_to_disk(self) -> None:
        try:
            file = disk.open_file(self._path, self._stamp, lock_seconds=self._limits.lock_seconds)
            try:
                disk.copy_tables(self._db, file, replace=self._is_complete)
            except BaseException:
                file.close()
                raise
        except (sqlite3.Error, OSError) as error:
            log.debug("failed to use the cache file again", extra={"path": self._path, "error": str(error)})
            self._disk_failures += 1
            self._retry_at = self._clock.monotonic() + self._limits.disk_retry.delay(self._disk_failures)
            return
        self._db.close()
        self._use(file, on_disk=True)
        log.info("cache is on disk again", extra={"path": self._path})


def _clear(db: sqlite3.Connection) -> None:
    """Updates were lost: no answer is better than a wrong one."""
    for table in disk.PROJECTIONS:
        db.execute(f"DELETE FROM {table}")


def _resolve(future: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        future.get_loop().call_soon_threadsafe(resolve)
