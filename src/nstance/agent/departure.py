"""Why the agent is told to stop: because the machine goes down, or because only the agent is restarted.

The server replaces a machine that goes down and waits for one that restarts its agent, so a wrong guess costs either
time or a machine. systemd is asked: `systemctl is-system-running` says `stopping` from the moment a shutdown begins,
before any unit is stopped. Files such as /run/nologin are written by units that stop at the same time as the agent,
which makes them a coin toss; they count only where systemd cannot be asked. In doubt it is a restart: the server
checks with the provider anyway.
"""

import asyncio
import contextlib
import enum
from pathlib import Path

ASK_SECONDS = 0.7  # of the two seconds that a stop may take
NOLOGIN = Path("/run/nologin")


class Departure(enum.Enum):
    SHUTDOWN = "shutdown"
    RESTART = "restart"


async def reason() -> Departure:
    state = await _system_state()
    if state is None:
        return Departure.SHUTDOWN if _logins_refused() else Departure.RESTART
    return Departure.SHUTDOWN if state == "stopping" else Departure.RESTART


def _logins_refused() -> bool:
    return NOLOGIN.exists()


async def _system_state() -> str | None:
    """systemd's word for the system, or None if it cannot be asked."""
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "is-system-running", stdin=quiet, stdout=asyncio.subprocess.PIPE, stderr=quiet
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(ASK_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return None
    state = output.decode("ascii", "replace").strip()
    # In a container systemctl may be there without systemd: it then says "offline" or nothing.
    return state if state and state != "offline" else None
