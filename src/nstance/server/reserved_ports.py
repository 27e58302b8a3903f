"""Keeps a leader's ports free for the time when this server leads.

The system gives any port of a certain range to outgoing connections. A server that finds one of its ports taken only when
it has won the lease would give it back, win it again, and never lead. So the ports are bound from the start, without
anybody listening, and one that is taken ends the process with a sentence.
"""

import contextlib
from pathlib import Path

from nstance.config.addresses import Address, Service
from nstance.server.errors import FatalError
from nstance.wire import listener

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


async def reserve(service: Service, bind: Address, opened: contextlib.AsyncExitStack) -> None:
    """Until `opened` is closed. Raises Fatal."""
    try:
        for held in await listener.reserve(bind.host, bind.port):
            opened.callback(held.close)
    except OSError as problem:
        raise FatalError(taken(service, bind, problem)) from problem


def taken(service: Service, bind: Address, problem: OSError) -> str:
    """Why a port cannot be had, and what to do about it."""
    said = f"the {service.value} port {bind} cannot be opened: {problem.strerror or problem}"
    try:
        low, high = (int(number) for number in EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return said
    if low <= bind.port <= high:
        said += (
            f"; this system gives the ports from {low} to {high} to outgoing connections, choose one outside of them"
        )
    return said
