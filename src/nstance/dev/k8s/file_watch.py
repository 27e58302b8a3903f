"""Watches the files for changes by others.

File system events are only hints: they may be late, repeated, or missing for files in a folder that was just created. So
all files are checked from time to time, which costs one stat per file.
"""

import asyncio
import logging
from pathlib import Path

import watchfiles

from nstance.dev.k8s.files import Files

log = logging.getLogger(__name__)

_DEBOUNCE_MILLISECONDS = 50
_FULL_CHECK_MILLISECONDS = 3000


async def watch_files(files: Files, stopping: asyncio.Event) -> None:
    batches = watchfiles.awatch(
        files.folder,
        watch_filter=lambda change, path: not Path(path).name.startswith("."),
        debounce=_DEBOUNCE_MILLISECONDS,
        step=10,
        stop_event=stopping,
        rust_timeout=_FULL_CHECK_MILLISECONDS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    async for changes in batches:
        try:
            for _, path in sorted(changes, key=lambda each: each[1]):
                files.check_below(Path(path))
            if not changes:
                files.check_all()
        except OSError as problem:
            log.warning("failed to check files", extra={"problem": str(problem)})
