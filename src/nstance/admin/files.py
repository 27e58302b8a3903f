"""Writes files atomically."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Replaces the file. Others can read it only once it is complete, and only if `mode` allows it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory; create it first", str(path.parent))
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
