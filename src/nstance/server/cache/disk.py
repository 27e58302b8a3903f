"""The cache's file: made, judged, and thrown away when in doubt.

Nothing in it is precious, so whatever is not exactly as expected is dropped and made anew: damaged, of another shard, of
another version. The trap: a disk that is full, read-only or sick, and a file that somebody has locked, say nothing about
the content. Those are errors of the moment, and delete nothing.
"""

import contextlib
import logging
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)

SCHEMA = 2
LOCK_SECONDS = 1.0  # how long to wait for somebody else's lock
PAGES_KIB = 512  # of the file that are kept in memory: nothing here is asked for often

_TABLES = """
CREATE TABLE stamp (cluster TEXT NOT NULL, shard TEXT NOT NULL);
CREATE TABLE hashes (kind TEXT, name TEXT, hash TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE instances (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, "group" TEXT NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE reports (instance TEXT PRIMARY KEY, at REAL NOT NULL, report TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE public_keys (instance TEXT, name TEXT, pem TEXT NOT NULL, PRIMARY KEY (instance, name)) WITHOUT ROWID;
CREATE TABLE images (lookup TEXT PRIMARY KEY, image TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE userdata (url TEXT PRIMARY KEY, etag TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE members (balancer TEXT PRIMARY KEY, instances TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, time REAL NOT NULL, tenant TEXT NOT NULL, "group" TEXT NOT NULL, instance TEXT NOT NULL,
  code TEXT NOT NULL, message TEXT NOT NULL, trouble INTEGER NOT NULL
);
CREATE INDEX events_of_instance ON events (instance, id);
"""

PROJECTIONS = ("hashes", "instances", "reports", "public_keys", "images", "userdata", "members")

_JUNK = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}
_MOMENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
}


@dataclass(frozen=True, slots=True)
class Stamp:
    cluster: str
    shard: str


class _Junk(ValueError):
    """The file is not ours to use; the message says why."""


def damaged(problem: BaseException) -> bool:
    """Whether an error says something about the file's content."""
    return _code(problem) in _JUNK - {sqlite3.SQLITE_ERROR}


def environment(problem: BaseException) -> bool:
    """Whether an error comes from the disk, the file or a lock, and not from what was asked."""
    return isinstance(problem, OSError) or damaged(problem) or _code(problem) in _MOMENT


def _code(problem: BaseException) -> int:
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


def open_memory(stamp: Stamp) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _make(connection, stamp)
    return connection


def open_file(path: str, stamp: Stamp) -> sqlite3.Connection:
    """A connection to a sound file of this shard; what was there before is kept only if it is one.
    Raises sqlite3.Error or OSError if the disk does not allow it now."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    try:
        return _open(path, stamp)
    except _Junk as problem:
        reason = str(problem)
    except sqlite3.Error as problem:
        if _code(problem) not in _JUNK:
            raise
        reason = str(problem)
    log.warning("the cache is dropped and made anew", extra={"path": path, "reason": reason})
    remove(path)
    return _open(path, stamp)


def remove(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        if os.path.lexists(name):
            os.unlink(name)


def number(path: str) -> int | None:
    """Which file this is; None if there is none."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _open(path: str, stamp: Stamp) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a cache may forget its last moments, it must not break
        connection.execute(f"PRAGMA cache_size=-{PAGES_KIB}")
        if _empty(connection):
            _make(connection, stamp)
        _judge(connection, stamp)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already, some disks cannot
            connection.execute("ROLLBACK")
        raise


def read_file(path: str, stamp: Stamp, into: sqlite3.Connection) -> None:
    """Copies what can be read, without touching the file. Raises sqlite3.Error, OSError or ValueError."""
    location = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro"
    with contextlib.closing(sqlite3.connect(location, uri=True, timeout=LOCK_SECONDS, isolation_level=None)) as source:
        _judge(source, stamp)
        transfer(source, into, replace=True)


def transfer(source: sqlite3.Connection, target: sqlite3.Connection, *, replace: bool) -> None:
    """Everything of the source into the target. `replace`: and nothing else stays there."""
    with transaction(target):
        for table in (*PROJECTIONS, "events"):
            if replace:
                target.execute(f"DELETE FROM {table}")
            rows = source.execute(f"SELECT * FROM {table}")
            places = ", ".join("?" * len(rows.description))
            target.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _empty(connection: sqlite3.Connection) -> bool:
    return _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _make(connection: sqlite3.Connection, stamp: Stamp) -> None:
    with transaction(connection):
        if not _empty(connection):
            return  # another process was faster
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute("INSERT INTO stamp VALUES (?, ?)", (stamp.cluster, stamp.shard))
        connection.execute(f"PRAGMA user_version={SCHEMA}")


def _judge(connection: sqlite3.Connection, stamp: Stamp) -> None:
    version = _version(connection)
    if version != SCHEMA:
        raise _Junk(f"it has version {version} of the schema, expected {SCHEMA}")
    check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if check != "ok":
        raise _Junk(f"it is damaged: {check}")
    found = connection.execute("SELECT cluster, shard FROM stamp").fetchall()
    if found != [(stamp.cluster, stamp.shard)]:
        raise _Junk(f"it belongs to {found}, expected {stamp.cluster}/{stamp.shard}")
