"""The cache's file: created, checked, and dropped when it cannot be used.

A file that is damaged, of another shard or of another version is dropped and created again, because nothing in it is
precious. The trap: a disk that is full, read-only or failing, and a file that another process has locked, say nothing
about the content. Such errors delete nothing.
"""

import contextlib
import logging
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)

SCHEMA_VERSION = 3
PAGE_CACHE_KIB = 512  # small, because queries are rare

_TABLES = """
CREATE TABLE stamp (cluster TEXT NOT NULL, shard TEXT NOT NULL);
CREATE TABLE last_reports (instance TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE images (lookup TEXT PRIMARY KEY, image TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE userdata (url TEXT PRIMARY KEY, etag TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE members (balancer TEXT PRIMARY KEY, instances TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY, time REAL NOT NULL, tenant TEXT NOT NULL, "group" TEXT NOT NULL, instance TEXT NOT NULL,
  code TEXT NOT NULL, message TEXT NOT NULL
);
CREATE INDEX events_of_instance ON events (instance, id);
"""

PROJECTIONS = ("last_reports", "images", "userdata", "members")

_CONTENT_ERRORS = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
_TRANSIENT_ERRORS = {
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


class _UnusableFileError(ValueError):
    """The file is not a cache of this shard; the message says why."""


def is_file_error(error: BaseException) -> bool:
    """Whether an error comes from the disk, the file or a lock, and not from the statement."""
    return isinstance(error, OSError) or _code(error) in _CONTENT_ERRORS | _TRANSIENT_ERRORS


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def open_memory(stamp: Stamp) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _create_tables(connection, stamp)
    return connection


def open_file(path: str, stamp: Stamp, *, lock_seconds: float) -> sqlite3.Connection:
    """Opens the shard's file; one that cannot be used is dropped first.
    Raises sqlite3.Error or OSError if the disk does not allow it now."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    try:
        return _open(path, stamp, lock_seconds)
    except _UnusableFileError as error:
        reason = str(error)
    except sqlite3.Error as error:
        # At opening, a plain SQL error means that a table is missing or different.
        if _code(error) not in _CONTENT_ERRORS | {sqlite3.SQLITE_ERROR}:
            raise
        reason = str(error)
    log.warning("cache file dropped and created again", extra={"path": path, "reason": reason})
    remove(path)
    return _open(path, stamp, lock_seconds)


def remove(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        if os.path.lexists(name):
            os.unlink(name)


def inode(path: str) -> int | None:
    """None if there is no file."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _open(path: str, stamp: Stamp, lock_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # may lose the last moments in a crash, but stays intact
        connection.execute(f"PRAGMA cache_size=-{PAGE_CACHE_KIB}")
        if _is_empty(connection):
            _create_tables(connection, stamp)
        _check(connection, stamp)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already, some disks cannot
            connection.execute("ROLLBACK")
        raise


def read_file(path: str, stamp: Stamp, into: sqlite3.Connection, *, lock_seconds: float) -> None:
    """Copies what can be read, without changing the file. Raises sqlite3.Error, OSError or ValueError."""
    location = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro"
    connection = sqlite3.connect(location, uri=True, timeout=lock_seconds, isolation_level=None)
    with contextlib.closing(connection) as source:
        _check(source, stamp)
        copy_tables(source, into, replace=True)


def copy_tables(source: sqlite3.Connection, target: sqlite3.Connection, *, replace: bool) -> None:
    """`replace`: the target keeps nothing of its own."""
    with transaction(target):
        for table in (*PROJECTIONS, "events"):
            if replace:
                target.execute(f"DELETE FROM {table}")
            rows = source.execute(f"SELECT * FROM {table}")
            placeholders = ", ".join("?" * len(rows.description))
            target.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({placeholders})", rows)


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return tables == 0 and _version(connection) == 0


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create_tables(connection: sqlite3.Connection, stamp: Stamp) -> None:
    with transaction(connection):
        if not _is_empty(connection):
            return  # another process was faster
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute("INSERT INTO stamp VALUES (?, ?)", (stamp.cluster, stamp.shard))
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _check(connection: sqlite3.Connection, stamp: Stamp) -> None:
    version = _version(connection)
    if version != SCHEMA_VERSION:
        raise _UnusableFileError(f"expected schema version {SCHEMA_VERSION}, found {version}")
    check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if check != "ok":
        raise _UnusableFileError(f"damaged: {check}")
    found = connection.execute("SELECT cluster, shard FROM stamp").fetchall()
    if found != [(stamp.cluster, stamp.shard)]:
        raise _UnusableFileError(f"expected the cache of {stamp.cluster}/{stamp.shard}, found {found}")
