"""Files that appear whole or not at all."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Over whatever is there. Readable by others only once it has its name, and only if `mode` says so."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory; make it first", str(path.parent))
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
