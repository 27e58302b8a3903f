"""What a server remembers on its own disk: a cache that may vanish at any time (F6, F42).

Nothing here is on the way of a decision: the truth is in object storage, and what is lost here is told again by it or by
the agents. Last reports and public keys are kept for people: `instance show` tells when an agent that is away was heard
last, and who looks into the file sees for which keys certificates were issued. `put_*` and `remove_*` return at once and
never fail, the queries are awaited and may raise CacheUnavailableError.
"""

import functools
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nstance.clock import Clock
from nstance.model import codec
from nstance.model.ids import GroupKey, GroupName, InstanceId, TenantId
from nstance.model.instance import Instance
from nstance.server.cache.disk import Stamp
from nstance.server.cache.thread import CacheThread
from nstance.server.cache.thread import CacheUnavailableError as CacheUnavailableError

SYNC_SECONDS = 5.0
MAX_MESSAGE = 4096  # characters of an event's message
MAX_LIMIT = 1_000

_CONFIG, _GROUP = "config", "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    id: int  # grows, and is the same on every server
    time: float
    tenant: TenantId
    group: str
    instance: str
    code: str
    message: str
    trouble: bool


@dataclass(frozen=True, slots=True)
class Report:
    at: float
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hashes:
    config: str | None
    groups: Mapping[GroupKey, str]


