"""Reserves the ports that this server opens when it leads.

The system may give a port to an outgoing connection. A server that finds one of its ports taken only after it acquired the
lease would release it, acquire it again, and never lead. So the ports are bound from the start without listening, and one
that is taken ends the process with an error.
"""

import contextlib
from pathlib import Path

from nstance.config.addresses import Address, Service
from nstance.server.errors import FatalError
from nstance.wire import listener

EPHEMERAL_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


async def reserve(service: Service, bind: Address, opened: contextlib.AsyncExitStack) -> None:
    """Until `opened` is closed. Raises FatalError."""
    try:
        for held in await listener.reserve(bind.host, bind.port):
            opened.callback(held.close)
    except OSError as problem:
        raise FatalError(taken(service, bind, problem)) from problem


def taken(service: Service, bind: Address, problem: OSError) -> str:
    """Why a port cannot be opened, and what to do about it."""
    message = f"the {service.value} port {bind} cannot be opened: {problem.strerror or problem}"
    try:
        low, high = (int(number) for number in EPHEMERAL_PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return message
    if low <= bind.port <= high:
        message += (
            f"; this system gives the ports from {low} to {high} to outgoing connections, choose one outside of them"
        )
    return message
