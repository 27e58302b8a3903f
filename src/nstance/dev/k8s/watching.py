"""Sees what others do to the files.

Notices of the file system are only hints where to look: they may come late, twice, or not at all for what appears in a
folder at the moment it is made. Hence a look at everything from time to time, which costs a stat per file.
"""

import asyncio
import logging
from pathlib import Path

import watchfiles

from nstance.dev.k8s.files import Files

log = logging.getLogger(__name__)

_GATHER = 50  # milliseconds that changes are gathered
_EVERYTHING = 3000  # milliseconds after which everything is looked at


async def follow(files: Files, ending: asyncio.Event) -> None:
    notices = watchfiles.awatch(
        files.folder,
        watch_filter=lambda change, path: not Path(path).name.startswith("."),
        debounce=_GATHER,
        step=10,
        stop_event=ending,
        rust_timeout=_EVERYTHING,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    async for notice in notices:
        try:
            for _, path in sorted(notice, key=lambda each: each[1]):
                files.look_below(Path(path))
            if not notice:
                files.look_everywhere()
        except OSError as problem:
            log.warning("files could not be looked at", extra={"problem": str(problem)})
