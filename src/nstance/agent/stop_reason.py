"""Why the agent is asked to stop: the machine shuts down, or only the agent restarts.

The server replaces a machine that shuts down and waits for an agent that restarts, so a wrong answer costs either time
or a machine. systemd knows: `systemctl is-system-running` says `stopping` as soon as a shutdown begins, before any unit
is stopped. Files such as /run/nologin are written by units that stop at the same time as the agent, so they count only
where systemd is missing. In doubt it is a restart: the server checks with the provider anyway.
"""

import asyncio
import contextlib
import enum
from pathlib import Path

SYSTEMCTL_TIMEOUT_SECONDS = 0.7  # of the two seconds that a stop may take
NOLOGIN = Path("/run/nologin")


class StopReason(enum.Enum):
    SHUTDOWN = "shutdown"
    RESTART = "restart"


async def detect() -> StopReason:
    state = await _system_state()
    is_shutdown = _are_logins_refused() if state is None else state == "stopping"
    return StopReason.SHUTDOWN if is_shutdown else StopReason.RESTART


def _are_logins_refused() -> bool:
    return NOLOGIN.exists()


async def _system_state() -> str | None:
    """systemd's word for the state of the system, or None without systemd."""
    devnull = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "is-system-running", stdin=devnull, stdout=asyncio.subprocess.PIPE, stderr=devnull
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(SYSTEMCTL_TIMEOUT_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return None
    state = output.decode("ascii", "replace").strip()
    # In a container systemctl may exist without systemd: it then prints "offline" or nothing.
    return state if state and state != "offline" else None
