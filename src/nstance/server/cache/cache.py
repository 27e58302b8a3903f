"""The server's SQLite cache: what is slow to learn again, and events for queries.

The cache may vanish at any time. No decision depends on it: the truth is in object storage, at the provider and at the
agents. `put_*` and `remove_*` return at once and never fail; queries may raise CacheUnavailableError.
"""

import functools
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.clock import Clock
from nstance.model.decision import TROUBLE
from nstance.model.ids import InstanceId, TenantId
from nstance.server.cache.disk import Stamp
from nstance.server.cache.thread import LIMITS, CacheThread, Limits
from nstance.server.cache.thread import CacheUnavailableError as CacheUnavailableError

FLUSH_TIMEOUT_SECONDS = 5.0
MAX_MESSAGE_CHARACTERS = 4096
MAX_EVENTS_PER_QUERY = 1_000
ATTENTION_CODES = frozenset(code.value for code in TROUBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    id: int  # grows, and is the same on every server
    time: float
    tenant: TenantId
    group: str
    instance: str
    code: str
    message: str

    @property
    def needs_attention(self) -> bool:
        return self.code in ATTENTION_CODES


class Cache:
    def __init__(self, thread: CacheThread) -> None:
        self._thread = thread

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, cluster: str, shard: str, clock: Clock, limits: Limits = LIMITS
    ) -> "Cache":
        """Returns at once; the cache's own thread opens the file."""
        return cls(CacheThread(os.fspath(path), Stamp(cluster, shard), clock=clock, limits=limits))

    @property
    def on_disk(self) -> bool:
        """Whether what is put now outlives the process."""
        return self._thread.on_disk

    @property
    def dropped(self) -> int:
        """Updates and events that did not fit into the queue or could not be written."""
        return self._thread.dropped

    async def close(self) -> None:
        """Writes pending changes, but does not wait long for a disk that does not answer."""
        await self._thread.close()

    async def flush(self, *, timeout: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Waits until all changes so far are applied. False if they are not on disk, or not in time."""
        try:
            return await self._thread.query(lambda db: self._thread.on_disk, timeout=timeout)
        except CacheUnavailableError:
            return False

    # ---- changes

    def put_last_report(self, instance: InstanceId, at: float) -> None:
        """When an agent reported last, by the wall clock."""
        self._save("INSERT OR REPLACE INTO last_reports VALUES (?, ?)", instance, at)

    def remove_instance(self, instance: InstanceId) -> None:
        self._save("DELETE FROM last_reports WHERE instance = ?", instance)

    def retain_instances(self, instances: Collection[InstanceId]) -> None:
        """Removes what is known about all other instances."""
        kept = json.dumps(list(instances))
        statement = "DELETE FROM last_reports WHERE instance NOT IN (SELECT value FROM json_each(?))"
        self._thread.put(statement, functools.partial(_execute, statement, (kept,)))

    def put_image(self, lookup: str, image: str) -> None:
        self._save("INSERT OR REPLACE INTO images VALUES (?, ?)", lookup, image)

    def put_userdata(self, url: str, etag: str, body: bytes) -> None:
        self._save("INSERT OR REPLACE INTO userdata VALUES (?, ?, ?)", url, etag, body)

    def put_members(self, balancer: str, instances: Iterable[InstanceId]) -> None:
        """All members of a load balancer."""
        self._save("INSERT OR REPLACE INTO members VALUES (?, ?)", balancer, json.dumps(sorted(instances)))

    def put_events(self, first: int, make: Callable[[], Sequence[Event]], *, count: int) -> None:
        """Replaces all events whose ID is `first` or later: they follow again, or belong to a journal that is gone. The
        cache's own thread calls `make`, which returns at most `count` events."""
        self._thread.append(functools.partial(_save_events, first, make), count=count)

    def _save(self, statement: str, key: str, *values: object) -> None:
        self._thread.put((statement, key), functools.partial(_execute, statement, (key, *values)))

    # ---- queries

    async def last_report(self, instance: InstanceId) -> float | None:
        rows = await self._rows("SELECT at FROM last_reports WHERE instance = ?", instance)
        return float(rows[0][0]) if rows else None

    async def image(self, lookup: str) -> str | None:
        rows = await self._rows("SELECT image FROM images WHERE lookup = ?", lookup)
        return str(rows[0][0]) if rows else None

    async def userdata(self, url: str) -> tuple[str, bytes] | None:
        """The ETag and the last good copy."""
        rows = await self._rows("SELECT etag, body FROM userdata WHERE url = ?", url)
        return (str(rows[0][0]), bytes(rows[0][1])) if rows else None

    async def members(self, balancer: str) -> frozenset[InstanceId] | None:
        """None if they are not known, which is something else than an empty set."""
        rows = await self._rows("SELECT instances FROM members WHERE balancer = ?", balancer)
        return frozenset(InstanceId(i) for i in json.loads(rows[0][0])) if rows else None

    async def events(
        self,
        *,
        tenant: TenantId | None = None,
        group: str | None = None,
        instance: str | None = None,
        reasons: Sequence[str] = (),
        after: int = 0,
        limit: int = 100,
    ) -> list[Event]:
        """Oldest first. Without `after` the newest ones; with it those that follow, so that a reader misses none.
        `reasons`: only of these codes, if there are any."""
        filters = {"tenant": tenant, '"group"': group, "instance": instance}
        used = {column: value for column, value in filters.items() if value is not None}
        among = [f"code IN ({', '.join('?' * len(reasons))})"] if reasons else []
        where = " AND ".join([*(f"{column} = ?" for column in used), *among, "id > ?"])
        rows = await self._rows(
            f'SELECT id, time, tenant, "group", instance, code, message FROM events WHERE {where}'
            f" ORDER BY id{'' if after else ' DESC'} LIMIT ?",
            *used.values(),
            *reasons,
            after,
            max(1, min(limit, MAX_EVENTS_PER_QUERY)),
        )
        found = [
            Event(id=id, time=time, tenant=TenantId(tenant), group=group, instance=instance, code=code, message=message)
            for id, time, tenant, group, instance, code, message in rows
        ]
        return found if after else found[::-1]

    async def _rows(self, query: str, *values: object) -> list[Any]:
        return await self._thread.query(lambda db: db.execute(query, values).fetchall())


# Called by the cache's thread.


def _execute(statement: str, values: tuple[object, ...], db: sqlite3.Connection) -> None:
    db.execute(statement, values)


def _save_events(first: int, make: Callable[[], Sequence[Event]], db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM events WHERE id >= ?", (first,))
    db.executemany(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(e.id, e.time, e.tenant, e.group, e.instance, e.code, _storable(e.message)) for e in make()],
    )


def _storable(message: str) -> str:
    """Cut to a length, and without unpaired surrogates, which SQLite does not store."""
    return message[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