class Cache:
    def __init__(self, thread: CacheThread, clock: Clock) -> None:
        self._thread = thread
        self._clock = clock

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, cluster: str, shard: str, clock: Clock) -> "Cache":
        """Returns at once; the file is looked at by the cache's own thread."""
        return cls(CacheThread(os.fspath(path), Stamp(cluster, shard), clock=clock), clock)

    @property
    def on_disk(self) -> bool:
        """Whether what is put now outlives the process."""
        return self._thread.on_disk

    @property
    def stale(self) -> bool:
        """Something was lost since the last `sync`: sync again when convenient."""
        return self._thread.stale

    @property
    def dropped(self) -> int:
        """Updates and events that found the queue full, or could not be written at all."""
        return self._thread.lost_updates + self._thread.lost_events + self._thread.refused

    async def close(self) -> None:
        """Waits a moment for what is pending, not for a disk that does not answer."""
        await self._thread.close()

    async def sync(
        self,
        *,
        config_hash: str,
        group_hashes: Mapping[GroupKey, str],
        instances: Iterable[Instance] | None = None,
        timeout: float = SYNC_SECONDS,
    ) -> bool:
        """From now on the cache holds exactly this configuration and, if given, these instances. False: not on disk, or
        not in time. The server goes on either way."""
        known = None if instances is None else tuple(instances)

        def apply(db: sqlite3.Connection) -> None:
            _sync(db, config_hash, dict(group_hashes), known)
            if known is not None:
                self._thread.stale = False

        self._thread.put(_sync, apply)
        try:
            return await self._thread.ask(lambda db: self._thread.on_disk, timeout=timeout)
        except CacheUnavailableError:
            return False

    # ---- what is told

    def put_instance(self, instance: Instance) -> None:
        self._thread.put(("instance", instance.id), functools.partial(_save_instance, instance))

    def remove_instance(self, instance: InstanceId) -> None:
        """And everything about it."""
        self._thread.put(("removed", instance), functools.partial(_forget_instance, instance))

    def put_report(self, instance: InstanceId, report: Callable[[], Mapping[str, Any]], *, at: float) -> None:
        """`report` makes plain JSON; the cache's own thread calls it."""
        save = functools.partial(_save_report, instance, at, report)
        self._thread.put(("report", instance), save)

    def put_public_keys(self, instance: InstanceId, pems: Mapping[str, str]) -> None:
        for name, pem in pems.items():
            self._save("INSERT OR REPLACE INTO public_keys VALUES (?, ?, ?)", instance, name, pem, key=2)

    def put_image(self, lookup: str, image: str) -> None:
        self._save("INSERT OR REPLACE INTO images VALUES (?, ?, ?)", lookup, image, self._clock.wall(), key=1)

    def put_userdata(self, url: str, etag: str, body: bytes) -> None:
        self._save("INSERT OR REPLACE INTO userdata VALUES (?, ?, ?)", url, etag, body, key=1)

    def put_members(self, balancer: str, instances: Iterable[InstanceId]) -> None:
        """All members that a load balancer has."""
        members = json.dumps(sorted(instances))
        self._save("INSERT OR REPLACE INTO members VALUES (?, ?)", balancer, members, key=1)

    def put_events(self, first: int, make: Callable[[], Sequence[Event]], *, count: int) -> None:
        """They take the place of all whose ID is `first` or later: what follows them is told again, or was of a journal
        that is gone. The cache's own thread calls `make`; `count`: so many at most."""
        self._thread.append(functools.partial(_save_events, first, make), count=count)

    def _save(self, statement: str, *values: object, key: int) -> None:
        """`key`: so many of the values say what it is about."""
        self._thread.put((statement, *values[:key]), functools.partial(_execute, statement, values))

    # ---- what is asked

    async def hashes(self) -> Hashes:
        rows = await self._rows("SELECT kind, name, hash FROM hashes")
        groups = {_group_key(name): hash for kind, name, hash in rows if kind == _GROUP}
        return Hashes(next((hash for kind, _, hash in rows if kind == _CONFIG), None), groups)

    async def instances(self, *, tenant: TenantId | None = None, group: GroupName | None = None) -> list[Instance]:
        where, values = _where({"tenant": tenant, '"group"': group})
        rows = await self._rows(f"SELECT record FROM instances{where} ORDER BY id", *values)
        try:
            return [codec.decode_instance(json.loads(record)) for (record,) in rows]
        except codec.UnknownRecordError as problem:
            raise CacheUnavailableError(f"the cached records are of another version: {problem}") from problem

    async def report(self, instance: InstanceId) -> Report | None:
        rows = await self._rows("SELECT at, report FROM reports WHERE instance = ?", instance)
        return Report(rows[0][0], json.loads(rows[0][1])) if rows else None

    async def public_keys(self, instance: InstanceId) -> dict[str, str]:
        """PEM by name."""
        return dict(await self._rows("SELECT name, pem FROM public_keys WHERE instance = ?", instance))

    async def all_public_keys(self) -> dict[InstanceId, dict[str, str]]:
        found: dict[InstanceId, dict[str, str]] = {}
        for instance, name, pem in await self._rows("SELECT instance, name, pem FROM public_keys"):
            found.setdefault(InstanceId(instance), {})[name] = pem
        return found

    async def image(self, lookup: str, *, younger_than: float) -> str | None:
        """`younger_than`: seconds, by the wall clock."""
        since = self._clock.wall() - younger_than
        rows = await self._rows("SELECT image FROM images WHERE lookup = ? AND at > ?", lookup, since)
        return str(rows[0][0]) if rows else None

    async def userdata(self, url: str) -> tuple[str, bytes] | None:
        """The last good copy and its ETag."""
        rows = await self._rows("SELECT etag, body FROM userdata WHERE url = ?", url)
        return (str(rows[0][0]), bytes(rows[0][1])) if rows else None

    async def members(self, balancer: str) -> frozenset[InstanceId] | None:
        """None: not known, which is something else than none."""
        rows = await self._rows("SELECT instances FROM members WHERE balancer = ?", balancer)
        return frozenset(InstanceId(i) for i in json.loads(rows[0][0])) if rows else None

    async def events(
        self,
        *,
        tenant: TenantId | None = None,
        group: str | None = None,
        instance: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[Event]:
        """Oldest first. Without `after` the newest ones; with it those that follow, so that a reader misses none."""
        where, values = _where({"tenant": tenant, '"group"': group, "instance": instance})
        where = f"{where} AND id > ?" if where else " WHERE id > ?"
        order = "" if after else " DESC"
        columns = 'id, time, tenant, "group", instance, code, message, trouble'
        rows = await self._rows(
            f"SELECT {columns} FROM events{where} ORDER BY id{order} LIMIT ?",
            *values,
            after,
            max(1, min(limit, MAX_LIMIT)),
        )
        found = [
            Event(id=id, time=at, tenant=TenantId(t), group=g, instance=i, code=c, message=m, trouble=bool(bad))
            for id, at, t, g, i, c, m, bad in rows
        ]
        return found if after else found[::-1]

    async def _rows(self, query: str, *values: object) -> list[Any]:
        return await self._thread.ask(lambda db: db.execute(query, values).fetchall())


# What the cache's thread does with them.


def _execute(statement: str, values: tuple[object, ...], db: sqlite3.Connection) -> None:
    db.execute(statement, values)


def _sync(
    db: sqlite3.Connection, config: str, groups: Mapping[GroupKey, str], instances: tuple[Instance, ...] | None
) -> None:
    db.execute("DELETE FROM hashes")
    db.execute("INSERT INTO hashes VALUES (?, ?, ?)", (_CONFIG, "", config))
    db.executemany("INSERT INTO hashes VALUES (?, ?, ?)", [(_GROUP, str(key), hash) for key, hash in groups.items()])
    if instances is None:
        return
    db.execute("DELETE FROM instances")
    for instance in instances:
        _save_instance(instance, db)
    for table in ("reports", "public_keys"):
        db.execute(f"DELETE FROM {table} WHERE instance NOT IN (SELECT id FROM instances)")


def _save_instance(instance: Instance, db: sqlite3.Connection) -> None:
    record = codec.canonical(codec.encode_instance(instance)).decode()
    values = (instance.id, instance.tenant, instance.group, instance.state.value, record)
    db.execute("INSERT OR REPLACE INTO instances VALUES (?, ?, ?, ?, ?)", values)


def _forget_instance(instance: InstanceId, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM instances WHERE id = ?", (instance,))
    for table in ("reports", "public_keys"):
        db.execute(f"DELETE FROM {table} WHERE instance = ?", (instance,))


def _save_report(
    instance: InstanceId, at: float, report: Callable[[], Mapping[str, Any]], db: sqlite3.Connection
) -> None:
    text = codec.canonical(report()).decode()
    db.execute("INSERT OR REPLACE INTO reports VALUES (?, ?, ?)", (instance, at, text))


def _save_events(first: int, make: Callable[[], Sequence[Event]], db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM events WHERE id >= ?", (first,))
    db.executemany(
        "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(e.id, e.time, e.tenant, e.group, e.instance, e.code, _storable(e.message), e.trouble) for e in make()],
    )


def _storable(message: str) -> str:
    """Short, and without half a surrogate pair, as a stranger may send it."""
    return message[:MAX_MESSAGE].encode("utf-8", "replace").decode()


def _group_key(text: str) -> GroupKey:
    tenant, _, name = text.partition("/")
    return GroupKey(TenantId(tenant), GroupName(name))


def _where(conditions: Mapping[str, str | None]) -> tuple[str, list[str]]:
    given = {column: value for column, value in conditions.items() if value is not None}
    clause = " AND ".join(f"{column} = ?" for column in given)
    return (f" WHERE {clause}" if clause else ""), list(given.values())
